package inbox

import (
	_ "embed"
	"slices"
	"sync/atomic"
	"time"
)

// Park lets a record that cannot be handled hold up its key, and not its partition. The zero value is ready to use.
//
// A record that fails is stored in the transaction of its batch, and so are later records of the same topic and key,
// without a call of the handler. Run tries the oldest record of each parked key again on a schedule. A record that
// succeeds is followed by the next one of its key at once. A key without records is parked no more. A record without a
// key has no order, so it is parked alone.
type Park struct {
	// Schedule are the upper bounds of the pauses before each further try. Each pause is random, from zero to its bound.
	// Empty: 1m, 5m, 15m, 30m, 1h, 2h, 4h, 8h, 12h and 24h.
	Schedule []time.Duration

	// OnDead says what becomes of a key whose oldest record has failed at its last try.
	OnDead OnDead

	// Counts is what this process has done. Package inboxprom shows it.
	Counts Counts
}

// Counts counts the records of batches, and the tries of parked ones.
type Counts struct {
	Handled, Parked, Behind              atomic.Int64 // records of batches that were committed; Behind: parked behind another one
	RetryHandled, RetryFailed, RetryDied atomic.Int64 // tries of parked records; died: it was the last one
}

// OnDead says what becomes of a key whose oldest record has failed at its last try.
type OnDead int

const (
	// Hold keeps the key parked until a person decides with outboxcdc parked.
	Hold OnDead = iota
	// Release stores the dead record alone until a person decides, and goes on with the next record of the key. It is for
	// consumers that do not need the order of a key.
	Release
)

var schedule = []time.Duration{
	time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour,
	2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

// Pauses returns the schedule, or the default if it is empty.
func (p *Park) Pauses() []time.Duration {
	if len(p.Schedule) == 0 {
		return slices.Clone(schedule)
	}
	return p.Schedule
}

//go:embed parked.sql
var parkedSchema string

// ParkedTables returns the names of the two tables of parked keys and their records, quoted for statements.
func (s *Store) ParkedTables() (keys, records string) {
	return quote(s.ParkedKeys, "inbox_parked_keys"), quote(s.ParkedRecords, "inbox_parked_records")
}
