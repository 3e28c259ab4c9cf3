package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// startProcess starts the room's consumer as a process of its own.
func (r *room) startProcess(name string) *child.Process {
	r.t.Helper()
	text, err := json.Marshal(r.consumer)
	must(r.t, err)
	log := filepath.Join(r.t.TempDir(), name)
	p, err := child.Start(child.Spec{Path: os.Args[0], Env: append(os.Environ(), consumerEnv+"="+string(text)), LogFile: log})
	must(r.t, err)
	r.t.Cleanup(func() {
		exited := p.Exited()
		_ = p.Kill()
		if r.t.Failed() {
			r.t.Logf("consumer %s, ended before: %v\n%s", name, exited, child.Tail(log))
		}
	})
	return p
}

// F130: three consumer processes share the partitions while they are killed, frozen until the group has given their
// partitions away, stopped and started, and their Postgres backends are terminated. The daemon repeats events
// meanwhile. Each event has its effect once.
func TestInboxKills(t *testing.T) {
	forClients(t, 4, func(t *testing.T, r *room) {
		r.Session, r.Idle, r.Pause = 2*time.Second, 3*time.Second, 2*time.Millisecond
		random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
		consumers := make([]*child.Process, 3)
		for i := range consumers {
			consumers[i] = r.startProcess(fmt.Sprint(i))
		}

		// The producer runs beside the faults, and not ahead of slow consumers.
		ctx, stopProducer := context.WithCancel(t.Context())
		var sent []string
		var producing sync.WaitGroup
		producing.Go(func() {
			var produced, handled int
			for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
				// After an error, which is one of the faults, the last number counts.
				_ = r.pool.QueryRow(ctx, `SELECT coalesce(sum(next_offset), 0)::int FROM inbox_marks`).Scan(&handled)
				if produced-handled > 500 {
					continue
				}
				batch := r.events(100, 4)
				sent = append(sent, idsOf(batch)...)
				repeated := slices.Clone(batch[rand.N(100):]) // the daemon has crashed
				r.produce(repeated...)
				produced += len(batch) + len(repeated)
			}
		})
		defer producing.Wait()
		defer stopProducer()

		var frozen int
		for round := range fullOrShort(40, 5) {
			progress := scan[int64](r, `SELECT coalesce(sum(next_offset), 0) FROM inbox_marks`)
			i := random.IntN(len(consumers))
			switch round % 4 {
			case 0:
				must(t, consumers[i].Kill())
				consumers[i] = r.startProcess(fmt.Sprint("again", random.Uint32()))
			case 1:
				frozen++
				must(t, consumers[i].Freeze(t.Context()))
				time.Sleep(r.Session + time.Duration(random.IntN(2000))*time.Millisecond)
				must(t, consumers[i].Thaw())
			case 2:
				r.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.7`)
				r.pool.Reset() // the producer's connection is one of them
			case 3:
				must(t, consumers[i].Signal(syscall.SIGTERM)) // it leaves its group; SIGINT is ignored behind &
				_ = consumers[i].Wait(t.Context())
				consumers[i] = r.startProcess(fmt.Sprint("again", random.Uint32()))
			}
			r.awaitMember(func() error {
				if at := scan[int64](r, `SELECT coalesce(sum(next_offset), 0) FROM inbox_marks`); at <= progress {
					return fmt.Errorf("no record was handled since the fault: %d", at)
				}
				return nil
			})
		}
		stopProducer()
		producing.Wait()
		r.startProcess("more")
		r.awaitMember(r.isAtEnd())
		r.checkLedger(sent...)
		var want int
		for _, id := range sent {
			want += len(id)
		}
		if got := scan[int](r, `SELECT sum(amount) FROM ledger`); got != want {
			t.Errorf("the sum of the ledger is %d, want %d", got, want)
		}
		t.Logf("%d events, %d times frozen", len(sent), frozen)
	})
}

// F130: a process that is frozen in a transaction holds the lock of its partition. Its successor does not wait longer
// than IdleLimit, and when the frozen process continues, its transaction has no effect.
func TestInboxFrozen(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.Session, r.Idle, r.Pause = 2*time.Second, 2*time.Second, 20*time.Millisecond
		var sent []string
		frozen := r.startProcess("frozen")
		inTransaction := `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'INSERT INTO ledger%'`
		for isFrozen := false; !isFrozen; { // a transaction can end before the process is frozen
			must(t, frozen.Thaw())
			r.awaitEnd()
			before := len(sent)
			sent = append(sent, idsOf(r.events(100, 1))...)
			r.await(func() error {
				if scan[int](r, inTransaction) == 0 {
					return errors.New("no consumer is in a transaction")
				}
				return nil
			})
			must(t, frozen.Freeze(t.Context()))
			isFrozen = scan[int](r, `SELECT count(*) FROM ledger`) == before
		}
		r.startProcess("successor")
		r.awaitEnd()
		must(t, frozen.Thaw())
		sent = append(sent, idsOf(r.events(100, 1))...)
		r.awaitEnd()
		r.checkLedger(sent...)
	})
}
