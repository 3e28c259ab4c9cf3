package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
)

// Saved is the position record: what one slot's daemon keeps in the position topic, so that the next one can tell whether it
// is still the same server and the same slot, and which records in Kafka are its predecessors'. The newest one of a slot
// counts. It is written before what it says may be confirmed is, and after what it says is acknowledged was.
type Saved struct {
	Slot       string
	Generation uint64 // counts the sessions of the slot; a late record of an earlier one counts for nothing
	SystemID   uint64
	Timeline   int32 // the server's
	// Acked is the last event in front of which Kafka has acknowledged every one. Zero: none that is known of.
	Acked Position
	// AckedTx tells the transaction of Acked from another that has its commit LSN, in the history of a restored copy.
	AckedTx TxID
	// Confirm is the highest position that the slot may have been told. A slot beyond it was moved by somebody else.
	Confirm pglogrepl.LSN
	// Producers are the ids that Kafka gave to the slot's latest sessions, newest last.
	Producers []int64
	// Partitions are the partition counts that keys were hashed over, by topic.
	Partitions map[string]int32
	// Routing is a fingerprint of the settings that decide where an event goes.
	Routing string
	// Clean: the session is over, and nothing that it sent can still arrive.
	Clean bool
	// Adopted: a person has decided that the slot goes on from where it stands.
	Adopted bool
	At      time.Time // when it was written, by the daemon's clock
}

// savedVersion is that of the text form; a reader refuses what it does not know.
const savedVersion = 1

// maxProducers bounds the sessions whose records are recognised. What those before them left is repeated if the slot
// has not been confirmed since.
const maxProducers = 100

// savedText is the text form. System identifiers are text, because JSON's numbers are not that large everywhere.
type savedText struct {
	Version    int              `json:"version"`
	Slot       string           `json:"slot"`
	Generation uint64           `json:"generation"`
	SystemID   string           `json:"system_id"`
	Timeline   int32            `json:"timeline"`
	Acked      string           `json:"acked,omitempty"`
	AckedXID   uint32           `json:"acked_xid,omitempty"`
	AckedTime  *time.Time       `json:"acked_commit_time,omitempty"`
	Confirm    string           `json:"confirm"`
	Clean      bool             `json:"clean"`
	Adopted    bool             `json:"adopted,omitempty"`
	Producers  []int64          `json:"producers,omitempty"`
	Partitions map[string]int32 `json:"partitions,omitempty"`
	Routing    string           `json:"routing,omitempty"`
	At         time.Time        `json:"at"`
}

// MarshalText is the value of the position record.
func (s *Saved) MarshalText() ([]byte, error) {
	t := savedText{
		Version: savedVersion, Slot: s.Slot, Generation: s.Generation, SystemID: strconv.FormatUint(s.SystemID, 10), Timeline: s.Timeline,
		Confirm: s.Confirm.String(), Clean: s.Clean, Adopted: s.Adopted, Producers: s.Producers, Partitions: s.Partitions, Routing: s.Routing, At: s.At.UTC(),
	}
	if !s.Acked.IsZero() {
		at := s.AckedTx.CommitTime.UTC()
		t.Acked, t.AckedXID, t.AckedTime = s.Acked.String(), s.AckedTx.XID, &at
	}
	return json.Marshal(t)
}

// ErrSavedVersion says that the record was written by a newer outboxcdc.
var ErrSavedVersion = errors.New("a version of the position record that this outboxcdc does not know")

// UnmarshalText reads what MarshalText wrote.
func (s *Saved) UnmarshalText(b []byte) error {
	var t savedText
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("read the position record: %w", err)
	}
	if t.Version != savedVersion {
		return fmt.Errorf("read the position record: version %d: %w", t.Version, ErrSavedVersion)
	}
	out := Saved{
		Slot: t.Slot, Generation: t.Generation, Timeline: t.Timeline, Clean: t.Clean, Adopted: t.Adopted, Producers: t.Producers, Partitions: t.Partitions,
		Routing: t.Routing, At: t.At,
	}
	var err error
	if out.SystemID, err = strconv.ParseUint(t.SystemID, 10, 64); err != nil {
		return fmt.Errorf("read the position record: system_id: %w", err)
	}
	if out.Confirm, err = pglogrepl.ParseLSN(t.Confirm); err != nil {
		return fmt.Errorf("read the position record: confirm %q: %w", t.Confirm, err)
	}
	if t.Acked != "" {
		if out.Acked, err = ParsePosition(t.Acked); err != nil {
			return fmt.Errorf("read the position record: %w", err)
		}
		if t.AckedTime != nil {
			out.AckedTx = TxID{CommitLSN: out.Acked.CommitLSN, XID: t.AckedXID, CommitTime: *t.AckedTime}
		}
	}
	*s = out
	return nil
}

