package integration

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// F40: the server is restored from an older copy, after the daemon has delivered transactions that the copy lacks.
// recover brings what the copy has and Kafka lacks, the daemon then starts, and the audit names exactly the events of
// the lost transactions.
func TestRecoverOlderCopy(t *testing.T) {
	t.Parallel()
	for _, c := range []restoreCase{
		{name: "behind", done: "put back without a new timeline, its WAL ends before what Kafka has", slot: true, refuses: "it is an older copy"},
		{name: "grown", done: "put back without a new timeline, its WAL has grown past what Kafka has", slot: true, grows: true, refuses: "was delivered"},
		{name: "no slot", done: "put back without a new timeline and without its slot", refuses: "no logical slot of that name"},
		{name: "new timeline", done: "recovered to a point in time, on a new timeline, without its slot", timeline: true, refuses: "no logical slot of that name"},
		{name: "new timeline with slot", done: "recovered to a point in time, on a new timeline, with its slot", timeline: true, slot: true},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			recoverOlderCopy(t, c)
		})
	}
}

// restoreCase is a way to restore the server.
type restoreCase struct {
	name, done string
	slot       bool   // the copy has it
	grows      bool   // the WAL passes the lost transactions before the daemon starts
	timeline   bool   // archive recovery
	refuses    string // what the daemon prints; "": it does not stop, as after a failover
}

