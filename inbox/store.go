package inbox

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Store knows which records a consumer has handled. The zero value is ready to use. Its methods may be called from
// several goroutines.
type Store struct {
	// Marks and Events are the names of the two tables, with or without a schema: by default inbox_marks and
	// processed_events.
	Marks, Events string

	// Systems are the system ids that may follow each other in one partition. Positions of different systems cannot be
	// compared, so by default another system id is an [OtherSystemError]. After a major upgrade, or a move to another
	// server, list both ids. The mark keeps the last position of each, so that records of both may be mixed. Slots and
	// databases of one server need not be listed.
	Systems []uint64
}

// Place is a partition of a topic.
type Place struct {
	Topic     string
	Partition int32
}

// Mark is what a consumer has handled of a partition.
type Mark struct {
	Position Position   // of the last record that was handled by its position
	Recent   []Position // the last positions, in their order: all that were handled from Recent[0] to Position
	Former   []Position // the last one of each other slot, and of each other system
	Accepted []Position // of records that are new although their position is before the mark: see [Store.AcceptRecord]

	// The rest is used by Run of kgoinbox and saramainbox.
	Next       int64  // the offset after the last handled record; -1: none
	Epoch      int32  // the leader epoch of that record; -1: unknown
	TopicID    string // Next belongs to this topic; empty: unknown
	Partitions int32  // the number of partitions of the topic; 0: unknown
}

// Tx is a transaction of any driver. [Store.Once] and [Store.After] take the one of database/sql, and package
// pgxinbox that of pgx.
type Tx interface {
	Exec(ctx context.Context, query string, args ...any) (rows int64, err error)
	// QueryRow scans the first row. Without a row, the error wraps sql.ErrNoRows.
	QueryRow(ctx context.Context, query string, args []any, dest ...any) error
}

//go:embed schema.sql
var schema string

