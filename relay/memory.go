package relay

import (
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// memory is what the relay keeps from one session to the next.
type memory struct {
	*checkpoint.History
	idleTimeout time.Duration // the server's idle_replication_slot_timeout
	slotUsed    time.Time     // when the slot was last in use by this process

	// Of deduplicated delivery.
	generation uint64    // of this process's last position record
	producers  []int64   // that the first record of that generation named
	doubt      bool      // Kafka may have more events of earlier sessions than are known here
	fence      time.Time // until when records of earlier sessions may still arrive
}

// isOwn reports whether a record is this process's, of its last session. Two processes may have begun with the same record, and have one
// generation then; another process is known by its producer id.
func (m *memory) isOwn(b *checkpoint.PositionRecord) bool {
	return b.Generation == m.generation && !slices.ContainsFunc(b.Producers, func(id int64) bool { return !slices.Contains(m.producers, id) })
}
