package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// ForgetOffsets makes Run continue a topic at its first record: after the topic was recreated, or after Kafka has
// lost or deleted records. Positions and ids still decide which records are new, but not the ids that [Store.Prune]
// has deleted: keep ids for longer than the topic keeps records. Stop the consumer first.
func (s *Store) ForgetOffsets(ctx context.Context, q Execer, consumer, topic string) error {
	return s.repair(ctx, q, consumer, topic, "next_offset = NULL, leader_epoch = NULL, topic_id = NULL, partitions = NULL")
}

// ForgetPositions makes the consumer take the next record of each partition for new, whatever its position: after a
// restore of the database from an older copy without a new timeline, which uses positions again. Let the consumer
// read everything that was delivered before the restore, and stop it first. Offsets still keep it from handling a
// record of Kafka twice.
func (s *Store) ForgetPositions(ctx context.Context, q Execer, consumer, topic string) error {
	return s.repair(ctx, q, consumer, topic, "position = NULL, recent = NULL")
}

// AcceptRecord makes the consumer take one record for new, although its position is before the mark of its partition:
// what an [OrderError] is about, if the event was not handled. The mark stays where it is, so that repeats of later
// records are still recognized. Stop the consumer first.
func (s *Store) AcceptRecord(ctx context.Context, q Execer, consumer string, at Place, p Position) error {
	result, err := q.ExecContext(ctx, `UPDATE `+s.marks()+` SET accepted = concat_ws(' ', accepted, $4::text) WHERE consumer = $1 AND topic = $2 AND partition = $3`,
		consumer, at.Topic, at.Partition, p.String())
	if err == nil {
		err = mustChange(result)
	}
	if err != nil {
		return fmt.Errorf("change the mark of %s: %w", describe(consumer, at), err)
	}
	return nil
}

// mustChange returns an error if a statement has changed no row.
func mustChange(result sql.Result) error {
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errors.New("there is no mark")
	}
	return err
}

// AcceptPartitions is for after partitions were added. It tells a consumer that the daemon delivers a topic to n
// partitions, and that records with a position before the partition's mark are duplicates.
func (s *Store) AcceptPartitions(ctx context.Context, q Execer, consumer, topic string, n int32) error {
	return s.repair(ctx, q, consumer, topic, fmt.Sprint("partitions = ", n))
}

func (s *Store) repair(ctx context.Context, q Execer, consumer, topic, set string) error {
	result, err := q.ExecContext(ctx, `UPDATE `+s.marks()+` SET `+set+` WHERE consumer = $1 AND topic = $2`, consumer, topic)
	if err == nil {
		err = mustChange(result)
	}
	if err != nil {
		return fmt.Errorf("change the marks of consumer %q, topic %q: %w", consumer, topic, err)
	}
	return nil
}
