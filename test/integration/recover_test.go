package integration

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recover runs `recover --yes`, which must end with this exit code.
func (o *outbox) recover(env []string, exit int, args ...string) (out string) {
	o.t.Helper()
	out, notes, got := o.runBinary(env, append([]string{"recover", "--yes"}, args...)...)
	if got != exit {
		o.t.Fatalf("recover %v: exit code %d, want %d\n%s%s", args, got, exit, out, notes)
	}
	return out + notes
}

// recoverMajors are the versions that recover is tested with: how a slot is created, copied and lost differs between
// them.
func recoverMajors() []string {
	return fullOrShort([]string{"14", "15", "16", "17", "18"}, []string{"14", "18"})
}

// A slot that the server has invalidated: recover creates it again, and delivers what was committed since the last
// delivery. The application goes on writing meanwhile.
func TestRecoverLostSlot(t *testing.T) {
	t.Parallel()
	for _, major := range recoverMajors() {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			pg := ownPostgres(t, major, map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})
			o := newOutbox(t, options{pg: pg})
			o.proves("F31", "slot invalidated by max_slot_wal_keep_size under load, then `recover` while the application writes")
			env := append(o.deduplicating(fence), "OUTBOXCDC_OUTBOX_ORDER=n") // the numbers are in the order in which the transactions of a key commit
			r := o.startStreaming(env...)
			w := o.write(load{rand: newRand(t)})
			w.awaitCommits(100)
			r.term()
			w.awaitCommits(100)
			awaitLost(o)
			o.start(env...).awaitStop(patience, 79, "invalidated", "outboxcdc recover")
			out := o.recover(env, 0)
			says(t, out, "slot "+o.name+" is lost: creating slot "+o.name+"_recovery", "slot "+o.name+" is at ", "rows are missing\n", " sent, run ", ": 0 rows are missing", "position record written", "start the daemon")
			w.awaitCommits(50)
			o.startStreaming(env...)
			w.awaitCommits(50)
			w.stop()
			o.repeatsAtMost(o.verify(patience), 0, "recover subtracts what Kafka has, and the stream begins after it")
			if _, sum := o.audit(env, 0, "--deep"); sum.Summary.Resent == 0 || sum.Summary.Rows != sum.Summary.Delivered {
				t.Errorf("%+v", sum.Summary)
			}
			o.outcome("nothing missing, no repeats, order as committed; the daemon simply starts")
		})
	}
}

// The slot was dropped, advanced, or dropped and recreated: recover finds what is missing without being told which it
// was.
func TestRecoverGap(t *testing.T) {
	t.Parallel()
	for _, major := range recoverMajors() {
		for _, c := range []struct {
			name, fault, done string
			make              func(o *outbox)
		}{
			{"dropped", "F29", "dropped", func(o *outbox) { o.exec(`SELECT pg_drop_replication_slot($1)`, o.name) }},
			{"advanced", "F33", "advanced by pg_replication_slot_advance", func(o *outbox) {
				o.exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, o.name)
			}},
			{"recreated", "F30", "dropped and recreated by hand", func(o *outbox) {
				o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
			}},
		} {
			t.Run(major+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, options{pg: sharedPostgres(t, major)})
				o.proves(c.fault, "slot %s while a deduplicating daemon is down and 30 events wait in it, then `recover`", c.done)
				recoverGap(t, o, c.make)
				o.outcome("exit 79 until `recover`, then the daemon simply starts")
			})
		}
	}
}

func recoverGap(t *testing.T, o *outbox, makeGap func(o *outbox)) {
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 50)
	o.insert("order", "k", 51, 30)
	makeGap(o)
	o.insert("order", "k", 81, 20)
	o.start(env...).awaitStop(patience, 79, "outboxcdc recover")
	if out, notes, code := o.runBinary(env, "recover"); code != 1 || !strings.Contains(out+notes, "there is no answer") {
		t.Errorf("without an answer: exit code %d:\n%s%s", code, out, notes)
	}
	says(t, o.recoverDry(env), "nothing was changed")
	o.recover(env, 0)
	o.startStreaming(env...)
	o.repeatsAtMost(o.verify(patience), 0, "what the slot still has is left to the daemon")
	if _, notes, code := o.runBinary(env, "recover", "--yes"); code != 1 || !strings.Contains(notes, "is active for PID") {
		t.Errorf("beside the daemon: exit code %d: %s", code, notes)
	}
	says(t, o.recover(env, 0, "--beside"), "0 rows are missing")
}

