package park

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Tables are the tables of parked keys of one consumer.
type Tables struct {
	Keys, Records string // quoted
	Consumer      string
	Topics        []string // whose keys are retried
}

// Look locks the parked ones among the keys until the end of the transaction, and returns them. The transaction has to
// be READ COMMITTED and to hold the lock of the partition's mark: then this statement sees what other batches of the
// partition have parked.
func (t *Tables) Look(ctx context.Context, tx pgx.Tx, topic string, keys [][]byte) (held map[string]string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `SELECT id::text, key FROM `+t.Keys+` WHERE consumer = $1 AND topic = $2 AND NOT alone `+
		`AND sha256(key) = ANY (ARRAY(SELECT sha256(k) FROM unnest($3::bytea[]) k)) ORDER BY id FOR KEY SHARE`, t.Consumer, topic, keys)
	if err != nil {
		return nil, fmt.Errorf("look up parked keys: %w", err)
	}
	held = map[string]string{}
	var id string
	var key []byte
	if _, err = pgx.ForEachRow(rows, []any{&id, &key}, func() error { held[string(key)] = id; return nil }); err != nil {
		return nil, fmt.Errorf("look up parked keys: %w", err)
	}
	return held, nil
}

// Park stores the entries of a batch. held are the keys that Look has returned.
func (t *Tables) Park(ctx context.Context, tx pgx.Tx, topic string, held map[string]string, entries []Entry, rule Rule) error {
	var k struct {
		ids    []string
		keys   [][]byte
		alone  []bool
		waits  []float64
		dead   []bool
		errors []string
	}
	var r struct {
		parked              []string
		partitions, epochs  []int32
		offsets, timestamps []int64
		ids, headers        []string
		values              [][]byte
	}
	opened := map[string]string{}
	for _, e := range entries {
		id, isOpen := held[string(e.Key)]
		if !isOpen {
			id, isOpen = opened[string(e.Key)]
		}
		if e.Key == nil || !isOpen {
			if e.Failure == "" {
				return fmt.Errorf("park the record at offset %d: its key is not parked", e.Offset) // a fault of this module
			}
			id = newID()
			if e.Key != nil {
				opened[string(e.Key)] = id
			}
			next := rule.AfterFailure(1, e.Key == nil)
			k.ids, k.keys, k.alone = append(k.ids, id), append(k.keys, e.Key), append(k.alone, e.Key == nil)
			k.waits, k.dead, k.errors = append(k.waits, next.Wait.Seconds()), append(k.dead, next.IsDead), append(k.errors, storable(tx, e.Failure))
		}
		headers, err := json.Marshal(e.Headers)
		if err != nil {
			return err
		}
		r.parked, r.values = append(r.parked, id), append(r.values, e.Value)
		r.partitions, r.epochs = append(r.partitions, e.Partition), append(r.epochs, e.LeaderEpoch)
		r.offsets, r.timestamps = append(r.offsets, e.Offset), append(r.timestamps, e.TimestampMs)
		r.ids, r.headers = append(r.ids, storable(tx, printable(e.ID))), append(r.headers, string(headers))
	}
	_, err := tx.Exec(ctx, `WITH opened AS (
			INSERT INTO `+t.Keys+` (id, consumer, topic, key, alone, failures, next_try, parked_at, failed_at, first_error, last_error)
			SELECT id::uuid, $1, $2, key, alone, 1, CASE WHEN NOT dead THEN now() + wait * interval '1 second' END, now(), now(), error, error
			FROM unnest($3::text[], $4::bytea[], $5::bool[], $6::float8[], $7::bool[], $8::text[]) AS k (id, key, alone, wait, dead, error)
		)
		INSERT INTO `+t.Records+` (parked, number, partition, record_offset, leader_epoch, timestamp_ms, event_id, headers, value)
		SELECT r.parked, coalesce((SELECT max(number) FROM `+t.Records+` WHERE parked = r.parked), 0) + n, partition, record_offset, epoch, ms, event_id, headers::json, value
		FROM (SELECT parked::uuid AS parked, partition, record_offset, epoch, ms, event_id, headers, value, n
			FROM unnest($9::text[], $10::int[], $11::bigint[], $12::int[], $13::bigint[], $14::text[], $15::text[], $16::bytea[])
			WITH ORDINALITY AS r (parked, partition, record_offset, epoch, ms, event_id, headers, value, n)) r`,
		t.Consumer, topic, k.ids, k.keys, k.alone, k.waits, k.dead, k.errors,
		r.parked, r.partitions, r.offsets, r.epochs, r.timestamps, r.ids, r.headers, r.values)
	if err != nil {
		return fmt.Errorf("park %d records: %w", len(entries), err)
	}
	return nil
}

// printable is an id as Postgres can store it.
func printable(id string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(id, "\uFFFD"), "\x00", "\uFFFD")
}

// storable is a text as the database can store it. Encodings other than UTF8 do not have every character.
func storable(tx pgx.Tx, text string) string {
	switch tx.Conn().PgConn().ParameterStatus("server_encoding") {
	case "", "UTF8", "SQL_ASCII":
		return text
	}
	return strings.Trim(strconv.QuoteToASCII(text), `"`)
}

// newID returns a random uuid.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// In returns the queue of the consumer in a transaction.
func (t *Tables) In(tx pgx.Tx) Queue { return queue{t, tx} }

type queue struct {
	*Tables
	tx pgx.Tx
}

