package inbox

import (
	"context"
	"fmt"
)

// ForgetOffsets makes Run continue a topic at its first record: after the topic was recreated, or after Kafka has lost or deleted records.
// Positions and ids still decide which records are new. Stop the consumer first.
func (s *Store) ForgetOffsets(ctx context.Context, q Execer, consumer, topic string) error {
	return s.repair(ctx, q, consumer, topic, "next_offset = NULL, leader_epoch = NULL, topic_id = NULL, partitions = NULL")
}

// ForgetPositions makes the consumer take the next record of each partition for new, whatever its position: after a restore of the
// database from an older copy without a new timeline, which uses positions again. Let the consumer read everything that was delivered
// before the restore, and stop it first. Offsets still keep it from handling a record of Kafka twice.
func (s *Store) ForgetPositions(ctx context.Context, q Execer, consumer, topic string) error {
	return s.repair(ctx, q, consumer, topic, "position = NULL, recent = NULL")
}

// AcceptPartitions is for after partitions were added. It tells a consumer that the daemon delivers a topic to n partitions, and that records with a position before the
// partition's mark are duplicates.
func (s *Store) AcceptPartitions(ctx context.Context, q Execer, consumer, topic string, n int32) error {
	return s.repair(ctx, q, consumer, topic, fmt.Sprint("partitions = ", n))
}

func (s *Store) repair(ctx context.Context, q Execer, consumer, topic, set string) error {
	_, err := q.ExecContext(ctx, `UPDATE `+s.marks()+` SET `+set+` WHERE consumer = $1 AND topic = $2`, consumer, topic)
	if err != nil {
		return fmt.Errorf("change the marks of consumer %q, topic %q: %w", consumer, topic, err)
	}
	return nil
}