// recoverDry runs `recover --dry-run` while rows are missing.
func (o *outbox) recoverDry(env []string) string {
	o.t.Helper()
	out, notes, code := o.runBinary(env, "recover", "--dry-run")
	if code != 1 {
		o.t.Errorf("recover --dry-run: exit code %d\n%s%s", code, out, notes)
	}
	return out + notes
}

// recover is killed at random points and run again.
func TestRecoverKilled(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 10)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	const rows = 4000
	for n := range rows / 100 {
		o.insert("order", fmt.Sprint("k", n%7), 11+100*n, 100)
	}
	kills := fullOrShort(50, 6)
	o.proves("F86", "slot dropped, %d rows missing; kill -9 of `recover` at %d random moments, then `recover` again", rows, kills)
	rnd := newRand(t)
	for range kills {
		o.killRecover(env, rnd)
	}
	o.recover(env, 0)
	o.startStreaming(env...)
	o.insert("order", "k", 11+rows, 10)
	o.repeatsAtMost(o.verify(patience), 0, fmt.Sprintf("each run after the %d kills subtracts what Kafka has", kills))
}

// killRecover starts `recover`, slow enough to be met at any point, and kills it.
func (o *outbox) killRecover(env []string, rnd *rand.Rand) {
	o.t.Helper()
	cmd := exec.Command(testSuite.binary, append(append([]string{}, o.args...), "recover", "--yes", "--rate", "3000")...)
	cmd.Env = append(append(cleanEnv(), o.env()...), env...)
	must(o.t, cmd.Start())
	time.Sleep(time.Duration(rnd.Int64N(int64(1500 * time.Millisecond))))
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // its status is that of the kill
	o.awaitNoCommand()
}

// awaitNoCommand waits until the server has ended the connections of a command that was killed.
func (o *outbox) awaitNoCommand() {
	o.t.Helper()
	await(o.t, patience, "the server to end the connections of the killed command", func() error {
		var n int
		err := o.admin.scan(`SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outboxcdc-command%' AND datname = '`+o.name+`'`, &n)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d are open", n)
		}
		return err
	})
}

// polling is an outbox whose rows a poller has sent, until it was killed in the middle of a batch.
type polling struct {
	*outbox
	total, pending, batch int // rows: all, without a mark, and those of the batch: sent and not marked
}

// newPolling writes rows and has a poller send some of them in their order, with the header id. There is no slot.
func newPolling(t *testing.T, columns string) *polling {
	t.Helper()
	o := newOutbox(t, options{})
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(`ALTER TABLE outbox ` + columns)
	p := &polling{outbox: o, pending: 50_000, batch: 500}
	if testing.Short() {
		p.pending = 5_000
	}
	p.total = p.pending + p.pending/5
	const keys, rows = 20, 100
	for n := 0; n < p.total; n += rows {
		o.insert("order", fmt.Sprint("k", n/rows%keys), 1+n, rows)
	}
	return p
}

// poll sends the first rows, and marks all of them except for the last batch: then the poller is killed.
func (p *polling) poll(mark string) {
	p.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(p.kafka.Brokers()...))
	must(p.t, err)
	defer client.Close()
	truth := p.truth()
	slices.SortFunc(truth, func(a, b row) int { return cmp.Compare(a.N, b.N) }) // n counts all rows, as seq does
	marked := p.total - p.pending
	var records []*kgo.Record
	for _, r := range truth[:marked+p.batch] {
		records = append(records, &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(r.ID)}, {Key: "type", Value: []byte(r.EventType)},
		}})
	}
	must(p.t, client.ProduceSync(testContext(p.t), records...).FirstErr())
	p.exec(`UPDATE outbox SET `+mark+` WHERE n <= $1`, marked)
}

