package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/child"
)

// F141: of many keys one in a hundred is poisonous: its first event fails, and others of it, until a person fixes them.
// Three processes share the partitions and the tries while they are killed and frozen, and while events are repeated.
// Each event has its effect once, no key's events change their order, and nothing is left in the tables.
func TestParkKills(t *testing.T) {
	keys, rounds := fullOrShort(100_000, 600), fullOrShort(3, 4)
	forClients(t, 4, func(t *testing.T, r *room) {
		kills := fullOrShort(map[string]int{"kgo": 100, "sarama": 50}[r.Client], 6)
		r.park(soon, inbox.Hold)
		r.Session, r.Idle, r.Parking = 2*time.Second, 3*time.Second, true
		began := time.Now()
		random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
		consumers := make([]*child.Process, 3)
		for i := range consumers {
			consumers[i] = r.startProcess(fmt.Sprint(i))
		}
		ctx, stopProducer := context.WithCancel(t.Context())
		defer stopProducer()
		sent, stored := 0, 0
		var producing sync.WaitGroup
		producing.Go(func() {
			for round := range rounds {
				for from := 0; from < keys && ctx.Err() == nil; from += 500 {
					var batch []*kgo.Record
					var failing []string
					for k := from; k < min(keys, from+500); k++ {
						rec := r.keyed(k%4, fmt.Sprint("k", k))
						if k%100 == 7 && (round == 0 || rand.N(3) == 0) {
							failing = append(failing, string(rec.Headers[0].Value))
						}
						batch = append(batch, rec)
					}
					r.exec(`INSERT INTO failing SELECT unnest($1::text[])`, failing)
					sent += len(batch)
					again := slices.Clone(batch[rand.N(len(batch)):]) // the daemon has crashed
					stored += len(batch) + len(again)
					r.produce(batch...)
					r.produce(again...)
				}
			}
		})
		progress := func() int { return scan[int](r, `SELECT count(*) FROM ledger`) + scan[int](r, parkedRecords) }
		for i := range kills {
			before, victim := progress(), random.IntN(len(consumers))
			if i%3 == 2 {
				must(t, consumers[victim].Freeze(t.Context()))
				time.Sleep(r.Session + time.Duration(random.IntN(2000))*time.Millisecond) // the fault
				must(t, consumers[victim].Thaw())
			} else {
				must(t, consumers[victim].Kill())
				consumers[victim] = r.startProcess(fmt.Sprint("again", i))
			}
			r.exec(`DELETE FROM failing WHERE random() < 0.05`)
			wait := time.Now().Add(fullOrShort(time.Second, 500*time.Millisecond))
			r.await(func() error {
				if progress() == before && time.Now().Before(wait) {
					return errors.New("nothing was handled since the fault")
				}
				return nil
			})
		}
		producing.Wait()
		parked := scan[int](r, parkedKeys)
		r.exec(`DELETE FROM failing`)
		r.startProcess("more")
		isDone := func() bool {
			return scan[int](r, `SELECT coalesce(sum(next_offset), 0) FROM inbox_marks`) == stored && scan[int](r, parkedKeys) == 0
		}
		for !isDone() { // as long as something happens
			before := progress()
			r.awaitMember(func() error {
				if progress() == before && !isDone() {
					return errors.New("nothing is handled any more")
				}
				return nil
			})
		}
		r.awaitCount(0, parkedRecords)
		if n := scan[int](r, `SELECT count(DISTINCT id) FROM ledger`); n != sent {
			t.Errorf("%d of %d events have an effect", n, sent)
		}
		if n := scan[int](r, `SELECT count(*) FROM ledger`); n != sent {
			t.Errorf("%d effects of %d events", n, sent)
		}
		inversions := scan[int](r, `SELECT count(*) FROM (SELECT event < lag(event) OVER (PARTITION BY (event - 1) % $1 ORDER BY n) AS isBefore
			FROM (SELECT substr(id, 2)::int AS event, n FROM ledger) l) o WHERE isBefore`, keys)
		if inversions != 0 {
			t.Errorf("%d inversions", inversions)
		}
		t.Logf("%d events of %d keys, %d faults, in %v; %d keys were parked at the end", sent, keys, kills, time.Since(began).Round(time.Second), parked)
	})
}
