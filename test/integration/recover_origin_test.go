package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// delivered counts the records of each key in the topic "order".
func (o *outbox) delivered() map[string]int {
	o.t.Helper()
	n := map[string]int{}
	for _, r := range o.readAll() {
		n[string(r.Key)]++
	}
	return n
}

// Two databases of one server share a topic, and have the same keys, and the same ids from sequences. Each command
// sees the records of its own database only.
func TestRecoverTwoDatabases(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"backfill", "recover"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			a := newOutbox(t, options{})
			b := newOutbox(t, options{pg: a.pg})
			for _, o := range []*outbox{a, b} {
				o.numbered()
			}
			envA := a.deduplicating(fence)
			ra := a.startStreaming(envA...)
			a.insert("order", "k", 1, 20)
			a.awaitArrived(patience)
			ra.term()
			b.exec(`SELECT pg_drop_replication_slot($1)`, b.name)
			b.insert("order", "k", 101, 20)
			envB := append(b.deduplicating(fence), "OUTBOXCDC_ROUTE_TOPIC="+a.name+".{aggregate_type}")
			out, notes, code := b.runBinary(envB, verb, "--yes")
			if code != 0 || !strings.Contains(out, "\n20 records sent") {
				t.Errorf("%s: exit code %d\n%s%s", verb, code, out, notes)
			}
			got := a.numbers()
			for n := range 20 {
				if got[1+n] != 1 || got[101+n] != 1 {
					t.Errorf("events %d and %d: %d and %d records", 1+n, 101+n, got[1+n], got[101+n])
				}
			}
			for name, x := range map[string]struct {
				o   *outbox
				env []string
			}{"a": {a, envA}, "b": {b, envB}} {
				says(t, x.o.recover(x.env, 0), ": 0 rows are missing")
				if _, sum := x.o.audit(x.env, 0); sum.Summary.Delivered != 20 {
					t.Errorf("audit of database %s: %+v", name, sum.Summary)
				}
			}
		})
	}
}

// Another service's poller has written records to the topic whose header id is from a sequence of its own.
func TestRecoverForeignIDs(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.numbered()
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "ours", 1, 20)
	var records []*kgo.Record
	for i := range 20 {
		records = append(records, &kgo.Record{
			Topic: o.topic("order"), Key: []byte("theirs"), Value: []byte(`{}`), Headers: []kgo.RecordHeader{{Key: "id", Value: fmt.Append(nil, i+1)}},
		})
	}
	o.produce(records...)
	out, notes, code := o.runBinary(env, "backfill", "--yes")
	if code != 0 || !strings.Contains(out, "\n20 records sent") {
		t.Errorf("backfill: exit code %d\n%s%s", code, out, notes)
	}
	if got, want := o.delivered(), map[string]int{"ours": 20, "theirs": 20}; !maps.Equal(got, want) {
		t.Errorf("records by key: %v, want %v", got, want)
	}
	says(t, o.recover(env, 0), ": 0 rows are missing")
}

// A restore or a lossy failover begins a new timeline, and its sequence gives the ids of lost events to new ones. The
// records of the lost history prove nothing about the new rows: each of them is sent, whatever its key.
func TestRecoverIDsUsedAgain(t *testing.T) {
	t.Parallel()
	for _, archive := range []bool{true, false} {
		for _, mode := range []string{"deduplicated", "at_least_once"} {
			t.Run(fmt.Sprintf("archive=%t/%s", archive, mode), func(t *testing.T) {
				t.Parallel()
				recoverIDsUsedAgain(t, archive, mode)
			})
		}
	}
}

// recoverIDsUsedAgain restores a copy: with the archive up to the last event that was kept, where the sequence is
// ahead by what the WAL has logged, or as it is.
func recoverIDsUsedAgain(t *testing.T, archive bool, mode string) {
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"wal_keep_size": "512MB"})})
	o.numbered()
	env := o.modes()[mode]
	o.deliver(env, "order", "k", 1, 40)
	older := o.copyServer()
	if archive {
		o.exec(`SELECT pg_create_restore_point('kept')`)
	}
	r := o.startStreaming(env...)
	o.insert("order", "k", 101, 30) // the keys of the new rows, and others
	o.insert("order", "lost", 131, 30)
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	if archive {
		o.putBack(older, true)
	} else {
		o.restoreWithoutArchive(older)
	}
	o.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`)
	o.insert("order", "k", 201, 40)
	o.insert("order", "new", 241, 20)
	var again int
	must(t, o.admin.scan(`SELECT count(*) FROM outbox WHERE n > 200 AND id <= 100`, &again))
	if again < 20 {
		t.Fatalf("%d ids are used again, so this proves little", again)
	}
	out, notes, code := o.runBinary(env, "recover", "--yes", "--this-server")
	if code != 0 || !strings.Contains(out, "\n60 records sent") {
		t.Errorf("recover: exit code %d\n%s%s", code, out, notes)
	}
	says(t, o.recover(env, 0, "--this-server"), ": 0 rows are missing")
	o.startStreaming(env...)
	o.insert("order", "new", 261, 5)
	o.awaitRecords(40 + 60 + 60 + 5)
	o.awaitConfirmed(o.walFlushed(), patience)
	got := o.numbers()
	for n := range 65 {
		if got[201+n] != 1 {
			t.Errorf("event %d of the new history has %d records", 201+n, got[201+n])
		}
	}
}

// numbers counts the records of each n.
func (o *outbox) numbers() map[int]int {
	o.t.Helper()
	got := map[int]int{}
	for _, n := range o.numbersWhere(func(kafkatest.Record) bool { return true }) {
		got[n]++
	}
	return got
}

// numbersWhere returns the n of chosen records, each partition in its order.
func (o *outbox) numbersWhere(chosen func(kafkatest.Record) bool) (got []int) {
	o.t.Helper()
	for _, r := range inOrder(o.readAll()) {
		if chosen(r) {
			var v struct{ N int }
			must(o.t, json.Unmarshal(r.Value, &v))
			got = append(got, v.N)
		}
	}
	return got
}

// inOrder sorts records by their places.
func inOrder(records []kafkatest.Record) []kafkatest.Record {
	slices.SortStableFunc(records, func(a, b kafkatest.Record) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return records
}

// The table was emptied and its sequence begins again: rows of other keys are missing; those whose key has a record
// with their id are not judged, because such a row may have been updated after its delivery.
func TestRecoverAfterTruncate(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.numbered()
	env := o.deduplicating(fence)
	o.deliver(env, "order", "k", 1, 6)
	o.exec(`TRUNCATE outbox RESTART IDENTITY`)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 101, 3)
	o.insert("order", "x", 201, 3)
	out := o.recover(env, 1)
	says(t, out, "3 rows are missing", "3 rows are not judged", "nothing was sent", "--unjudged=send")
	o.start(env...).awaitStop(patience, 79, "outboxcdc recover")
	says(t, o.recover(env, 0, "--unjudged=send"), "\n6 records sent")
	o.startStreaming(env...)
	o.awaitConfirmed(o.walFlushed(), patience)
	got := o.numbers()
	for _, n := range []int{101, 102, 103, 201, 202, 203} {
		if got[n] != 1 {
			t.Errorf("event %d has %d records", n, got[n])
		}
	}
}