// Schema returns the statements that create the two tables, for your migrations. No other function of this module
// creates anything.
func (s *Store) Schema() string {
	return strings.NewReplacer("{marks}", s.marks(), "{events}", s.events()).Replace(schema)
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

// Once reports whether the consumer sees the id for the first time, and stores the id. If another transaction has
// stored the id and is still open, Once waits for its end.
func (s *Store) Once(ctx context.Context, tx *sql.Tx, consumer, id string) (first bool, err error) {
	return s.OnceIn(ctx, sqlTx{tx}, consumer, id)
}

// OnceIn is [Store.Once] for other drivers than database/sql.
func (s *Store) OnceIn(ctx context.Context, tx Tx, consumer, id string) (first bool, err error) {
	if id == "" {
		return false, errors.New("an empty id cannot tell a duplicate from a new record")
	}
	n, err := tx.Exec(ctx, `INSERT INTO `+s.events()+` (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, consumer, id)
	if err != nil {
		return false, fmt.Errorf("store id %q of consumer %q: %w", id, consumer, err)
	}
	return n == 1, nil
}

// After reports whether p is after the last position that the consumer has handled in the partition, and stores p if
// so. It locks the partition's mark until the end of the transaction.
//
// The rule holds for the records that one daemon has sent to one partition, in the order of their offsets. It does
// not hold for records that a command has sent (see [ReadHeaders]): use [Store.Once].
func (s *Store) After(ctx context.Context, tx *sql.Tx, consumer string, at Place, p Position) (first bool, err error) {
	return s.AfterIn(ctx, sqlTx{tx}, consumer, at, p)
}

// AfterIn is [Store.After] for other drivers than database/sql.
func (s *Store) AfterIn(ctx context.Context, tx Tx, consumer string, at Place, p Position) (first bool, err error) {
	if p == (Position{}) {
		return false, fmt.Errorf("a record of partition %d of topic %q has no position: use Once with its id", at.Partition, at.Topic)
	}
	mark, err := s.Lock(ctx, tx, consumer, at)
	if err != nil {
		return false, err
	}
	if first, err = s.IsNew(p, mark); err != nil || !first {
		return false, err
	}
	mark.Advance(p)
	return true, s.Save(ctx, tx, consumer, at, mark)
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

func (s *Store) read(ctx context.Context, tx Tx, consumer string, at Place, lock string) (Mark, error) {
	var m Mark
	var positions, accepted string
	var recent []byte
	err := tx.QueryRow(ctx, `SELECT coalesce(position, ''), coalesce(accepted, ''), recent, coalesce(next_offset, -1), coalesce(leader_epoch, -1), `+
		`coalesce(topic_id, ''), coalesce(partitions, 0) FROM `+s.marks()+` WHERE consumer = $1 AND topic = $2 AND partition = $3`+lock,
		[]any{consumer, at.Topic, at.Partition}, &positions, &accepted, &recent, &m.Next, &m.Epoch, &m.TopicID, &m.Partitions)
	var last []Position
	if err == nil {
		last, err = parsePositions(positions)
	}
	if err == nil {
		m.Accepted, err = parsePositions(accepted)
	}
	if len(last) > 0 {
		m.Position, m.Former = last[0], last[1:]
		m.Recent = decodeRecent(recent, m.Position)
	}
	if err != nil {
		return Mark{}, fmt.Errorf("read the mark of %s: %w", describe(consumer, at), err)
	}
	return m, nil
}

// Save stores the mark of a partition that the transaction has locked.
func (s *Store) Save(ctx context.Context, tx Tx, consumer string, at Place, m Mark) error {
	positions, recent := "", []byte{}
	if m.Position != (Position{}) {
		recent = encodeRecent(m.Recent)
		positions = formatPositions(append([]Position{m.Position}, m.Former...))
	}
	n, err := tx.Exec(ctx, `UPDATE `+s.marks()+` SET position = nullif($4, ''), next_offset = nullif($5::bigint, -1), `+
		`leader_epoch = nullif($6::integer, -1), topic_id = nullif($7, ''), partitions = nullif($8::integer, 0), recent = $9::bytea, accepted = nullif($10, '') `+
		`WHERE consumer = $1 AND topic = $2 AND partition = $3`,
		consumer, at.Topic, at.Partition, positions, m.Next, m.Epoch, m.TopicID, m.Partitions, recent, formatPositions(m.Accepted))
	if err == nil && n != 1 {
		err = fmt.Errorf("the statement changed %d rows, not one", n)
	}
	if err != nil {
		return fmt.Errorf("store the mark of %s: %w", describe(consumer, at), err)
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

// pruneChunk is how many ids one statement of Prune deletes.
const pruneChunk = 10_000

// Prune deletes the ids that a consumer has stored longer ago than keep, and returns how many. A duplicate that
// arrives later than that is handled again. Marks are never deleted. Pass a *sql.DB: then each chunk of ids is a
// transaction of its own.
func (s *Store) Prune(ctx context.Context, q Execer, consumer string, keep time.Duration) (int64, error) {
	return s.PruneIn(ctx, sqlExec{q}.Exec, consumer, keep)
}

// PruneIn is [Store.Prune] for other drivers than database/sql.
func (s *Store) PruneIn(ctx context.Context, exec func(ctx context.Context, query string, args ...any) (int64, error),
	consumer string, keep time.Duration,
) (deleted int64, err error) {
	for {
		// The rows are read again under their locks, so two callers at a time do not disturb each other.
		n, err := exec(ctx, `DELETE FROM `+s.events()+` WHERE consumer = $1 AND id = ANY (ARRAY(SELECT id FROM `+s.events()+
			` WHERE consumer = $1 AND at < now() - $2::float8 * interval '1 second' ORDER BY at LIMIT $3 FOR UPDATE SKIP LOCKED))`,
			consumer, keep.Seconds(), pruneChunk)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("delete old ids of consumer %q: %w", consumer, err)
		}
		if n < pruneChunk {
			return deleted, nil
		}
	}
}