// finish starts the daemon, writes more rows and checks that every row arrived once and in order.
func (p *polling) finish(env []string) {
	p.t.Helper()
	p.startStreaming(env...)
	p.insert("order", "k7", 1+p.total, 100)
	p.awaitArrived(patience)
	p.awaitSettled()
	h := p.history()
	v := h.judge()
	all := len(v.problems)
	v.problems = slices.DeleteFunc(v.problems, func(what string) bool { return strings.HasSuffix(what, ": 0 headers outboxcdc-position") })
	if sent := p.total - p.pending + p.batch; all-len(v.problems) != sent {
		p.t.Errorf("%d records have no position; the poller has sent %d", all-len(v.problems), sent)
	}
	if err := v.err(); err != nil {
		p.t.Fatal(err)
	}
	if v.Rows != p.total+100 || v.Records != v.Rows {
		p.t.Errorf("%d records of %d rows, want %d", v.Records, v.Rows, p.total+100)
	}
	p.proof.setVerdict(v)
	p.repeatsAtMost(v, 0, "backfill finds the batch by its ids, and the stream begins where the snapshot ends")
}

// A polling outbox: rows that were published have their mark, the poller was killed between sending and marking.
// backfill creates the slot and sends the rest.
func TestBackfillPollingTable(t *testing.T) {
	t.Parallel()
	p := newPolling(t, `ADD COLUMN published_at timestamptz`)
	p.proves("F91", "poller of %d rows killed between sending a batch of %d and marking it, then `backfill` of the %d rows without a mark", p.total, p.batch, p.pending)
	p.poll("published_at = now()")
	env := append(p.deduplicating(fence), "OUTBOXCDC_OUTBOX_ORDER=seq")
	out, notes, code := p.runBinary(env, "backfill", "--yes", "--where", "published_at IS NUL")
	if code != 2 || !strings.Contains(notes, "published_at IS NUL") || !strings.Contains(notes, "^") {
		t.Errorf("a wrong condition: exit code %d:\n%s%s", code, out, notes)
	}
	is(t, "slots", slots(p.outbox), 0)
	start := time.Now()
	out, notes, code = p.runBinary(env, "backfill", "--yes", "--where", "published_at IS NULL")
	if want := fmt.Sprintf("\n%d records sent", p.pending-p.batch); code != 0 || !strings.Contains(out, want) {
		t.Fatalf("exit code %d, want %q:\n%s%s", code, want, out, notes)
	}
	t.Logf("backfill of %d of %d pending rows: %v", p.pending-p.batch, p.pending, time.Since(start).Round(time.Millisecond))
	if out, notes, code := p.runBinary(env, "backfill", "--yes"); code != 1 || !strings.Contains(notes, "exists") {
		t.Errorf("with a slot: exit code %d:\n%s%s", code, out, notes)
	}
	p.finish(env)
}

