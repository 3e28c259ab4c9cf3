package inbox

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// A handler that leaves rows open makes the next statement fail, which is that of the next record. The first one is
// to blame.
func TestInboxRowsLeftOpen(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(6, 1)
		var dead []string
		r.deadLetter = func(_ context.Context, _ pgx.Tx, rec record, _ error) error {
			dead = append(dead, rec.ID)
			return nil
		}
		bad := string(records[2].Key)
		stop := r.start(func(ctx context.Context, tx pgx.Tx, rec record) error {
			if rec.ID == bad {
				_, err := tx.Query(ctx, `SELECT generate_series(1, 10)`)
				return err
			}
			return r.ledger(ctx, tx, rec)
		})
		r.awaitEnd()
		must(t, stop())
		if fmt.Sprint(dead) != fmt.Sprint([]string{bad}) {
			t.Errorf("handed over: %v, want %s", dead, bad)
		}
		r.checkLedger(idsOf(append(append([]*kgo.Record{}, records[:2]...), records[3:]...))...)
	})
}

// A missing table of the module is no record's fault: no record is handed over.
func TestInboxStoreFails(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.exec(`DROP TABLE processed_events`)
		r.deadLetter = func(context.Context, pgx.Tx, record, error) error {
			t.Error("a record was handed over")
			return nil
		}
		r.produce(r.event(0), headed(0, "again", "outboxcdc-replayed", "run"))
		r.runUntilError(nil, r.ledger, "processed_events", "Store.Schema")
	})
}

// An error of the handler that looks like the end of a context ends Run with that error.
func TestInboxHandlerTimesOut(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		r.events(1, 1)
		var poison *inbox.PoisonError
		r.runUntilError(&poison, func(context.Context, pgx.Tx, record) error { return fmt.Errorf("ask: %w", context.DeadlineExceeded) }, "ask")
	})
}

// F133: a server that refuses to write, and a timeout while another transaction holds the mark, pass: the consumer
// waits.
func TestInboxWaitsForPostgres(t *testing.T) {
	forClients(t, 1, func(t *testing.T, r *room) {
		records := r.events(3, 1)
		config, err := pgxpool.ParseConfig(r.Postgres)
		must(t, err)
		config.ConnConfig.RuntimeParams["statement_timeout"] = "500"
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		defer pool.Close()
		r.consumer.pool = pool
		log := &watch{}
		r.log = log.logger(t)

		ctx := t.Context()
		tx, err := r.pool.Begin(ctx)
		must(t, err)
		_, err = (&inbox.Store{}).Lock(ctx, pgxinbox.Tx(tx), r.Group, inbox.Place{Topic: r.Topic})
		must(t, err)
		stop := r.start(r.ledger)
		log.await(t, "57014")
		must(t, tx.Rollback(ctx))
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(records)...)

		more := r.events(3, 1)
		delete(config.ConnConfig.RuntimeParams, "statement_timeout")
		var hasFailedOver atomic.Bool
		config.MaxConns = 1
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, fmt.Sprintf("SET default_transaction_read_only = %v", !hasFailedOver.Load()))
			return err
		}
		failingOver, err := pgxpool.NewWithConfig(ctx, config)
		must(t, err)
		defer failingOver.Close()
		r.consumer.pool = failingOver
		stop = r.start(r.ledger)
		log.await(t, "25006")
		hasFailedOver.Store(true) // connections to the old primary, which is a standby now, only read
		r.awaitEnd()
		must(t, stop())
		r.checkLedger(idsOf(append(records, more...))...)
	})
}

func (w *watch) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !w.has(text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log does not say %q", text)
		}
	}
}

// watch is a log that can be looked at.
type watch struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *watch) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *watch) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.text.String(), text)
}

func (w *watch) logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(io.MultiWriter(w, t.Output()), nil))
}
