package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/test/check"
)

const (
	customers     = 100
	writers       = 6
	rollBackOneIn = 10

	orderTopic   = "outbox.event.order"
	paymentTopic = "outbox.event.payment"
)

var topics = []string{orderTopic, paymentTopic}

// shopSQL is the application's own part of the database, without the outbox. Each customer's row counts the events
// written for it, so that the shop itself knows the order of commits.
var shopSQL = []string{
	`CREATE TABLE customers (id int PRIMARY KEY, order_events int NOT NULL DEFAULT 0, payment_events int NOT NULL DEFAULT 0)`,
	`INSERT INTO customers (id) SELECT generate_series(1, ` + strconv.Itoa(customers) + `)`,
	`CREATE TABLE orders (id uuid PRIMARY KEY, customer int NOT NULL REFERENCES customers, item text NOT NULL, cents int NOT NULL)`,
	`CREATE ROLE shop LOGIN PASSWORD 'shop'`,
	`GRANT SELECT, UPDATE ON customers TO shop`,
	`GRANT SELECT, INSERT ON orders TO shop`,
}

// outboxGrant has the only privileges that an application needs on the outbox; DELETE is for the cleaner.
const outboxGrant = `GRANT INSERT, DELETE ON outbox TO shop`

// shop is the application: several independent writers and a cleaner. Of outboxcdc it needs only the table.
type shop struct {
	url    string
	tally  *tally
	failed chan<- error // gets errors that no retry can fix, at most one of each
	slow   atomic.Int64 // factor for the pauses

	closing chan struct{}
	wg      sync.WaitGroup
}

// openShop starts the writers. They end at once when ctx is done, in order when close is called.
func openShop(ctx context.Context, url string, t *tally, failed chan<- error) *shop {
	s := &shop{url: url, tally: t, failed: failed, closing: make(chan struct{})}
	s.slow.Store(1)
	for range writers {
		s.wg.Go(func() { s.loop(ctx, 25*time.Millisecond, s.order) })
	}
	s.wg.Go(func() { s.loop(ctx, time.Second, s.clean) })
	return s
}

// close lets every writer finish its current transaction.
func (s *shop) close() {
	close(s.closing)
	s.wg.Wait()
}

// loop calls do repeatedly on a connection of its own, which it reopens after an error.
func (s *shop) loop(ctx context.Context, pause time.Duration, do func(context.Context, *pgx.Conn) error) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for {
		// Up to twice the pause, so that the writers do not run in step.
		select {
		case <-ctx.Done():
			return
		case <-s.closing:
			return
		case <-time.After(mathrand.N(2 * pause * time.Duration(s.slow.Load()))):
		}
		var err error
		if conn == nil || conn.IsClosed() {
			if conn, err = pgx.Connect(ctx, s.url); err != nil {
				conn = nil
			}
		}
		if err == nil {
			err = do(ctx, conn)
		}
		if err != nil && ctx.Err() == nil && !isTransient(err) {
			s.failed <- fmt.Errorf("the shop: %w", err)
			return
		}
	}
}

// isTransient reports whether Postgres is away for a while: any error except one that blames our statement.
func isTransient(err error) bool {
	var pg *pgconn.PgError
	return !errors.As(err, &pg) || strings.HasPrefix(pg.Code, "57") // shutting down, or starting up
}

// clean deletes every outbox row, delivered or not: the relay reads the WAL, never the table.
func (s *shop) clean(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `DELETE FROM outbox`)
	return err
}

// purchase is one order and its events, in the order in which they are written.
type purchase struct {
	id       string
	customer int
	item     string
	cents    int
	events   []event
}

type event struct{ id, aggregate, kind string }

var items = []string{"tea", "Grüner Tee", "cups", "a \\ in the name", "お茶"}

