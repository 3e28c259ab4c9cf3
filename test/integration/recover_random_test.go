package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Losses of the slot in a random order, under load, with an orchestrator that starts the daemon again and again:
// whatever has happened, and however often recover and the daemon are killed meanwhile, `recover` until it exits with
// 0 is all that an operator has to do. OUTBOXCDC_TEST_LOSSES is the number of losses in each mode on each version of
// Postgres; without it, there are few, on one.
func TestRecoverRandomLosses(t *testing.T) {
	t.Parallel()
	losses, versions := fullOrShort(20, 4), fullOrShort(pgtest.Majors(), []string{defaultMajor})
	if text := os.Getenv("OUTBOXCDC_TEST_LOSSES"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		losses, versions = n, pgtest.Majors()
	}
	for _, major := range versions {
		t.Run(major, func(t *testing.T) {
			for _, mode := range []string{"deduplicated", "at_least_once"} {
				t.Run(mode, func(t *testing.T) {
					t.Parallel()
					loseAtRandom(t, major, mode, losses)
				})
			}
		})
	}
}

func loseAtRandom(t *testing.T, major, mode string, losses int) {
	kinds := []string{"dropped", "lost", "advanced", "recreated"}
	if mode == "at_least_once" { // a new process that delivers at least once remembers nothing, so it does not notice the other losses
		kinds, losses = kinds[:2], losses/2
	}
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, major, map[string]string{"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB"})})
	o.proves("F98", "%d losses of the slot in a random order under load, with kill -9 of `recover` and of the daemon, beside an orchestrator, PostgreSQL %s, %s", losses, major, mode)
	env := append(o.modes()[mode], "OUTBOXCDC_OUTBOX_ORDER=n")
	l := &losing{outbox: o, rnd: rnd, env: env, s: o.supervise(env), w: o.write(load{rand: rnd, pause: 20 * time.Millisecond})}
	l.w.awaitDelivered(20)
	for i := range losses {
		kind := kinds[i%len(kinds)]
		if i >= len(kinds) {
			kind = kinds[rnd.IntN(len(kinds))]
		}
		l.lose(kind)
		l.recoverAtLast()
		l.w.awaitDelivered(20)
		if rnd.IntN(3) == 0 {
			l.s.kill()
		}
	}
	l.w.stop()
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	l.s.stop()
	v := o.check()
	if mode == "deduplicated" {
		o.repeatsAtMost(v, 0, "neither recover nor the daemon sends what Kafka has")
	} else {
		o.repeatsAtMost(v, v.Rows*losses, "kills of the daemon repeat what it had not confirmed")
	}
	if _, sum := o.audit(env, 0, "--deep"); sum.Summary.Delivered != sum.Summary.Rows {
		t.Errorf("audit: %+v", sum.Summary)
	}
	t.Logf("%d losses, recover killed %d times and run again %d times because the slot was in use; %d rows, %d repeats", losses, l.kills, l.again, v.Rows, v.Repeats)
	o.outcome("nothing missing, order as committed; `recover` was killed %d times", l.kills)
}

// losing is an outbox whose slot is lost again and again.
type losing struct {
	*outbox
	rnd *rand.Rand
	env []string
	s   *supervisor
	w   *writer

	kills, again int
}

// lose loses events that wait in the slot, and waits until a daemon has refused to go on.
func (l *losing) lose(kind string) {
	l.t.Helper()
	sig := syscall.SIGKILL
	if l.rnd.IntN(2) == 0 {
		sig = syscall.SIGTERM
	}
	resume := l.s.pause(sig)
	l.w.awaitCommits(1 + l.rnd.Int64N(40))
	switch kind {
	case "dropped":
		l.exec(`SELECT pg_drop_replication_slot($1)`, l.name)
	case "lost":
		awaitLost(l.outbox)
	case "advanced":
		l.exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, l.name)
	case "recreated":
		l.exec(`SELECT pg_drop_replication_slot($1)`, l.name)
		l.w.awaitCommits(1 + l.rnd.Int64N(10))
		l.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, l.name)
	}
	l.w.awaitCommits(l.rnd.Int64N(20))
	resume()
	l.s.awaitCode(79, 1)
}

// recoverAtLast runs recover until it exits with 0, after it was killed a few times.
func (l *losing) recoverAtLast() {
	l.t.Helper()
	for range l.rnd.IntN(3) {
		c := l.startCommand(l.env, "recover", "--yes", "--rate", "100")
		select { // the moment is random
		case <-time.After(time.Duration(l.rnd.Int64N(int64(2500 * time.Millisecond)))):
			l.kills++
		case <-c.ended:
		}
		_ = c.cmd.Process.Kill()
		<-c.ended
		l.awaitNoCommand()
		if l.rnd.IntN(2) == 0 {
			l.s.kill()
		}
	}
	var count func() (written, arrived int)
	await(l.t, patience, "recover to end with 0", func() error {
		if count != nil {
			if _, arrived := count(); arrived > 0 { // one of those that were killed had done everything: a daemon delivers
				return nil
			}
		}
		out, notes, code := l.runBinary(l.env, "recover", "--yes")
		switch {
		case code == 0:
			return nil
		case code == 1 && strings.Contains(notes, "is active for PID"): // a daemon that has not yet refused, or need not refuse
			l.again++
			if count == nil {
				count = l.w.countFromNow()
			}
			return fmt.Errorf("%s%s", out, notes)
		}
		return &finalError{fmt.Errorf("recover: exit code %d\n%s%s", code, out, notes)}
	})
}
