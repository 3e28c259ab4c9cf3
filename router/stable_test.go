package router

import (
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
)

// TestStable checks that the values of a row are the same without the time of its commit, and that those of other
// rows are not.
func TestStable(t *testing.T) {
	relation := &decoder.Relation{Namespace: "public", Name: "outbox"}
	for _, name := range []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"} {
		relation.Columns = append(relation.Columns, decoder.Column{Name: name, TypeOID: 25})
	}
	for _, format := range []Format{FormatRaw, FormatEnvelope, FormatCloudEventsStructured} {
		cfg := DefaultConfig()
		cfg.Format, cfg.Topic = format, "t"
		if format == FormatCloudEventsStructured {
			cfg.Fields = map[string]string{"source": "/here"}
		}
		r, err := New(cfg)
		must(t, err)
		value := func(committed time.Time, payload string) string {
			t.Helper()
			ev := &decoder.Event{Relation: relation, Begin: decoder.Begin{CommitTime: committed}}
			for _, v := range []string{"1", "order", "k", "added", payload, "{}"} {
				ev.Values = append(ev.Values, decoder.Value{Data: []byte(v)})
			}
			var rec Record
			must(t, r.Route(ev, checkpoint.Position{}, &rec))
			if stable := string(r.Stable(rec.Value)); format == FormatRaw && stable != payload {
				t.Errorf("%s: %s", format, stable)
			}
			return string(r.Stable(rec.Value))
		}
		const inner = `{"occurredAt":"2026-01-01T00:00:00Z","time":"2026-01-01T00:00:00Z"}`
		a, b := value(time.Unix(1, 0), inner), value(time.Unix(2, 500), inner)
		if a != b || a == value(time.Unix(1, 0), `{"occurredAt":"2026-01-01T00:00:00Z","time":"2027-01-01T00:00:00Z"}`) {
			t.Errorf("%s: %s and %s", format, a, b)
		}
	}
}
