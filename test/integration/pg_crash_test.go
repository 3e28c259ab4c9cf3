package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// The server stops in every possible way, and starts again. It forgets confirmed positions, because it saves a slot
// only at checkpoints; the daemon lives on, remembers, and repeats nothing.

// daemonRemembers is the reason why no row of this file may repeat anything.
const daemonRemembers = "the daemon lives and remembers what it delivered"

// crash stops the server at once, as a power cut does to its processes, and starts it again.
func (o *outbox) crash() {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := o.pg.Stop(ctx, pgtest.Immediate)
	must(o.t, err)
	must(o.t, o.pg.StartAgain(ctx))
}

// crashRepeatedly crashes the server repeatedly under load.
func (o *outbox) crashRepeatedly(w *writer, rnd *rand.Rand, rounds int) {
	o.t.Helper()
	for left := rounds - 1; left >= 0; left-- {
		w.awaitCommits(100 + rnd.Int64N(200))
		o.crash()
		o.awaitRecovery(w, rnd, left)
	}
}

// awaitRecovery waits for the end of a fault: sometimes only for the first record, so that the next fault meets a
// session that reads delivered events again, and in the last round, when left is 0, until everything is delivered.
func (o *outbox) awaitRecovery(w *writer, rnd *rand.Rand, left int) {
	o.t.Helper()
	if left > 0 && rnd.IntN(2) == 0 {
		w.awaitDelivered(1)
		return
	}
	o.awaitHealed()
}

// skippedResends counts the events that the server sent again and the daemon skipped.
func (r *relay) skippedResends() int {
	r.t.Helper()
	m, err := r.metrics()
	must(r.t, err)
	return int(m[`outboxcdc_events_skipped_total{reason="already_delivered"}`])
}

// A fast stop and a start, of every version: the server waits for its walsender and so for the daemon, which must not
// take long. There are two daemons: one lives on; the other is stopped for the last restart. From 17 on the server
// saves the slot before it ends, so a new process repeats nothing either; before 17 it repeats what was confirmed since
// the slot was last saved, as after a crash.
func TestPostgresRestarted(t *testing.T) {
	t.Parallel()
	for _, major := range fullOrShort(pgtest.Majors(), []string{"16", "17"}) {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			rounds := fullOrShort(8, 1)
			rnd := newRand(t)
			o := newOutbox(t, options{pg: ownPostgres(t, major, nil)})
			o.proves("F23", "Postgres restarted (fast) under load %d times, Kafka available", rounds)
			o.sample()
			stopped := newOutbox(t, options{pg: o.pg})
			stopped.proves("F23", "the daemon stopped, Postgres restarted (fast), the daemon started: a new process")
			stopped.sample()

			first := stopped.startStreaming()
			w := o.write(load{rand: rnd})
			o.startStreaming()
			for left := rounds - 1; left >= 0; left-- {
				w.awaitCommits(100 + rnd.Int64N(200))
				if left == 0 {
					stopped.insert("order", "k", 1, 200)
					stopped.awaitConfirmed(stopped.walFlushed(), patience)
					first.term()
				}
				o.restart()
				o.awaitRecovery(w, rnd, left)
			}
			before := first.confirmed
			first.confirmed = stopped.confirmed() // the starting point of a new process
			stopped.startStreaming()
			stopped.insert("order", "k", 201, 200)
			stopped.awaitHealed()
			w.stop()
			o.repeatsAtMost(o.verify(patience), 0, daemonRemembers)

			v := stopped.verify(patience)
			stopped.boundRepeats(v)
			forgotten := 0
			for _, p := range v.at {
				if p.commit >= first.confirmed && p.commit < before {
					forgotten++
				}
			}
			n, err := strconv.Atoi(major)
			must(t, err)
			if n >= 17 {
				stopped.repeatsAtMost(v, 0, "17 and later save the slot before they end")
			} else {
				stopped.repeatsAtMost(v, forgotten, "the events confirmed but not saved: before 17 a slot is saved at checkpoints only if that frees WAL")
			}
		})
	}
}

// restart is a fast stop, which must not take long while Kafka is fine, and a start.
func (o *outbox) restart() {
	o.t.Helper()
	const most = 10*time.Second + busyAllowance
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	took, err := o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	if took > most {
		o.t.Errorf("the fast stop took %v, more than %v", took, most)
	}
	must(o.t, o.pg.StartAgain(ctx))
}

// A kill -9 of a walsender makes the postmaster end all connections and recover from its WAL.
func TestWalsenderKilled(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(10, 2)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F24", "walsender killed (-9) under load %d times: the server recovers from a crash each time", rounds)
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming()
	for left := rounds - 1; left >= 0; left-- {
		w.awaitCommits(100 + rnd.Int64N(200))
		var pid int
		await(t, patience, "a walsender to be killed", func() error { // it may end by itself before the signal
			if err := o.admin.scan(o.slotSQL("active_pid"), &pid); err != nil {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		})
		await(t, patience, "the server to be back", func() error {
			var other bool
			err := o.admin.scan(o.slotSQL("active_pid IS DISTINCT FROM "+strconv.Itoa(pid)), &other)
			if err == nil && !other {
				err = errors.New("it has not noticed yet")
			}
			return err
		})
		o.awaitRecovery(w, rnd, left)
	}
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, daemonRemembers)
	if n := o.serverLogged("terminating any other active server processes"); n != rounds {
		t.Errorf("the server recovered %d times, want %d", n, rounds)
	}
	o.outcome("%d events sent again by the server, skipped by the daemon", r.skippedResends())
}