func recoverOlderCopy(t *testing.T, c restoreCase) {
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"wal_keep_size": "512MB"})})
	o.proves("F40", "an older copy of the server %s; then `recover`", c.done)
	env := o.deduplicating(fence)
	o.deliver(env, "order", "old", 1, 20)
	o.insert("order", "waits", 1, 10) // the copy's slot still has them
	older := o.copyServer()
	r := o.startStreaming(env...)
	o.insert("order", "kept", 1, 10) // after the copy, before the point in time
	o.awaitArrived(patience)
	o.exec(`SELECT pg_create_restore_point('kept')`)
	if !c.grows {
		o.skipWAL(2) // the restored server does not come so far in this test
	}
	o.insert("order", "lost", 1, 30)
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	had := o.ids()
	end := o.walFlushed()
	r.kill9()
	o.putBack(older, c.timeline)
	if !c.slot {
		o.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`)
	}
	lost := slices.DeleteFunc(had, func(id string) bool { return slices.Contains(o.ids(), id) })
	if want := map[bool]int{true: 30, false: 40}[c.timeline]; len(lost) != want {
		t.Fatalf("%d rows are lost, want %d", len(lost), want)
	}
	o.insert("order", "new", 1, 15) // the application goes on
	for c.grows && o.walFlushed() <= end {
		o.skipWAL(1)
	}
	if c.refuses != "" {
		o.start(env...).awaitStop(patience, 79, c.refuses, "outboxcdc recover")
	}

	o.refusesOtherServer(env)
	out := o.recover(env, 0, "--this-server")
	t.Log(out)
	sent := map[bool]string{true: ": 0 rows are missing", false: "15 records sent"}[c.slot]
	says(t, out, sent, "start the daemon")
	if written := strings.Contains(out, "position record written"); written != (c.refuses != "") {
		t.Errorf("recover has written a position record: %t:\n%s", written, out)
	}
	r = o.startStreaming(env...)
	o.insert("order", "new", 16, 10)
	o.awaitArrived(patience)
	r.kill9() // the next start recognizes what Kafka has of the new history
	o.startStreaming(env...)
	o.insert("order", "new", 26, 10)
	o.awaitHealed()
	o.awaitArrived(patience)
	o.awaitSettled()

	h := o.history()
	h.Records = slices.DeleteFunc(h.Records, func(rec kafkatest.Record) bool {
		id, _ := headerOf(rec, "id")
		return slices.Contains(lost, id)
	})
	v := h.judge()
	o.proof.setVerdict(v)
	must(t, v.err())
	repeats := 0
	if c.slot && c.refuses != "" {
		repeats = 10 // the slot of the copy has them, and after `recover` the daemon skips nothing that the old history has sent
	}
	o.repeatsAtMost(v, repeats, "what waits in the slot of the copy is sent again after a start with 79")
	findings, sum := o.audit(env, 1, "--deep")
	var phantoms []string
	for _, f := range findings {
		if f.Kind != "phantom" {
			t.Errorf("a finding: %+v", f)
			continue
		}
		phantoms = append(phantoms, f.ID)
	}
	slices.Sort(phantoms)
	slices.Sort(lost)
	if s := sum.Summary; !slices.Equal(phantoms, lost) || s.Delivered != s.Rows || s.Newer != 0 {
		t.Errorf("%d phantoms, want the %d lost events: %+v", len(phantoms), len(lost), s)
	}
	stops := "stops with 79 and starts after `recover`"
	if c.refuses == "" {
		stops = "starts, with or without `recover`"
	}
	o.outcome("the daemon %s; audit finds the %d events that were lost, and nothing else", stops, len(lost))
}

// After a crash of the daemon the slot is before what Kafka has. recover finds the last transaction of the position
// record in the stream, and leaves the record as it is: the daemon goes on skipping what Kafka has.
func TestRecoverSameHistory(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	r := o.startStreaming(append(env, "OUTBOXCDC_TUNING_STATUS_INTERVAL=1h")...) // the slot does not move
	for n := range 20 {
		o.insert("order", "k", 1+10*n, 10)
	}
	o.awaitArrived(patience)
	await(t, patience, "a position record of acknowledged events", func() error {
		if !strings.Contains(o.newestRecord(), `"acked":`) {
			return errors.New("it has none")
		}
		return nil
	})
	r.kill9()
	if out := o.recover(env, 0); !strings.Contains(out, "0 rows are missing") || strings.Contains(out, "position record written") {
		t.Errorf("recover prints:\n%s", out)
	}
	o.startStreaming(env...)
	o.insert("order", "k", 201, 10)
	o.repeatsAtMost(o.verify(patience), 0, "the position record says what Kafka has")
}

// F35: the rows are restored from a dump on a server of another system identifier. Records of the former server are
// theirs.
func TestRecoverDump(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F35", "the rows restored from a dump on a new server, of which 10 were not delivered; then `recover`")
	env := o.deduplicating(fence)
	o.deliver(env, "order", "old", 1, 20)
	o.insert("order", "waits", 1, 10)
	former := &session{url: o.admin.url}
	defer former.close()
	var dump string
	must(t, former.scan(`SELECT json_agg(o)::text FROM outbox o`, &dump))

	o.pg = ownPostgres(t, defaultMajor, nil)
	must(t, o.pg.Exec(testContext(t), "postgres", "CREATE DATABASE "+o.name))
	o.admin.close()
	o.admin.url = o.pg.SuperURL(o.name)
	o.setUp(options{})
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name) // a slot that is older than the rows would have all of them
	o.exec(`INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::outbox, $1::json)`, dump)
	o.exec(`SELECT setval(pg_get_serial_sequence('outbox', 'seq'), (SELECT max(seq) FROM outbox))`)
	o.start(env...).awaitStop(patience, 79, "no logical slot of that name", "outboxcdc recover")
	o.refusesOtherServer(env)
	says(t, o.recover(env, 0, "--this-server"), "\n10 records sent", "position record written")
	o.startStreaming(env...)
	o.insert("order", "new", 1, 10)
	o.repeatsAtMost(o.verify(patience), 0, "the records of the former server count")
	if _, sum := o.audit(env, 0); sum.Summary.Delivered != 40 {
		t.Errorf("%+v", sum.Summary)
	}
	o.outcome("the daemon stops with 79 and starts after `recover`")
}

// refusesOtherServer expects that recover asks whether this server replaces that of the position record, that --yes
// is no answer, and that nothing is changed.
func (o *outbox) refusesOtherServer(env []string) {
	o.t.Helper()
	record, records, slots := o.newestRecord(), len(o.readAll()), o.slotsNow()
	out := o.recover(env, 1)
	says(o.t, out, "the position record of slot "+o.name+" may be of another server, which is in use: ", "nothing was changed", "--this-server")
	if o.newestRecord() != record || len(o.readAll()) != records || o.slotsNow() != slots {
		o.t.Errorf("recover has changed something: slots %q, before %q:\n%s", o.slotsNow(), slots, out)
	}
}

// slotsNow describes the daemon's slot and the recovery slot.
func (o *outbox) slotsNow() string {
	o.t.Helper()
	return o.query(`SELECT coalesce(string_agg(slot_name || ' ' || confirmed_flush_lsn, ', ' ORDER BY slot_name), '') FROM pg_replication_slots WHERE starts_with(slot_name, '` + o.name + `')`)
}

// ids returns the ids of all rows.
func (o *outbox) ids() (ids []string) {
	o.t.Helper()
	for _, r := range o.truth() {
		ids = append(ids, r.ID)
	}
	return ids
}

// skipWAL advances the WAL by segments.
func (o *outbox) skipWAL(segments int) {
	o.t.Helper()
	for range segments {
		o.exec(`SELECT pg_logical_emit_message(false, 'unread', 'x')`) // an empty segment is not left
		o.exec(`SELECT pg_switch_wal()`)
	}
}

// copyServer copies the data directory of the stopped server, and starts the server again.
func (o *outbox) copyServer() (dir string) {
	o.t.Helper()
	ctx := testContext(o.t)
	_, err := o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	dir = o.pg.DataDir + ".old"
	o.shell("cp", "-a", o.pg.DataDir, dir)
	must(o.t, o.pg.StartAgain(ctx))
	return dir
}

// putBack replaces the data directory by a copy. With a timeline, the server recovers to the restore point "kept".
func (o *outbox) putBack(older string, timeline bool) {
	o.t.Helper()
	ctx := testContext(o.t)
	_, err := o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	o.admin.close()
	lost := o.pg.DataDir + ".lost"
	o.shell("mv", o.pg.DataDir, lost)
	o.shell("mv", older, o.pg.DataDir)
	if !timeline {
		must(o.t, o.pg.StartAgain(ctx))
		return
	}
	must(o.t, o.pg.AppendConf("restore_command = 'cp "+lost+"/pg_wal/%f %p'", "recovery_target_name = 'kept'", "recovery_target_action = 'promote'"))
	must(o.t, os.WriteFile(o.pg.DataDir+"/recovery.signal", nil, 0o644))
	must(o.t, o.pg.StartAgain(ctx))
	o.awaitPromoted()
}

// awaitPromoted waits until the server is a primary.
func (o *outbox) awaitPromoted() {
	o.t.Helper()
	await(o.t, patience, "the recovery to end", func() error {
		var recovers bool
		if err := o.admin.scan("SELECT pg_is_in_recovery()", &recovers); err != nil || recovers {
			return errors.Join(err, errors.New("it is in recovery"))
		}
		return nil
	})
}

func (o *outbox) shell(name string, args ...string) {
	o.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		o.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}
