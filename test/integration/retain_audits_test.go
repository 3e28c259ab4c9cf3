package integration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/retention"
)

// TestRetainAudits audits after each partition that is emptied. Most of an audit, and of the emptying, is the wait for
// the slot to confirm, so several outboxes with a daemon each do it side by side. Rows that are kept are compared with
// their records each time, and the records of rows that were removed have none.
func TestRetainAudits(t *testing.T) {
	t.Parallel()
	outboxes, leaves, rounds := fullOrShort(10, 1), fullOrShort(25, 3), fullOrShort(4, 1)
	for n := range outboxes {
		t.Run(fmt.Sprint(n), func(t *testing.T) { t.Parallel(); retainAudits(t, leaves, rounds) })
	}
}

func retainAudits(t *testing.T, leaves, rounds int) {
	o := newOutbox(t, options{ring: leaves + 1})
	o.proves("F126", "an audit after each of %d emptied partitions", leaves*rounds)
	env := append(o.deduplicating(steadyFence), "OUTBOXCDC_RETENTION_MODE=truncate", "OUTBOXCDC_RETENTION_KEEP=10s")
	r := o.startStreaming(env...)
	p, err := retention.Connect(t.Context(), o.admin.url, nil)
	must(t, err)
	t.Cleanup(p.Close)
	found, err := p.Open(t.Context(), &retention.Table{Schema: "public", Name: "outbox", CreatedAt: "created_at", Publication: "outboxcdc"}, nil)
	must(t, err)
	job := retention.Retention{
		Server: p, Keep: 10 * time.Second, Slots: []string{o.name}, Database: o.name, SlotWait: patience, Beside: retention.Beside, Pause: retention.Pause,
	}
	emptied, compared, without := 0, int64(0), int64(0)
	for range rounds {
		// The rows of the last partition stay.
		o.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at, lap)
			SELECT 'order', 'k' || n, 'added', '{"a": 1}', now() - interval '1 minute', n %% %[1]d
			FROM generate_series(1, %[2]d) n`, leaves+1, 3*(leaves+1)))
		for i := range leaves {
			await(t, patience, "a partition to be emptied", func() error {
				res := job.Empty(t.Context(), &found[i])
				switch {
				case res.Outcome == retention.Emptied:
					return nil
				case res.Reason == retention.ByLock: // the server's own vacuum
					return errors.New(res.Text)
				}
				t.Fatalf("%+v", res)
				return nil
			})
			emptied++
			findings, sum := o.audit(env, 0)
			s := sum.Summary
			if left := int64(3 * (leaves - 1 - i)); !s.Clean || s.Rows-left < 3 || s.Delivered != s.Rows {
				t.Fatalf("after %d partitions: %+v %+v", emptied, findings, s)
			}
			compared, without = compared+s.Rows, s.Removable
		}
	}
	if want := int64(3 * emptied); without != want {
		t.Errorf("the last audit found %d records without a row, and %d rows were removed", without, want)
	}
	noReconnects(t, r)
	o.outcome("%d audits, all clean; %d rows compared, and %d records of removed rows in the last one", emptied, compared, without)
	t.Logf("%d partitions were emptied, each before an audit; all clean; %d rows compared, %d records of removed rows", emptied, compared, without)
}