func (q queue) Claim(ctx context.Context) (*Key, error) {
	var k Key
	err := q.tx.QueryRow(ctx, `SELECT id::text, topic, key, alone, failures, handled FROM `+q.Keys+` WHERE consumer = $1 AND topic = ANY ($2) AND next_try <= now() `+
		`ORDER BY next_try LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED`, q.Consumer, q.Topics).Scan(&k.ID, &k.Topic, &k.Key, &k.IsAlone, &k.Failures, &k.Handled)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for a parked key whose next try is due: %w", err)
	}
	return &k, nil
}

func (q queue) Oldest(ctx context.Context, k *Key) (*Record, int64, error) {
	r := Record{Key: k.Key}
	var number int64
	var headers []byte
	err := q.tx.QueryRow(ctx, `SELECT number, partition, record_offset, leader_epoch, timestamp_ms, event_id, headers, value FROM `+q.Records+
		` WHERE parked = $1::uuid AND number > $2::bigint ORDER BY number LIMIT 1`, k.ID, k.Handled).
		Scan(&number, &r.Partition, &r.Offset, &r.LeaderEpoch, &r.TimestampMs, &r.ID, &headers, &r.Value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(headers, &r.Headers)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the oldest record of a parked key: %w", err)
	}
	return &r, number, nil
}

func (q queue) Remove(ctx context.Context, k *Key, number int64) (more bool, err error) {
	// The outer query does not see the deletion. The record was the oldest one; from it on, the index has no entries of
	// removed records, which stay until vacuum.
	err = q.tx.QueryRow(ctx, `WITH removed AS (DELETE FROM `+q.Records+` WHERE parked = $1::uuid AND number = $2::bigint) `+
		`SELECT EXISTS (SELECT FROM `+q.Records+` WHERE parked = $1::uuid AND number > $2::bigint)`, k.ID, number).Scan(&more)
	if err != nil {
		return false, fmt.Errorf("remove a parked record: %w", err)
	}
	return more, nil
}

func (q queue) Close(ctx context.Context, k *Key) (bool, error) {
	// Two statements: the second one sees what was committed before the first one got the lock.
	tag, err := q.tx.Exec(ctx, `SELECT FROM `+q.Keys+` WHERE id = $1::uuid FOR UPDATE SKIP LOCKED`, k.ID)
	if err == nil && tag.RowsAffected() == 1 {
		tag, err = q.tx.Exec(ctx, `DELETE FROM `+q.Keys+` WHERE id = $1::uuid AND NOT EXISTS (SELECT FROM `+q.Records+` WHERE parked = $1::uuid)`, k.ID)
	}
	if err != nil {
		return false, fmt.Errorf("end the parking of a key: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

func (q queue) Postpone(ctx context.Context, k *Key, failures int, handled int64, next Next, failure string) error {
	_, err := q.tx.Exec(ctx, `UPDATE `+q.Keys+` SET failures = $2::int, handled = $6::bigint, next_try = CASE WHEN NOT $3::bool THEN now() + $4::float8 * interval '1 second' END, `+
		`failed_at = CASE WHEN $5::text = '' THEN failed_at ELSE now() END, last_error = coalesce(nullif($5, ''), last_error), `+
		`first_error = CASE WHEN failures = 0 AND $5 <> '' THEN $5 ELSE first_error END WHERE id = $1::uuid`,
		k.ID, failures, next.IsDead, next.Wait.Seconds(), storable(q.tx, failure), handled)
	if err != nil {
		return fmt.Errorf("postpone the next try of a parked key: %w", err)
	}
	return nil
}

func (q queue) SetAside(ctx context.Context, k *Key, number int64, failures int, failure string) error {
	id := newID()
	_, err := q.tx.Exec(ctx, `INSERT INTO `+q.Keys+` (id, consumer, topic, key, alone, failures, parked_at, failed_at, first_error, last_error) `+
		`SELECT $2::uuid, consumer, topic, key, true, $3::int, parked_at, now(), CASE WHEN failures = 0 THEN $4::text ELSE first_error END, $4::text FROM `+q.Keys+` WHERE id = $1::uuid`,
		k.ID, id, failures, storable(q.tx, failure))
	if err == nil {
		_, err = q.tx.Exec(ctx, `UPDATE `+q.Records+` SET parked = $3::uuid, number = 1 WHERE parked = $1::uuid AND number = $2::bigint`, k.ID, number, id)
	}
	if err != nil {
		return fmt.Errorf("set a dead record aside: %w", err)
	}
	return nil
}

// ParkedFor returns how long the key has been parked that is parked longest; 0: none is.
func (t *Tables) ParkedFor(ctx context.Context, tx pgx.Tx) (time.Duration, error) {
	var seconds float64
	err := tx.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM now() - min(parked_at)), 0)::float8 FROM `+t.Keys+` WHERE consumer = $1`, t.Consumer).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("look for the key that is parked longest: %w", err)
	}
	return max(0, time.Duration(seconds*float64(time.Second))), nil
}

// NextTry returns how long the next try of a key is away, at most limit. It ignores keys that are due: another process
// is trying them.
func (t *Tables) NextTry(ctx context.Context, q interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}, limit time.Duration,
) (time.Duration, error) {
	var seconds float64
	err := q.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM min(next_try) - clock_timestamp())::float8, $3) FROM `+t.Keys+
		` WHERE consumer = $1 AND topic = ANY ($2) AND next_try > now()`, t.Consumer, t.Topics, limit.Seconds()).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("look for the next try of a parked key: %w", err)
	}
	return max(0, min(limit, time.Duration(seconds*float64(time.Second)))), nil
}
