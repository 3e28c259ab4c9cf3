package audit

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// noRows is a snapshot of an empty table.
type noRows struct{ Snapshot }

func (noRows) Existing(context.Context, int, string, []string) (map[string]bool, error) {
	return map[string]bool{}, nil
}

// TestRemovedRows checks that a record without a row is no phantom if its row may have been removed, by the time to
// keep and the margin of the clocks, and that it is one otherwise.
func TestRemovedRows(t *testing.T) {
	const keep = 72 * time.Hour
	now := time.Now()
	a, o := newOrder(t)
	a.Topics, a.Kept = []string{"t"}, now.Add(-keep)
	for i, age := range []time.Duration{keep + time.Hour, keep - KafkaMargin/2, keep - 2*KafkaMargin} {
		o.records = append(o.records, kafka.Record{
			Offset: int64(i), Key: []byte("k"), Time: now.Add(-age), Headers: []router.Header{{Name: "id", Value: []byte{byte('a' + i)}}},
		})
	}
	var notes []string
	a.Note = func(s string) { notes = append(notes, s) }
	a.Fresh = func(context.Context) (Snapshot, func(), error) { return noRows{o}, func() {}, nil }
	res, err := a.Run(t.Context(), o, o, o, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if res.Findings[Phantom] != 1 || res.Removable != 2 || !strings.Contains(strings.Join(notes, " "), "retention.keep") {
		t.Errorf("%+v; notes %q", res.Counts, notes)
	}
}