func newPurchase() purchase {
	p := purchase{
		id: uuid(), customer: 1 + mathrand.IntN(customers),
		item: items[mathrand.IntN(len(items))], cents: 100 + mathrand.IntN(10_000),
		events: []event{{uuid(), "order", "OrderPlaced"}},
	}
	if mathrand.IntN(4) == 0 { // paid at once: two more events, one of them of the same key and topic
		p.events = append(p.events, event{uuid(), "payment", "PaymentTaken"}, event{uuid(), "order", "OrderPaid"})
	}
	return p
}

// payload is written exactly as Postgres prints jsonb (short names first), so that the value in Kafka can be compared
// byte by byte without asking Postgres.
func (p purchase) payload(number int) string {
	return fmt.Sprintf(`{"no": %d, "item": %s, "cents": %d, "order": "%s", "customer": %d}`,
		number, `"`+strings.ReplaceAll(p.item, `\`, `\\`)+`"`, p.cents, p.id, p.customer)
}

// rows returns the records that the purchase must become, if it is committed. orders and payments are the customer's
// counters after it.
func (p purchase) rows(orders, payments int) []check.Row {
	next := map[string]int{"order": orders - p.count("order"), "payment": payments - p.count("payment")}
	var rows []check.Row
	for _, e := range p.events {
		next[e.aggregate]++
		rows = append(rows, check.Row{
			ID: e.id, Topic: "outbox.event." + e.aggregate, Key: []byte(strconv.Itoa(p.customer)),
			Value: []byte(p.payload(next[e.aggregate])), Seq: next[e.aggregate],
		})
	}
	return rows
}

func (p purchase) count(aggregate string) int {
	n := 0
	for _, e := range p.events {
		if e.aggregate == aggregate {
			n++
		}
	}
	return n
}

// order is the transaction of the outbox pattern: the order and its events, or neither. The update locks the customer's
// row until COMMIT, which gives the events of a customer their order.
func (s *shop) order(ctx context.Context, conn *pgx.Conn) error {
	p := newPurchase()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after COMMIT
	var orders, payments int
	err = tx.QueryRow(ctx, `UPDATE customers SET order_events = order_events + $2, payment_events = payment_events + $3
		WHERE id = $1 RETURNING order_events, payment_events`, p.customer, p.count("order"), p.count("payment")).Scan(&orders, &payments)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO orders (id, customer, item, cents) VALUES ($1, $2, $3, $4)`, p.id, p.customer, p.item, p.cents); err != nil {
		return err
	}
	rows := p.rows(orders, payments)
	for i, e := range p.events {
		_, err := tx.Exec(ctx, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4, $5)`,
			e.id, e.aggregate, strconv.Itoa(p.customer), e.kind, string(rows[i].Value))
		if err != nil {
			return err
		}
	}
	if mathrand.IntN(rollBackOneIn) == 0 { // the customer changed their mind
		if err := tx.Rollback(ctx); err != nil {
			return err // cut off: not committed either
		}
		s.tally.addRolledBack()
		return nil
	}
	if err := tx.Commit(ctx); err != nil {
		return s.resolve(ctx, p, rows)
	}
	s.tally.addCommitted(rows, time.Now(), false)
	return nil
}

// resolve finds out whether a COMMIT without an answer took effect: the order exists or it does not.
func (s *shop) resolve(ctx context.Context, p purchase, rows []check.Row) error {
	for {
		there, err := s.find(ctx, p)
		switch {
		case err == nil && there:
			s.tally.addCommitted(rows, time.Now(), true)
			return nil
		case err == nil:
			s.tally.addRolledBack()
			return nil
		case ctx.Err() != nil || !isTransient(err):
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *shop) find(ctx context.Context, p purchase) (there bool, err error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// A transaction that holds the customer's lock has not ended: wait for it before looking.
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM customers WHERE id = $1 FOR UPDATE`, p.customer); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM orders WHERE id = $1)`, p.id).Scan(&there)
	})
	return there, err
}

// uuid returns a random UUID, version 4.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