// serverLogged counts the lines of the server's log that contain these words.
func (o *outbox) serverLogged(words string) (n int) {
	o.t.Helper()
	b, err := os.ReadFile(o.pg.LogFile)
	must(o.t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

// Checkpoints and new WAL segments without a pause, so that the server removes all WAL that it considers unneeded, and
// crashes in between, after which the slot needs the WAL from its last saved position.
func TestCheckpointStormAndCrashes(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(10, 2)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_recycle": "off"})})
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming()
	storm := startStorm(o)
	o.proves("F26", "checkpoints and new WAL segments without a pause under load, Postgres stopped immediately %d times", rounds)
	o.crashRepeatedly(w, rnd, rounds)
	await(t, patience, "checkpoints enough to prove something", func() error {
		if n := storm.count.Load(); n < int64(5*rounds) {
			return fmt.Errorf("%d", n)
		}
		return o.checkRelays()
	})
	w.stop()
	checkpoints := storm.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, daemonRemembers)
	if n := o.serverLogged("has already been removed"); n != 0 {
		t.Errorf("the server logged %d times that a WAL segment has been removed", n)
	}
	o.outcome("%d checkpoints; no WAL segment was missing; %d events sent again by the server, skipped by the daemon", checkpoints, r.skippedResends())
}

// checkpointStorm requests checkpoints and new WAL segments until it is stopped. The server may be away meanwhile.
type checkpointStorm struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
	count  atomic.Int64
}

func startStorm(o *outbox) *checkpointStorm {
	ctx, cancel := context.WithCancel(context.Background())
	s := &checkpointStorm{cancel: cancel}
	s.ended.Go(func() {
		for ctx.Err() == nil {
			if err := o.pg.Exec(ctx, o.name, `CHECKPOINT`, `SELECT pg_switch_wal()`); err == nil {
				s.count.Add(1)
				continue
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond): // a pause between requests
			}
		}
	})
	o.t.Cleanup(func() { s.stop() })
	return s
}

func (s *checkpointStorm) stop() (checkpoints int64) {
	s.cancel()
	s.ended.Wait()
	return s.count.Load()
}

// Commits that do not wait for the disk, and crashes: the server loses some of them although it reported success. Lost
// rows must not be in Kafka, all others must be.
func TestAsynchronousCommitsLost(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(10, 3)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"wal_writer_delay": "400ms", "wal_writer_flush_after": "1GB"})})
	o.exec(`ALTER DATABASE ` + o.name + ` SET synchronous_commit = off`)
	o.proves("F27", "writers with synchronous_commit=off, Postgres stopped immediately %d times", rounds)
	o.sample()
	w := o.write(load{rand: rnd})
	o.startStreaming()
	o.crashRepeatedly(w, rnd, rounds)
	for more := 0; w.countLost() == 0 && more < 20; more++ { // a crash loses something only by chance
		o.crashRepeatedly(w, rnd, 1)
	}
	w.stop()
	lost := w.forgetLost()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, daemonRemembers)
	if lost == 0 {
		t.Error("the server lost no commit: this run proved nothing")
	}
	o.outcome("the server lost %d events whose commit had succeeded; none is in Kafka", lost)
}

// countLost counts the rows whose commit succeeded and which the table does not have. The writer may continue
// meanwhile.
func (w *writer) countLost() int {
	w.o.t.Helper()
	w.mu.Lock()
	committed := slices.Clone(w.committed)
	w.mu.Unlock()
	there := w.tableIDs()
	return len(slices.DeleteFunc(committed, func(id string) bool { return there[id] }))
}

// tableIDs returns the ids of the table's rows.
func (w *writer) tableIDs() map[string]bool {
	w.o.t.Helper()
	there := map[string]bool{}
	for _, r := range w.o.truth() {
		there[r.ID] = true
	}
	return there
}

// forgetLost removes the rows that the server lost from the expectation, and returns their number. Only for servers
// that may lose commits.
func (w *writer) forgetLost() (lost int) {
	w.o.t.Helper()
	there := w.tableIDs()
	gone := func(id string) bool { return !there[id] }
	w.mu.Lock()
	defer w.mu.Unlock()
	before := len(w.committed)
	w.committed = slices.DeleteFunc(w.committed, gone)
	l := &w.o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits = slices.DeleteFunc(l.commits, func(c commit) bool { return slices.ContainsFunc(c.IDs, gone) })
	return before - len(w.committed)
}
