package inbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// uuids returns n records of a server with random ids.
func uuids(n int, header func(i int) []string) (records []*kgo.Record) {
	for i := range n {
		records = append(records, headed(0, uuid.NewString(), header(i)...))
	}
	return records
}

// of is a record with a key and a value of its own, and the position of a database or the headers of a command.
func of(id, value string, headers ...string) *kgo.Record {
	rec := headed(0, id, headers...)
	rec.Key, rec.Value = []byte("key"), []byte(value)
	return rec
}

func at(system uint64, database int, history string) []string {
	return []string{"outboxcdc-position", fmt.Sprintf("2:%d:%d:%s", system, database, history)}
}

// handleAll produces records while a consumer runs, and waits until it has handled them.
func (r *room) handleAll(batches ...[]*kgo.Record) {
	r.t.Helper()
	stop := r.start(r.ledger)
	for _, records := range batches {
		r.produce(slices.Clone(records)...)
	}
	r.awaitEnd()
	must(r.t, stop())
}

// TestInboxRepeats (F135): whatever sends an event again, and in whatever order, its effect happens once. None of these
// needs a setting.
func TestInboxRepeats(t *testing.T) {
	const n = 100
	for name, repeat := range map[string]func(i int) (first, again []string){
		"two slots of a database": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("a:0:1:%016x:0", 100+i)), at(7, 5, fmt.Sprintf("b:3:1:%016x:1", 100+i))
		},
		"a failover": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:1:3:%016x:0", 1000+i)), at(7, 5, fmt.Sprintf("s:2:4:%016x:0", 1000+i))
		},
		"a restore onto a lower timeline": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", 1000+i)), at(7, 5, fmt.Sprintf("s:3:2:%016x:0", 10+i))
		},
		"recover": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", 1000+i)), append(at(7, 5, fmt.Sprintf("s:2:3:%016x:%d", 9, i)), inbox.Recovered, "run")
		},
		"replay": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", 1000+i)), []string{inbox.Replayed, "run", "outboxcdc-origin", "7:5"}
		},
		"dlq retry": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", 1000+i)), []string{inbox.Retried, "dead:0:1", "outboxcdc-origin", "7:5"}
		},
		"no position":                       func(int) (first, again []string) { return nil, nil },
		"positions that are no longer sent": func(i int) (first, again []string) { return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", i)), nil },
		"pg_upgrade, with a random id (uuid)": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", i)), at(8, 5, "s:0:1:0000000000000001:0")
		},
		"another database, with a random (uuid)": func(i int) (first, again []string) {
			return at(7, 5, fmt.Sprintf("s:2:3:%016x:0", i)), at(8, 6, "s:0:1:0000000000000001:0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			forClients(t, 2, func(t *testing.T, r *room) {
				var firsts, agains []*kgo.Record
				for i := range n {
					id := fmt.Sprint(i)
					if len(name) > 6 && name[len(name)-6:] == "(uuid)" {
						id = uuid.NewString()
					}
					first, again := repeat(i)
					firsts, agains = append(firsts, headed(0, id, first...)), append(agains, headed(i%2, id, again...)) // its key has moved
				}
				slices.Reverse(agains)
				r.handleAll(firsts[:60], agains[50:], firsts[60:], agains[:70], firsts[:10])
				r.checkLedger(idsOf(firsts)...)
			})
		})
	}
}

// TestInboxNewAfterRestore: events of a restored server have lower timelines and LSNs, and are new.
func TestInboxNewAfterRestore(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		before := uuids(100, func(i int) []string { return at(7, 5, fmt.Sprintf("s:0:3:%016x:0", 0x3000000+i)) })
		after := uuids(100, func(i int) []string { return at(7, 5, fmt.Sprintf("s:0:2:%016x:0", 0x2000000+i)) })
		r.handleAll(before, after, before[90:], after[:70])
		r.checkLedger(idsOf(slices.Concat(before, after))...)
	})
}

// TestInboxReused (F136): an id that may be used again, and is. The consumer stops, with the records before it handled,
// and goes on as Store.Reused says.
func TestInboxReused(t *testing.T) {
	first := of("5", "a", at(7, 5, "s:1:3:0000000000000100:0")...)
	for name, c := range map[string]struct {
		again  *kgo.Record
		differ string
	}{
		"another database of the server":     {of("5", "a", at(7, 6, "s:1:3:0000000000000100:0")...), `origin "7:6"`},
		"another server, or an upgrade":      {of("5", "a", at(8, 5, "s:1:3:0000000000000100:0")...), `origin "8:5"`},
		"a sequence that has gone back":      {of("5", "b", at(7, 5, "s:2:2:0000000000000050:0")...), "another key or value"},
		"replay of the other database":       {of("5", "a", inbox.Replayed, "run", "outboxcdc-origin", "7:6"), `origin "7:6"`},
		"recover after a sequence went back": {of("5", "b", append(at(7, 5, "s:2:2:0000000000000050:0"), inbox.Recovered, "run")...), "another key or value"},
		"no origin, another content":         {of("5", "b"), "another key or value"},
	} {
		t.Run(name, func(t *testing.T) {
			forClients(t, 1, func(t *testing.T, r *room) {
				events := r.events(3, 1)
				r.handleAll([]*kgo.Record{first}, []*kgo.Record{of("5", "a", at(7, 5, "t:9:9:0000000000000100:7")...)})
				more := r.events(3, 1)
				r.produce(c.again)
				var reused *inbox.ReusedIDError
				r.runUntilError(&reused, r.ledger, c.differ, `id "5"`, "HandleReused", "DropReused", r.Group, r.Topic, "offset 8")
				handled := append(idsOf(slices.Concat(events, more)), "5")
				r.checkLedger(handled...)

				r.Store.Reused = inbox.DropReused
				r.handleAll()
				r.checkLedger(handled...)

				// Another consumer takes it for another event, and each of them for one.
				r.Group += "-other"
				r.exec(`TRUNCATE ledger`)
				r.Store.Reused = inbox.HandleReused
				r.handleAll([]*kgo.Record{c.again, first, c.again})
				if n := scan[int](r, `SELECT count(*) FROM ledger WHERE id = '5'`); n != 2 {
					t.Errorf("%d effects of two events with one id", n)
				}
			})
		})
	}
}

