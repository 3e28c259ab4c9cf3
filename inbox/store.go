package inbox

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"
)

// Store knows which records a consumer has handled. The zero value is ready to use. Its methods may be called from
// several goroutines.
type Store struct {
	// Marks and Events are the names of the two tables, with or without a schema: by default inbox_marks and
	// processed_events.
	Marks, Events string

	// ParkedKeys and ParkedRecords are the names of the two tables of [Park]: by default inbox_parked_keys and
	// inbox_parked_records.
	ParkedKeys, ParkedRecords string

	// Reused decides about a record whose id was used for another event, or seems to be: see [ReusedIDError].
	Reused Reused
}

// Place is a partition of a topic.
type Place struct {
	Topic     string
	Partition int32
}

// Mark is how far Run has handled a partition.
type Mark struct {
	Next    int64  // the offset after the last handled record; -1: none
	Epoch   int32  // the leader epoch of that record; -1: unknown
	TopicID string // Next belongs to this topic; empty: unknown
}

// Tx is a transaction of any driver. [Store.Once] takes the one of database/sql, and package pgxinbox that of pgx.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	// QueryRow scans the first row. Without a row, the error wraps sql.ErrNoRows.
	QueryRow(ctx context.Context, query string, args []any, dest ...any) error
}

//go:embed schema.sql
var schema string

// Schema returns the statements that create the tables, for your migrations. No other function of this module creates
// anything.
func (s *Store) Schema() string {
	keys, records := s.ParkedTables()
	return strings.NewReplacer("{marks}", s.marks(), "{events}", s.events(), "{keys}", keys, "{records}", records).Replace(schema + parkedSchema)
}

func (s *Store) marks() string  { return quote(s.Marks, "inbox_marks") }
func (s *Store) events() string { return quote(s.Events, "processed_events") }

func quote(name, ifEmpty string) string {
	if name == "" {
		name = ifEmpty
	}
	parts := strings.Split(name, ".")
	for i, part := range parts {
		parts[i] = `"` + strings.ReplaceAll(part, `"`, `""`) + `"`
	}
	return strings.Join(parts, ".")
}

// Lock reads the mark of a partition and locks it until the end of the transaction. A consumer that has lost the
// partition waits here, and then sees what its successor has handled.
func (s *Store) Lock(ctx context.Context, tx Tx, consumer string, at Place) (Mark, error) {
	mark, err := s.read(ctx, tx, consumer, at, " FOR UPDATE")
	if !errors.Is(err, sql.ErrNoRows) {
		return mark, err
	}
	_, err = tx.Exec(ctx, `INSERT INTO `+s.marks()+` (consumer, topic, partition) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		consumer, at.Topic, at.Partition)
	if err != nil {
		return Mark{}, fmt.Errorf("create the mark of %s: %w", describe(consumer, at), err)
	}
	return s.read(ctx, tx, consumer, at, " FOR UPDATE")
}

// Read reads the mark of a partition. ok is false if there is none.
func (s *Store) Read(ctx context.Context, tx Tx, consumer string, at Place) (mark Mark, ok bool, err error) {
	mark, err = s.read(ctx, tx, consumer, at, "")
	if errors.Is(err, sql.ErrNoRows) {
		return Mark{Next: -1, Epoch: -1}, false, nil
	}
	return mark, err == nil, err
}

func (s *Store) read(ctx context.Context, tx Tx, consumer string, at Place, lock string) (m Mark, err error) {
	err = tx.QueryRow(ctx, `SELECT coalesce(next_offset, -1), coalesce(leader_epoch, -1), coalesce(topic_id, '') FROM `+s.marks()+
		` WHERE consumer = $1 AND topic = $2 AND partition = $3`+lock, []any{consumer, at.Topic, at.Partition}, &m.Next, &m.Epoch, &m.TopicID)
	if err != nil {
		return Mark{}, fmt.Errorf("read the mark of %s: %w", describe(consumer, at), err)
	}
	return m, nil
}

// Save stores the mark of a partition that the transaction has locked.
func (s *Store) Save(ctx context.Context, tx Tx, consumer string, at Place, m Mark) error {
	n, err := tx.Exec(ctx, `UPDATE `+s.marks()+` SET next_offset = nullif($4::bigint, -1), leader_epoch = nullif($5::integer, -1), topic_id = nullif($6, '') `+
		`WHERE consumer = $1 AND topic = $2 AND partition = $3`, consumer, at.Topic, at.Partition, m.Next, m.Epoch, m.TopicID)
	if err == nil && n != 1 {
		err = fmt.Errorf("the statement changed %d rows, not one", n)
	}
	if err != nil {
		return fmt.Errorf("store the mark of %s: %w", describe(consumer, at), err)
	}
	return nil
}

// ForgetOffsets makes Run continue a topic at its first record: after the topic was recreated, or after Kafka has
// lost or deleted records. The ids still decide which records are new, so events that were handled longer ago than
// Keep are handled again if the topic has them. Stop the consumer first.
func (s *Store) ForgetOffsets(ctx context.Context, q Execer, consumer, topic string) error {
	result, err := q.ExecContext(ctx, `UPDATE `+s.marks()+` SET next_offset = NULL, leader_epoch = NULL, topic_id = NULL WHERE consumer = $1 AND topic = $2`, consumer, topic)
	var n int64
	if err == nil {
		n, err = result.RowsAffected()
	}
	if err == nil && n == 0 {
		err = errors.New("there is no mark")
	}
	if err != nil {
		return fmt.Errorf("change the marks of consumer %q, topic %q: %w", consumer, topic, err)
	}
	return nil
}

func describe(consumer string, at Place) string {
	return fmt.Sprintf("consumer %q, topic %q, partition %d", consumer, at.Topic, at.Partition)
}

// Execer is a *sql.DB, *sql.Conn or *sql.Tx.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}