// Next is the record of a session that comes after s, which may be nil; producer is the id that it sends under, routing the
// fingerprint of its settings. With other settings the list of producers begins anew: what those before have left at the ends
// of partitions says nothing about events that go elsewhere now, in this session and in all that follow.
func (s *Saved) Next(producer int64, routing string) Saved {
	if s == nil {
		return Saved{Generation: 1, Routing: routing, Producers: []int64{producer}}
	}
	next := *s
	next.Generation++
	next.Clean, next.Adopted = false, false
	next.Producers = slices.Clone(s.Producers)
	if s.Routing != routing {
		next.Routing, next.Producers, next.Partitions = routing, nil, nil
	}
	if n := len(next.Producers) - maxProducers + 1; n > 0 {
		next.Producers = next.Producers[n:]
	}
	next.Producers = append(next.Producers, producer)
	return next
}

// Hash notes the partition counts that keys are hashed over. When one is another than before, keys go elsewhere, and the list
// of producers begins anew with the session's own.
func (s *Saved) Hash(counts map[string]int32) {
	if s.hashesOtherwise(counts) {
		s.Producers = slices.Clone(s.Producers[len(s.Producers)-1:])
	}
	was := s.Partitions
	s.Partitions = make(map[string]int32, len(was)+len(counts))
	maps.Copy(s.Partitions, was)
	maps.Copy(s.Partitions, counts)
}

func (s *Saved) hashesOtherwise(counts map[string]int32) bool {
	for topic, n := range counts {
		if was, had := s.Partitions[topic]; had && was != n {
			return true
		}
	}
	return false
}

// Adoption is the record by which a person, having looked, makes the slot go on from confirm, where it stands. Of s, which may
// be nil, it keeps the number of sessions only: what stood in front of it counts for nothing. It names no producer and nothing
// that Kafka has, so the next session leaves nothing out.
func (s *Saved) Adoption(slot string, systemID uint64, timeline int32, confirm pglogrepl.LSN, now time.Time) Saved {
	out := Saved{Slot: slot, Generation: 1, SystemID: systemID, Timeline: timeline, Confirm: confirm, Clean: true, Adopted: true, At: now}
	if s != nil {
		out.Generation = s.Generation + 1
	}
	return out
}

// Unusable says that position records can neither be read nor kept until a person has done something.
type Unusable struct {
	Topic  string // where they are kept
	Why    string
	Remedy string
	Err    error // what was met, if it says more

	Missing bool // the topic does not exist
	Record  bool // only the newest record cannot be read: another one can be put behind it
}

func (e *Unusable) Error() string {
	text := "position topic " + e.Topic + ": " + e.Why
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; remedy: " + e.Remedy
}

func (e *Unusable) Unwrap() error { return e.Err }

// Recent is how many of a slot's newest records are read, if the topic has as many.
const Recent = 20

// Latest is what the newest records of one slot say together, given in the order of the topic; nil if there are none.
//
// They are believed together, because the newest alone may be a late one: of a process that was frozen, or that had the slot
// for a moment only. Whoever wrote one has confirmed and delivered what it says, so the highest counts. An adoption makes
// what stood in front of it count for nothing.
func Latest(records []Saved) *Saved {
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Adopted {
			records = records[i:]
			break
		}
	}
	if len(records) == 0 {
		return nil
	}
	out := records[len(records)-1]
	out.Producers = nil
	for _, r := range records {
		if r.Generation > out.Generation {
			out.Generation, out.Clean = r.Generation, false
		}
		for _, id := range r.Producers {
			if r.Routing != out.Routing || out.hashesOtherwise(r.Partitions) {
				break // it sent events elsewhere
			}
			if !slices.Contains(out.Producers, id) {
				out.Producers = append(out.Producers, id)
			}
		}
		if r.SystemID != out.SystemID || r.Timeline != out.Timeline {
			continue
		}
		out.Confirm = max(out.Confirm, r.Confirm)
		if out.Acked.IsZero() || r.Acked.Timeline == out.Acked.Timeline && r.Acked.Compare(out.Acked) > 0 {
			out.Acked, out.AckedTx = r.Acked, r.AckedTx
		}
	}
	return &out
}
