// Package parked reads and changes the parked keys of consumers that use the module inbox, in the database of the
// consumer. The module has the tables and their rules; it is not imported, and a test in test/ends compares them.
package parked

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// The names that the tables have by default.
const (
	DefaultKeys    = "inbox_parked_keys"
	DefaultRecords = "inbox_parked_records"
)

// Tables are the two tables of parked keys, in an open connection.
type Tables struct {
	conn          *pgx.Conn
	keys, records string // quoted
}

// lockTimeout bounds the wait for a consumer that handles a record of the key.
const lockTimeout = 10 * time.Second

// Open connects to the database of a consumer. The names may have a schema. The error has an exit code and shows no
// secret.
func Open(ctx context.Context, dsn, keys, records string) (*Tables, error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, exit.With(exit.Usage, fmt.Errorf("read the connection string: %w", replication.URLError(err)))
	}
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements: there may be a pooler between
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = 15 * time.Second
	}
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, exit.With(exit.Unavailable, replication.ConnectError(err))
	}
	return &Tables{conn, pgx.Identifier(strings.Split(keys, ".")).Sanitize(), pgx.Identifier(strings.Split(records, ".")).Sanitize()}, nil
}

// Close closes the connection.
func (t *Tables) Close(ctx context.Context) { _ = t.conn.Close(context.WithoutCancel(ctx)) }

// Filter selects parked keys: those that match each set field.
type Filter struct {
	Consumer, Topic string
	Keys            [][]byte
	Events          []string // header id of the oldest record
	OnlyDead        bool
	WithValues      bool
}

// Key is a parked key with its oldest record.
type Key struct {
	id         string
	number     int64 // of the oldest record; 0: there is none
	Consumer   string
	Topic      string
	Key        []byte // nil: the record has none
	IsAlone    bool   // later records of the key do not wait for this one
	Failures   int
	NextTry    *time.Time // nil: dead
	ParkedAt   time.Time
	FailedAt   time.Time
	FirstError string
	LastError  string
	Records    int64

	// Of the oldest record.
	Partition int32
	Offset    int64
	Event     string
	Headers   []router.Header
	Bytes     int64  // of the value; -1: a tombstone
	Value     []byte // with Filter.WithValues
}

// List calls each with the selected keys, the longest parked first.
func (t *Tables) List(ctx context.Context, f Filter, each func(*Key) error) error {
	rows, err := t.conn.Query(ctx, `SELECT k.id::text, k.consumer, k.topic, k.key, k.alone, k.failures, k.next_try, k.parked_at, k.failed_at, k.first_error, k.last_error,
			(SELECT count(*) FROM `+t.records+` c WHERE c.parked = k.id),
			coalesce(r.number, 0), coalesce(r.partition, 0), coalesce(r.record_offset, 0), coalesce(r.event_id, ''), coalesce(r.headers, '[]')::text,
			coalesce(octet_length(r.value), -1), CASE WHEN $6::bool THEN r.value END
		FROM `+t.keys+` k LEFT JOIN LATERAL (SELECT * FROM `+t.records+` o WHERE o.parked = k.id ORDER BY o.number LIMIT 1) r ON true
		WHERE ($1::text = '' OR k.consumer = $1) AND ($2::text = '' OR k.topic = $2) AND ($3::bytea[] IS NULL OR k.key = ANY ($3))
			AND ($4::text[] IS NULL OR r.event_id = ANY ($4)) AND (NOT $5::bool OR k.next_try IS NULL)
		ORDER BY k.parked_at, k.id`, f.Consumer, f.Topic, f.Keys, f.Events, f.OnlyDead, f.WithValues)
	if err != nil {
		return t.explain("list the parked keys", err)
	}
	defer rows.Close()
	for rows.Next() {
		k := &Key{}
		var headers string
		err := rows.Scan(&k.id, &k.Consumer, &k.Topic, &k.Key, &k.IsAlone, &k.Failures, &k.NextTry, &k.ParkedAt, &k.FailedAt, &k.FirstError, &k.LastError,
			&k.Records, &k.number, &k.Partition, &k.Offset, &k.Event, &headers, &k.Bytes, &k.Value)
		if err == nil {
			k.Headers, err = parseHeaders(headers)
		}
		if err != nil {
			return t.explain("list the parked keys", err)
		}
		if err := each(k); err != nil {
			return err
		}
	}
	return t.explain("list the parked keys", rows.Err())
}

