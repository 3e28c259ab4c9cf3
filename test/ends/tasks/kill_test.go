package tasks

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// kills is how many processes TestTasksKilled kills: few by default, 200 in full length, and any number with
// OUTBOXCDC_TEST_KILLS.
func kills(t *testing.T) int {
	if text := os.Getenv("OUTBOXCDC_TEST_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		return n
	}
	if os.Getenv("OUTBOXCDC_PROVE") != "" {
		return 200
	}
	return 6
}

// F143: consumers and workers are killed while the daemon delivers events, some of them twice. Each event becomes one
// job, each job is completed, and each has its effect once.
func TestTasksKilled(t *testing.T) {
	const partitions = 4
	r := newRoom(t, partitions)
	roles := []string{"consumer", "consumer", "worker", "worker", "worker"}
	progress := map[string]string{"consumer": `SELECT count(*) FROM river_job`, "worker": `SELECT count(*) FROM effects`}
	procs := make([]*child.Process, len(roles))
	for i, role := range roles {
		procs[i] = r.start(role)
	}
	stop := make(chan struct{})
	var producing sync.WaitGroup
	producing.Go(func() {
		for tick := time.Tick(50 * time.Millisecond); ; {
			if len(r.events)-scan[int](r, `SELECT count(*) FROM effects`) < 300 { // the backlog on a slow machine
				batch := r.newEvents(10, partitions, report{})
				r.produce(append(batch, batch[rand.IntN(10):]...)...)
			}
			select {
			case <-tick:
			case <-stop:
				return
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); producing.Wait() })
	defer end()

	n := kills(t)
	for range n {
		i := rand.IntN(len(procs))
		before := scan[int](r, progress[roles[i]])
		must(t, procs[i].Kill())
		procs[i] = r.start(roles[i])
		// kfake keeps the partitions of a member that was killed during a rebalance until the next one. Kafka does not.
		more := time.Now().Add(20 * time.Second)
		r.awaitUntil(func() error {
			if time.Now().After(more) {
				r.start(roles[i])
				more = more.Add(patience)
			}
			if now := scan[int](r, progress[roles[i]]); now <= before {
				return fmt.Errorf("no progress since a %s was killed: %d", roles[i], now)
			}
			return nil
		})
	}
	end()
	r.start("consumer")
	sent := len(r.events)
	r.await(sent, `SELECT count(*) FROM river_job`)
	r.await(sent, `SELECT count(*) FROM river_job WHERE state = 'completed'`)
	if got := scan[int](r, `SELECT count(DISTINCT args ->> 'event_id') FROM river_job`); got != sent {
		t.Errorf("%d events have become jobs, want %d", got, sent)
	}
	if got, total := scan[int](r, `SELECT count(*) FROM effects`), scan[int](r, `SELECT n FROM total`); got != sent || total != sent {
		t.Errorf("%d effects of %d events, want %d", total, got, sent)
	}
	t.Logf("%d kills, %d events, %d attempts, %d of them after a rescue", n, sent, scan[int](r, `SELECT count(*) FROM attempts`), scan[int](r, `SELECT count(*) FROM attempts WHERE attempt > 1`))
}

// F143: a worker is frozen for so long that its job is rescued, and another one completes it. When the first one
// continues, River may let it complete the job, too: only the event's id in the table of effects keeps it from a second
// effect.
func TestTaskFrozen(t *testing.T) {
	r := newRoom(t, 1)
	r.start("consumer")
	release := r.hold()
	first := r.start("worker")
	r.produce(r.newEvents(1, 1, report{Waits: true})...)
	// Frozen before it asks for the lock, it would take the lock when it continues, and wait for nothing.
	r.await(1, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND mode = 'ShareLock' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	must(t, first.Freeze(t.Context()))
	release()
	r.start("worker")
	r.await(1, `SELECT count(*) FROM effects`)
	must(t, first.Thaw())
	r.await(2, `SELECT least(count(*), 2) FROM endings`)
	r.await(1, `SELECT count(*) FROM river_job WHERE state = 'completed' AND attempt > 1`)
	if n := scan[int](r, `SELECT n FROM total`); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}