// TestInboxReusedLater: with HandleReused, an event keeps its id for as long as its own row is kept, also if the row of
// the event with the same id is not, and what was stored before the setting still counts.
func TestInboxReusedLater(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		one, two := of("5", "a", at(7, 5, "s:1:3:0000000000000100:0")...), of("5", "b", at(7, 6, "s:1:3:0000000000000100:0")...)
		r.handleAll([]*kgo.Record{one})
		r.Store.Reused = inbox.HandleReused
		r.handleAll([]*kgo.Record{two, one, two})
		r.exec(`DELETE FROM processed_events WHERE id = '5'`)
		r.handleAll([]*kgo.Record{two})
		if n := scan[int](r, `SELECT count(*) FROM ledger`); n != 2 {
			t.Errorf("%d effects of two events", n)
		}
	})
}

// TestInboxSkipReplayed: a replayed record that is skipped was not handled, so the event is new if it comes later.
func TestInboxSkipReplayed(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.Skip = true
		r.handleAll([]*kgo.Record{of("5", "a", inbox.Replayed, "run", "outboxcdc-origin", "7:5"), of("6", "a", inbox.Recovered, "run")})
		r.checkLedger("6")
		r.handleAll([]*kgo.Record{of("5", "a", at(7, 5, "s:1:3:0000000000000100:0")...)})
		r.checkLedger("5", "6")
	})
}

// TestInboxKafkaLost: Kafka has lost its topic, and recover sends what the tables have. The error names what to do, and
// no effect is repeated.
func TestInboxKafkaLost(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		first := r.events(10, 1)
		r.handleAll()
		must(t, kafkatest.DeleteTopic(t.Context(), r.Brokers, r.Topic))
		must(t, kafkatest.CreateTopic(t.Context(), r.Brokers, r.Topic, 1, nil))
		var again []*kgo.Record
		for _, rec := range first {
			again = append(again, headed(0, string(rec.Value), inbox.Recovered, "run", "outboxcdc-position", position(r.system, 16384, 1)))
		}
		r.produce(again...)
		r.runUntilError(nil, r.ledger, "recreated", "ForgetOffsets")
		must(t, r.Store.ForgetOffsets(t.Context(), sqlDB(t, r.Postgres), r.Group, r.Topic))
		more := r.events(5, 1)
		r.handleAll()
		r.checkLedger(idsOf(slices.Concat(first, more))...)
		if err := r.Store.ForgetOffsets(t.Context(), sqlDB(t, r.Postgres), r.Group, "other"); err == nil {
			t.Error("the offsets of a topic without marks were forgotten")
		}
	})
}

// TestInboxPartitionsAdded (F135): keys move to other partitions, while the daemon repeats events.
func TestInboxPartitionsAdded(t *testing.T) {
	forClients(t, 2, func(t *testing.T, r *room) {
		first := r.events(200, 2)
		stop := r.start(r.ledger)
		must(t, kafkatest.AddPartitions(t.Context(), r.Brokers, r.Topic, 3))
		moved := slices.Clone(first[100:])
		for i, rec := range moved {
			copied := *rec
			copied.Partition = int32(i % 3)
			moved[i] = &copied
		}
		r.produce(moved...)
		more := r.events(99, 3)
		must(t, stop())
		r.handleAll()
		r.checkLedger(idsOf(slices.Concat(first, more))...)
	})
}

// TestInboxTooLongID: an id that cannot be stored is the record's fault. The other records have their effect.
func TestInboxTooLongID(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		events := r.events(5, 1)
		long := make([]byte, 0, 20_000)
		for len(long) < cap(long) {
			long = append(long, uuid.NewString()...)
		}
		r.produce(headed(0, string(long)))
		var poison *inbox.PoisonError
		r.runUntilError(&poison, r.ledger, "offset 5")
		r.checkLedger(idsOf(events)...)
		if poison == nil || !errors.As(error(poison), new(*inbox.PoisonError)) {
			t.Error("no poison")
		}
	})
}