// A backfill that was killed is continued by the same command, and no daemon starts before. Rows with the mark are
// not sent, although Kafka has no record of them: their poller wrote no header id.
func TestBackfillKilled(t *testing.T) {
	t.Parallel()
	p := newPolling(t, `ADD COLUMN processed boolean NOT NULL DEFAULT false`)
	p.proves("F92", "kill -9 of `backfill` in the middle of %d rows, then the daemon, and `backfill` again", p.pending)
	p.exec(`UPDATE outbox SET processed = true WHERE n <= $1`, p.total-p.pending)
	env := append(p.deduplicating(fence), "OUTBOXCDC_OUTBOX_ORDER=seq")
	where := []string{"--yes", "--where", "processed IS NOT TRUE"}
	cmd := exec.Command(testSuite.binary, slices.Concat(p.args, []string{"backfill", "--rate", fmt.Sprint(p.pending / 20)}, where)...)
	cmd.Env = append(p.env(), env...)
	must(t, cmd.Start())
	await(t, patience, "some records", func() error {
		if p.follow.records() < p.pending/20 {
			return errors.New("there are few")
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // its status is that of the kill
	if n := p.follow.records(); n >= p.pending {
		t.Fatalf("backfill has sent %d records before it was killed", n)
	}
	p.awaitNoCommand()
	p.start(env...).awaitStop(patience, 79, "a recovery of it has not finished", "_backfill_")
	out, notes, code := p.runBinary(env, slices.Concat([]string{"backfill"}, where)...)
	if code != 0 || !strings.Contains(out, "continuing the recovery") || !strings.Contains(out, ": 0 rows are missing") {
		t.Fatalf("backfill, exit code %d:\n%s%s", code, out, notes)
	}
	p.awaitRecords(p.pending)
	p.startStreaming(env...)
	p.insert("order", "k7", 1+p.total, 100)
	p.awaitRecords(p.pending + 100)
	p.awaitSettled()
	is(t, "records", p.follow.records(), p.pending+100)
	p.outcome("%d records of the %d pending rows and of 100 later ones, none for the rows with a mark", p.pending+100, p.pending)
}

// Events are sent again by id, by key, by event type and by time, outside the order of the stream: without a position
// and with a mark.
func TestReplay(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.startStreaming(env...)
	o.insert("order", "a", 1, 30)
	o.insert("order", "b'\"", 31, 3)
	o.awaitArrived(patience)
	var id string
	must(t, o.admin.scan(`SELECT id::text FROM outbox WHERE n = 7`, &id))
	run := func(code int, want string, args ...string) {
		t.Helper()
		out, notes, got := o.runBinary(env, append([]string{"replay"}, args...)...)
		if got != code || !strings.Contains(out+notes, want) {
			t.Errorf("replay %v: exit code %d, want %d with %q:\n%s%s", args, got, code, want, out, notes)
		}
	}
	run(0, "1 event would be sent; nothing was sent", "--id", id, "--dry-run")
	run(0, "1 record of 1 sent", "--id", id)
	run(0, "3 records of 3 sent", "--key", "order/b'\"")
	run(0, "30 records of 30 sent", "--type", "added", "--key", "order/a", "--since", "1h", "--until", "1ms")
	run(1, "no row is selected", "--id", "00000000-0000-0000-0000-000000000000")
	run(2, "invalid input syntax for type uuid", "--id", "7")
	run(2, "--key order: write TYPE/ID", "--key", "order")
	run(2, "replay needs to know what", "--yes")
	run(2, "needs --until", "--since", "1h")
	_, sum := o.audit(env, 0, "--deep")
	if s := sum.Summary; s.Resent != 34 || s.Records != 33+34 || s.Delivered != 33 {
		t.Errorf("%+v", s)
	}
	out, _, _ := o.runBinary(env, "audit")
	says(t, out, "34 records were recovered, replayed or retried")
	o.insert("order", "c", 1, 1500)
	o.awaitArrived(patience)
	run(2, "1500 events are selected: more than 1000 need --yes", "--key", "order/c")
}

// A large gap is delivered at once, at tens of thousands of events per second, in little memory.
func TestRecoverLargeGap(t *testing.T) {
	t.Parallel()
	rows := fullOrShort(100_000, 20_000)
	o := newOutbox(t, options{pg: heavyPostgres(t), partitions: 6})
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT 'order', 'key-' || g % 100, 'added', jsonb_build_object('n', g / 100), g FROM generate_series(1, $1::int) g`, rows)
	began := time.Now()
	out := o.recover(append(env, "OUTBOXCDC_OUTBOX_ORDER=n"), 0)
	took := time.Since(began)
	t.Logf("%v: %s", took.Round(time.Millisecond), out)
	if want := fmt.Sprintf("%d records sent", rows); !strings.Contains(out, want) {
		t.Errorf("recover does not print %q", want)
	}
	o.startStreaming(env...)
	o.repeatsAtMost(o.verify(patience), 0, "the slot begins after them")
}

// A row without an id is asked about. It is known by its dead letter, which has its key and value, so that it is not
// sent again at each run.
func TestRecoverWithoutID(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := append(o.deduplicating(fence), "OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	o.makeTopic("dead", 1, nil)
	o.exec(`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey, ALTER COLUMN id DROP NOT NULL`)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(insertInto + `(NULL, 'order', 'k', 'added', '{}', '{}', 1), (gen_random_uuid(), 'order', 'k', 'added', '{}', '{}', 2)`)
	says(t, o.recover(env, 1), "1 row is not judged", "it has no id (NULL", "dropped again")
	says(t, o.recover(env, 0, "--unjudged=send"), "2 records sent")
	if out := o.recover(env, 0); !strings.Contains(out, "0 rows are missing") || strings.Contains(out, "not judged") {
		t.Errorf("a third run prints:\n%s", out)
	}
	o.audit(env, 0)
}
