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
	resent      resentEvents
	lettersLeft checkpoint.LettersLeft
	lettersNew  bool // the dead-letter topic was created again, and was not read since

	// For deduplicated delivery.
	generation uint64           // of this process's last position record
	producers  []int64          // of the first record of that generation
	doubt      bool             // Kafka may have events of earlier sessions that the history lacks, or unreported phantoms
	others     map[int64]uint32 // by producer id of another process: the number that stands for its session; see noteOthers
	foundOn    int32            // timeline of the server whose events Found has
	fence      time.Time        // until then records of earlier sessions may still arrive
	loadRead   int64            // what was read of the position topic, which each session reads again
}

// isOwn reports whether the last session of this process wrote the record. Two processes that began with the same
// record have the same generation, but different producer ids.
func (m *memory) isOwn(b *checkpoint.PositionRecord) bool {
	return b.Generation == m.generation && !slices.ContainsFunc(b.Producers, func(id int64) bool { return !slices.Contains(m.producers, id) })
}
