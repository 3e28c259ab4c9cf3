// Command cost measures what an event adds to a transaction of an application: transactions of about 1, 5 and 20 ms,
// with and without an event, one after the other on one connection to a PostgreSQL of its own. It prints the table in
// docs/producers.md.
//
//	cd test/ends && go run ./cost
//
// A transaction is a number of UPDATEs by primary key, each a round trip, and a commit that waits for the disk. The
// number is chosen so that the transaction without an event takes about that time. On a machine with other work the
// 10th percentile, of transactions that were hardly disturbed, says more than the median.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func main() {
	budget := flag.Duration("time", 30*time.Second, "time for each length of a transaction")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *budget); err != nil {
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
	writer *outbox.Writer // nil: nothing
	times  []time.Duration
}

func run(ctx context.Context, budget time.Duration) error {
	server, err := pgtest.Start(ctx, pgtest.Options{Major: "17"})
	if err != nil {
		return err
	}
	defer server.Close()
	err = server.Exec(ctx, "postgres", schema, `CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)`, `INSERT INTO account SELECT n, 0 FROM generate_series(0, 999) n`)
	if err != nil {
		return err
	}
	db, err := sql.Open("pgx", server.SuperURL("postgres"))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	fmt.Println("| a transaction without an event | | a row | a row, deleted at once | a message |")
	fmt.Println("| --- | --- | --- | --- | --- |")
	for _, length := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		if err := measure(ctx, db, length, budget); err != nil {
			return err
		}
	}
	return nil
}

func measure(ctx context.Context, db *sql.DB, length, budget time.Duration) error {
	variants := []*variant{{}}
	for _, c := range []outbox.Config{{}, {DeleteRows: true}, {MessagePrefix: "outboxcdc"}} {
		w, err := outbox.New(c)
		if err != nil {
			return err
		}
		variants = append(variants, &variant{writer: w})
	}
	updates, err := calibrate(ctx, db, length)
	if err != nil {
		return err
	}
	rounds := 0
	for begin := time.Now(); time.Since(begin) < budget; rounds++ {
		for _, i := range rand.Perm(len(variants)) {
			took, err := transaction(ctx, db, updates, variants[i].writer)
			if err != nil {
				return err
			}
			if rounds > 0 { // the first round prepares the statements
				variants[i].times = append(variants[i].times, took)
			}
		}
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"10th percentile", undisturbed}, {"median", 0.5}} {
		base := quantile(variants[0].times, q.at)
		fmt.Printf("| %.2f ms (%d updates, %d rounds) | %s |", float64(base)/1e6, updates, rounds, q.name)
		for _, v := range variants[1:] {
			more := float64(quantile(v.times, q.at) - base)
			fmt.Printf(" %+.0f µs, %+.1f %% |", more/1e3, 100*more/float64(base))
		}
		fmt.Println()
	}
	return nil
}

// undisturbed is the quantile of transactions that other work on the machine hardly disturbed.
const undisturbed = 0.1

// calibrate returns how many updates a transaction of a length has.
func calibrate(ctx context.Context, db *sql.DB, length time.Duration) (int, error) {
	updates := 1
	for range 6 {
		var times []time.Duration
		for range 50 {
			took, err := transaction(ctx, db, updates, nil)
			if err != nil {
				return 0, err
			}
			times = append(times, took)
		}
		updates = max(1, int(float64(updates)*float64(length)/float64(quantile(times, undisturbed))+0.5))
	}
	return updates, nil
}

// event is of usual size: a payload of 200 bytes and a trace context.
var event = outbox.Event{
	AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	Payload: json.RawMessage(`{"order":42,"customer":"c-1234567890","lines":[{"sku":"abc","qty":2,"price":"9.50"},{"sku":"def","qty":1,"price":"19.50"}],` +
		`"address":{"street":"Long Street 1","city":"Berlin","zip":"10115"},"total":"38.50"}`),
}

// transaction runs one transaction and returns how long it took.
func transaction(ctx context.Context, db *sql.DB, updates int, w *outbox.Writer) (time.Duration, error) {
	begin := time.Now()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	for range updates {
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + 1 WHERE id = $1", rand.IntN(1000)); err != nil {
			return 0, err
		}
	}
	if w != nil {
		if err := w.Emit(ctx, tx, event); err != nil {
			return 0, err
		}
	}
	err = tx.Commit()
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