func parseHeaders(text string) ([]router.Header, error) {
	var pairs [][2][]byte
	if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return nil, fmt.Errorf("the headers of a record: %w", err)
	}
	headers := make([]router.Header, len(pairs))
	for i, p := range pairs {
		headers[i] = router.Header{Name: string(p[0]), Value: p[1]}
	}
	return headers, nil
}

// Problem is why a key is as it was.
type Problem struct{ text string }

func (p *Problem) Error() string { return p.text }

// Retry makes the key due at once, with the whole schedule before it.
func (t *Tables) Retry(ctx context.Context, k *Key) error {
	return t.change(ctx, k, "FOR NO KEY UPDATE", func(tx pgx.Tx) error { return t.due(ctx, tx, k) })
}

func (t *Tables) due(ctx context.Context, tx pgx.Tx, k *Key) error {
	_, err := tx.Exec(ctx, `UPDATE `+t.keys+` SET failures = 0, next_try = now() WHERE id = $1::uuid`, k.id)
	return err
}

// Drop deletes the oldest record of the key, and with behind all of its records. A key that has others is due at once.
func (t *Tables) Drop(ctx context.Context, k *Key, behind bool) (dropped int64, err error) {
	err = t.change(ctx, k, "FOR UPDATE", func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM `+t.records+` WHERE parked = $1::uuid AND (number = $2::bigint OR $3::bool)`, k.id, k.number, behind)
		if err != nil {
			return err
		}
		dropped = tag.RowsAffected()
		tag, err = tx.Exec(ctx, `DELETE FROM `+t.keys+` WHERE id = $1::uuid AND NOT EXISTS (SELECT FROM `+t.records+` WHERE parked = $1::uuid)`, k.id)
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
		return t.due(ctx, tx, k)
	})
	return dropped, err
}

// change locks the key and calls do, if the oldest record is still the one that was listed.
func (t *Tables) change(ctx context.Context, k *Key, lock string, do func(pgx.Tx) error) error {
	problem := (*Problem)(nil)
	err := pgx.BeginTxFunc(ctx, t.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, lockTimeout.Milliseconds())); err != nil {
			return err
		}
		var one int
		err := tx.QueryRow(ctx, `SELECT 1 FROM `+t.keys+` WHERE id = $1::uuid `+lock, k.id).Scan(&one)
		if errors.Is(err, pgx.ErrNoRows) {
			problem = &Problem{"it is parked no more"}
			return nil
		}
		if err != nil {
			return err
		}
		// Another statement: it sees what was committed before the lock was there. A number can be used again.
		var number, offset int64
		var partition int32
		err = tx.QueryRow(ctx, `SELECT number, partition, record_offset FROM `+t.records+` WHERE parked = $1::uuid ORDER BY number LIMIT 1`, k.id).
			Scan(&number, &partition, &offset)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if number != k.number || partition != k.Partition || offset != k.Offset {
			problem = &Problem{"its oldest record was handled meanwhile"}
			return nil
		}
		return do(tx)
	})
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "55P03":
		return &Problem{"a consumer handles one of its records at the moment: try again"}
	case err != nil:
		return t.explain("change a parked key", err)
	case problem != nil:
		return problem
	}
	return nil
}

func (t *Tables) explain(attempt string, err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "42P01", "42703": // undefined_table, undefined_column
			return exit.With(exit.Config, fmt.Errorf("%s: %w: Store.Schema of the module inbox creates the tables; --keys-table and --records-table name others", attempt, err))
		case "42501": // insufficient_privilege
			return exit.With(exit.NoPermission, fmt.Errorf("%s: %w", attempt, err))
		}
	}
	return exit.With(exit.Unavailable, fmt.Errorf("%s: %w", attempt, err))
}
