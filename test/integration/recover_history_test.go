package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// A copy of the server for a test has the settings of production: recover asks, --yes is no answer, nothing is
// changed, and production goes on.
func TestRecoverOnClone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 5)
	copied := o.copyServer()
	r := o.startStreaming(env...)
	o.insert("order", "k", 6, 5)
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	clone := o.startCopy(copied)
	onClone := append(env, "OUTBOXCDC_POSTGRES_URL="+clone.URL(o.name, role, password))
	record := o.newestRecord()
	for _, args := range [][]string{{"recover"}, {"recover", "--yes"}, {"recover", "--dry-run"}} {
		out, notes, code := o.runBinary(onClone, args...)
		if !strings.Contains(out, "may be of another server, which is in use: ") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, notes)
		}
		if dry := args[len(args)-1] == "--dry-run"; !dry && (code != 1 || !strings.Contains(notes, "--this-server")) {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, notes)
		}
	}
	if now := o.newestRecord(); now != record && strings.Contains(now, `"adopted":true`) {
		t.Errorf("the position record is %s, before %s", now, record)
	}
	o.insert("order", "k", 11, 5)
	o.awaitArrived(patience)
	r.term()
	o.startStreaming(env...)
	o.insert("order", "k", 16, 5)
	o.repeatsOf(0)
}

// repeatsOf verifies, and expects so many repeats.
func (o *outbox) repeatsOf(n int) {
	o.t.Helper()
	if v := o.verify(patience); v.Repeats != n {
		o.t.Errorf("%d repeats, want %d", v.Repeats, n)
	}
}

// startCopy starts a server with a copied data directory.
func (o *outbox) startCopy(copied string) *pgtest.Server {
	o.t.Helper()
	dir, err := os.MkdirTemp("", "outboxcdc-clone-")
	must(o.t, err)
	o.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(o.t, os.Chmod(dir, 0o755))
	o.shell("mv", copied, filepath.Join(dir, "data"))
	clone, err := pgtest.Start(testContext(o.t), pgtest.Options{Major: o.pg.Major, Dir: dir})
	must(o.t, err)
	o.t.Cleanup(func() { _ = clone.Close() })
	return clone
}

// The server is restored from an older copy, without the WAL since, so that its timeline has a number that is lower
// than, or the same as, that of the lost history. recover and the daemon after it number on by the epoch: a consumer
// that compares positions takes each event of the new history.
func TestRecoverLowerTimeline(t *testing.T) {
	t.Parallel()
	for _, promotions := range []int{1, 2} {
		t.Run(fmt.Sprint(promotions, " promotions"), func(t *testing.T) {
			t.Parallel()
			recoverLowerTimeline(t, promotions)
		})
	}
}

func recoverLowerTimeline(t *testing.T, promotions int) {
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil), partitions: 1})
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 5)
	older := o.copyServer() // on timeline 1
	for range promotions {
		o.promoteAlone()
	}
	r := o.startStreaming(env...)
	o.insert("order", "k", 106, 5) // to be lost
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	lost := 5
	o.restoreWithoutArchive(older)
	if n := o.query(`SELECT timeline_id::text FROM pg_control_checkpoint()`); n != "2" && n != "1" { // the checkpoint may be that before the promotion
		t.Fatalf("timeline %s", n)
	}
	o.insert("order", "k", 6, 3)
	if promotions == 1 {
		o.skipWAL(3) // past what Kafka has
	}
	o.start(env...).awaitStop(patience, 79, "outboxcdc recover")
	if promotions > 1 { // otherwise the lost history has the same timeline, and only the stream tells them apart
		o.refusesOtherServer(env)
	}
	o.recover(env, 0, "--this-server")
	o.startStreaming(env...)
	o.insert("order", "k", 9, 20)
	o.awaitRecords(5 + lost + 23)
	o.awaitConfirmed(o.walFlushed(), patience)
	o.takenByPosition("k", 5+lost+23)
}

// takenByPosition expects that a consumer that compares positions takes each record of the key, in the order of its
// events, and that there are so many.
func (o *outbox) takenByPosition(key string, want int) {
	o.t.Helper()
	var last position
	var taken []string
	for _, r := range inOrder(o.readAll()) {
		if string(r.Key) != key {
			continue
		}
		p := positionOf(o, r)
		if last.commit != 0 && !last.precedes(p) {
			o.t.Errorf("the record at offset %d has the position %+v, after %+v", r.Offset, p, last)
		}
		last = p
		taken = append(taken, fmt.Sprintf("%d/%d: epoch %d, timeline %d, %s", r.Partition, r.Offset, p.epoch, p.timeline, p.commit))
	}
	if len(taken) != want {
		o.t.Errorf("%d records, want %d:\n%s", len(taken), want, strings.Join(taken, "\n"))
	}
}

func positionOf(o *outbox, r kafkatest.Record) position {
	o.t.Helper()
	text, _ := headerOf(r, "outboxcdc-position")
	p, err := parsePosition(text)
	must(o.t, err)
	return p
}

// A hot key: recover and backfill need no more memory for a key with many records than for any other.
func TestRecoverHotKey(t *testing.T) {
	t.Parallel()
	n := fullOrShort(600_000, 60_000)
	o := newOutbox(t, options{pg: heavyPostgres(t), partitions: 3})
	env := append(o.deduplicating(fence), "OUTBOXCDC_LOG_LEVEL=info")
	r := o.startStreaming(env...)
	const steps = 6
	for i := range steps {
		o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
			SELECT 'order', 'tenant-1', 'added', jsonb_build_object('n', g), g FROM generate_series($1::int, $2::int) g`, i*n/steps+1, (i+1)*n/steps)
	}
	o.awaitRecords(n)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "other", 1, 5)
	o.insert("order", "tenant-1", n+1, 5)
	c := o.startCommand(env, "recover", "--yes")
	peak := c.peakMemory()
	if code := c.wait(2 * patience); code != 0 || !strings.Contains(c.output(), "\n10 records sent") {
		t.Fatalf("recover: exit code %d\n%s", code, c.output())
	}
	if got := <-peak; got > 400<<20 {
		t.Errorf("recover has used %d MiB for %d records of a key", got>>20, n)
	} else {
		t.Logf("peak %d MiB", got>>20)
	}
	o.startStreaming(env...)
	o.repeatsOf(0)
}

// peakMemory watches the resident memory until the command ends.
func (c *command) peakMemory() <-chan int64 {
	peak := make(chan int64, 1)
	go func() {
		var most int64
		for {
			if n, err := highWater(c.cmd.Process.Pid); err == nil {
				most = max(most, n)
			}
			select {
			case <-c.ended:
				peak <- most
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return peak
}
