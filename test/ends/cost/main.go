// Command cost measures what an event adds to a transaction of an application, on one connection to a PostgreSQL of its
// own, without a network and with one. It prints the table in docs/producers.md.
//
//	cd test/ends && go run ./cost
//
// A transaction is a number of UPDATEs by primary key, each a round trip, and a commit that waits for the disk. The
// last UPDATE is sent as a batch, which an event can join. The variants are interleaved, in random order. On a machine
// with other work the 10th percentile, of transactions that were hardly disturbed, says more than the median.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func main() {
	budget := flag.Duration("time", time.Minute, "time for each network")
	updates := flag.Int("updates", 6, "number of UPDATEs of a transaction")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *budget, *updates); err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}

// schema has the bundled table and 1,000 accounts.
const schema = `CREATE TABLE outbox (
	id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL CHECK (octet_length(aggregate_type) <= 65536),
	aggregate_id text NOT NULL CHECK (octet_length(aggregate_id) <= 65536), event_type text NOT NULL CHECK (octet_length(event_type) <= 65536),
	payload jsonb CHECK (octet_length(payload::text) <= 16777216), headers jsonb NOT NULL DEFAULT '{}' CHECK (octet_length(headers::text) <= 1048576),
	created_at timestamptz NOT NULL DEFAULT now())`

// variant is what a transaction writes into the outbox.
type variant struct {
	name   string
	more   int            // UPDATEs
	writer *outbox.Writer // nil: no event
	queue  bool           // with the application's batch, and not in a round trip of its own
	times  []time.Duration
}

func variants() (all []*variant, err error) {
	all = append(all, &variant{name: "no event"}, &variant{name: "another UPDATE", more: 1})
	for _, queue := range []bool{false, true} {
		for _, c := range []struct {
			name   string
			config outbox.Config
		}{{"a row", outbox.Config{}}, {"a row, deleted at once", outbox.Config{DeleteRows: true}}, {"a message", outbox.Config{MessagePrefix: "outboxcdc"}}} {
			w, err := outbox.New(c.config)
			if err != nil {
				return nil, err
			}
			all = append(all, &variant{name: map[bool]string{false: "Emit, ", true: "Queue, "}[queue] + c.name, writer: w, queue: queue})
		}
	}
	return all, nil
}

func run(ctx context.Context, budget time.Duration, updates int) error {
	server, err := pgtest.Start(ctx, pgtest.Options{Major: "17"})
	if err != nil {
		return err
	}
	defer server.Close()
	err = server.Exec(ctx, "postgres", schema, `CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)`, `INSERT INTO account SELECT n, 0 FROM generate_series(0, 999) n`)
	if err != nil {
		return err
	}
	for _, roundTrip := range []time.Duration{0, 500 * time.Microsecond} {
		conn, err := connect(ctx, server.SuperURL("postgres"), roundTrip)
		if err != nil {
			return err
		}
		fmt.Printf("The network adds %v to a round trip.\n", roundTrip)
		if err := measure(ctx, conn, updates, budget); err != nil {
			return err
		}
		if err := conn.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// connect connects over a network with a round trip of its own.
func connect(ctx context.Context, url string, roundTrip time.Duration) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &farConn{Conn: conn, roundTrip: roundTrip}, err
	}
	return pgx.ConnectConfig(ctx, config)
}

// farConn delays the first bytes of each answer. A timer of Go is late by a millisecond, so farConn computes instead of
// sleeping; the server has nothing to do then.
type farConn struct {
	net.Conn
	roundTrip time.Duration
	asked     bool
}

func (c *farConn) Write(b []byte) (int, error) {
	c.asked = true
	return c.Conn.Write(b)
}

func (c *farConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.asked {
		for begin := time.Now(); time.Since(begin) < c.roundTrip; {
		}
		c.asked = false
	}
	return n, err
}

func measure(ctx context.Context, conn *pgx.Conn, updates int, budget time.Duration) error {
	all, err := variants()
	if err != nil {
		return err
	}
	rounds := 0
	for begin := time.Now(); time.Since(begin) < budget; rounds++ {
		for _, i := range rand.Perm(len(all)) {
			took, err := transaction(ctx, conn, updates, all[i])
			if err != nil {
				return err
			}
			if rounds > 0 { // the first round prepares the statements
				all[i].times = append(all[i].times, took)
			}
		}
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"10th percentile", 0.1}, {"median", 0.5}} {
		base, update := quantile(all[0].times, q.at), quantile(all[1].times, q.at)
		fmt.Printf("%d UPDATEs take %.2f ms (%s of %d). More:\n", updates, float64(base)/1e6, q.name, len(all[0].times))
		for _, v := range all[1:] {
			more := float64(quantile(v.times, q.at) - base)
			fmt.Printf("  %-30s %+5.0f µs, %+.1f %%, %.1f UPDATEs\n", v.name, more/1e3, 100*more/float64(base), more/float64(update-base))
		}
	}
	return nil
}

// event is of usual size: a payload of 200 bytes and a trace context.
var event = outbox.Event{
	AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	Payload: json.RawMessage(`{"order":42,"customer":"c-1234567890","lines":[{"sku":"abc","qty":2,"price":"9.50"},{"sku":"def","qty":1,"price":"19.50"}],` +
		`"address":{"street":"Long Street 1","city":"Berlin","zip":"10115"},"total":"38.50"}`),
}

const update = "UPDATE account SET balance = balance + 1 WHERE id = $1"

// transaction runs one transaction and returns how long it took.
func transaction(ctx context.Context, conn *pgx.Conn, updates int, v *variant) (time.Duration, error) {
	begin := time.Now()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for range updates + v.more - 1 {
		if _, err := tx.Exec(ctx, update, rand.IntN(1000)); err != nil {
			return 0, err
		}
	}
	var batch pgx.Batch
	batch.Queue(update, rand.IntN(1000))
	if v.queue {
		if err := pgxoutbox.Queue(ctx, v.writer, &batch, event); err != nil {
			return 0, err
		}
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, err
	}
	if v.writer != nil && !v.queue {
		if err := pgxoutbox.Emit(ctx, v.writer, tx, event); err != nil {
			return 0, err
		}
	}
	err = tx.Commit(ctx)
	return time.Since(begin), err
}

// quantile returns, for at = 0.5, the median. It sorts the times.
func quantile(times []time.Duration, at float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[int(at*float64(len(times)))]
}
