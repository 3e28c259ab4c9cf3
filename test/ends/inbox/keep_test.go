package inbox

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestInboxWeeks: ids come and go for four windows of seven days, as Run stores and deletes them, with a vacuum each
// day as autovacuum does it. The tables do not grow after the first window, and both statements use the index that
// they are meant to.
func TestInboxWeeks(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	conn := pgtest.Connect(t, r.Postgres)
	ctx, store := t.Context(), pgxinbox.Store{}
	perDay := fullOrShort(100_000, 4_000)
	var days []time.Time // when each day has ended
	size := func() int64 { return scan[int64](r, `SELECT pg_total_relation_size('processed_events')`) }
	var afterWindow int64
	for day := range 28 {
		for left := perDay; left > 0; left -= 500 {
			events := make([]inbox.Event, 500)
			for i := range events {
				events[i] = inbox.Event{Topic: r.Topic, ID: uuid.NewString()}
			}
			must(t, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				isNew, err := store.OnceEach(ctx, tx, r.Group, events)
				for _, is := range isNew {
					if !is {
						return fmt.Errorf("an id was not new")
					}
				}
				return err
			}))
		}
		days = append(days, scan[time.Time](r, `SELECT clock_timestamp()`))
		if day >= 7 {
			for {
				// The time to keep grows with the time that the chunks take.
				keep := scan[time.Time](r, `SELECT clock_timestamp()`).Sub(days[day-7])
				n, err := store.PruneChunk(ctx, conn, r.Group, keep)
				must(t, err)
				if n == 0 {
					break
				}
				if n > 10_000 {
					t.Fatalf("a chunk has %d ids", n)
				}
			}
		}
		r.exec(`VACUUM processed_events`)
		if day == 6 {
			afterWindow = size()
		}
		if n := scan[int](r, `SELECT count(*) FROM processed_events`); n > 8*perDay || day >= 7 && n < 6*perDay {
			t.Fatalf("day %d: %d ids are kept", day, n)
		}
	}
	if now := size(); now > 2*afterWindow {
		t.Errorf("the table has %d MB after four windows, and had %d MB after the first", now>>20, afterWindow>>20)
	} else {
		t.Logf("%d ids a day: %d MB after four windows, %d MB after the first; %d bytes for an id", perDay, now>>20, afterWindow>>20, now/int64(7*perDay))
	}

	r.exec(`ANALYZE processed_events`)
	for _, c := range []struct {
		want string
		run  func(tx pgx.Tx) error
	}{
		{"processed_events_consumer_at_idx", func(tx pgx.Tx) error { _, err := store.PruneChunk(ctx, tx, r.Group, time.Hour); return err }},
		{"processed_events_pkey", func(tx pgx.Tx) error {
			return store.Undo(ctx, pgxinbox.Tx(tx), r.Group, []inbox.Event{{Topic: r.Topic, ID: uuid.NewString()}})
		}},
	} {
		if plan := explain(t, r, c.run); !strings.Contains(plan, c.want) || strings.Contains(plan, "Seq Scan on processed_events") {
			t.Errorf("want %s in the plan:\n%s", c.want, plan)
		}
	}
}

// explain returns the plans of the statements of f, as auto_explain would.
func explain(t *testing.T, r *room, f func(tx pgx.Tx) error) string {
	t.Helper()
	config, err := pgx.ParseConfig(r.Postgres)
	must(t, err)
	var plans []string
	config.Tracer = &explainer{func(query string, args []any) {
		if strings.HasPrefix(query, "DELETE") || strings.HasPrefix(query, "WITH") {
			rows, err := r.pool.Query(t.Context(), "EXPLAIN "+query, args...)
			must(t, err)
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			must(t, err)
			plans = append(plans, strings.Join(lines, "\n"))
		}
	}}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	must(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	must(t, pgx.BeginFunc(t.Context(), conn, f))
	return strings.Join(plans, "\n")
}

// explainer passes each statement on before it is executed.
type explainer struct {
	before func(query string, args []any)
}

func (e *explainer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	e.before(d.SQL, d.Args)
	return ctx
}

func (e *explainer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
