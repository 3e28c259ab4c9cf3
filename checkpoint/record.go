package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
)

// PositionRecord is what the daemon of a slot keeps in the position topic. From it the next start can tell whether it
// is still the same server and the same slot, and which records in Kafka are those of earlier processes. The newest records of a slot
// count together ([Merge]). Confirm is stored before a status update carries that position. Acked is only what Kafka has acknowledged.
type PositionRecord struct {
	Slot       string
	Generation uint64 // counts the sessions of the slot; a late record of an earlier one counts for nothing
	SystemID   uint64
	Timeline   int32 // the server's
	// Acked is the last event before which Kafka has acknowledged every one. Zero: none that is known of.
	Acked Position
	// AckedTx tells the transaction of Acked from another that has its commit LSN, in the history of a restored copy.
	AckedTx TxID
	// Settled is the last Acked that covered everything earlier sessions may have sent. Whatever is sent later has a higher position, even an
	// event that was skipped before (its policy has changed) and is stored after newer ones. Zero: not known.
	Settled Position
	// Confirm is the highest position that the slot may have been told. A slot beyond it was moved by another client.
	Confirm pglogrepl.LSN
	// Producers are the producer ids of the processes whose records may be in Kafka after Acked, newest last.
	Producers []int64
	// Topics are those that records after Acked may be in, sorted.
	Topics []string
	// Sources is a fingerprint of the settings that decide which changes are events, and with that which ordinal each has.
	Sources string
	// Published identifies the catalog rows that decided what the publication sent, and the partitions of the outbox, in the form that
	// package replication writes and compares. "": not known.
	Published string
	// FenceWait is how long the writer relies on other instances to wait after they have taken the slot. Zero: a version before wrote this.
	FenceWait time.Duration
	// Clean: the session is over, Kafka has no record of the slot after Acked, and none can still arrive.
	Clean bool
	// Adopted: a person has decided that the slot goes on from where it stands.
	Adopted bool
	At      time.Time // when it was written, by the daemon's clock
}

// recordVersion is that of the text form; a reader refuses what it does not know.
const recordVersion = 1

// maxProducers bounds the processes whose records are recognised. Records of earlier ones are sent again if the slot has not
// been confirmed since. A daemon that is killed within a second of each start adds one a second.
const maxProducers = 1000

// keptProducers is how many producer ids stay in the record once their records are no longer in doubt: a failover that loses
// delivered transactions soon after a restart is reported with the records of the process before.
const keptProducers = 10

// recordText is the text form. System identifiers are text, because JSON's numbers are not that large everywhere.
type recordText struct {
	Version    int              `json:"version"`
	Slot       string           `json:"slot"`
	Generation uint64           `json:"generation"`
	SystemID   string           `json:"system_id"`
	Timeline   int32            `json:"timeline"`
	Acked      string           `json:"acked,omitempty"`
	AckedXID   uint32           `json:"acked_xid,omitempty"`
	AckedTime  *time.Time       `json:"acked_commit_time,omitempty"`
	Settled    string           `json:"settled,omitempty"`
	Confirm    string           `json:"confirm"`
	Clean      bool             `json:"clean"`
	Adopted    bool             `json:"adopted,omitempty"`
	Producers  []int64          `json:"producers,omitempty"`
	Topics     []string         `json:"topics,omitempty"`
	Partitions map[string]int32 `json:"partitions,omitempty"` // of records of earlier versions: the topics, each with its partition count
	Sources    string           `json:"sources,omitempty"`
	Published  string           `json:"published,omitempty"`
	FenceWait  int64            `json:"fence_wait_ms,omitempty"`
	At         time.Time        `json:"at"`
}

// MarshalText is the value of the position record.
func (s *PositionRecord) MarshalText() ([]byte, error) {
	t := recordText{
		Version: recordVersion, Slot: s.Slot, Generation: s.Generation, SystemID: strconv.FormatUint(s.SystemID, 10), Timeline: s.Timeline,
		Confirm: s.Confirm.String(), Clean: s.Clean, Adopted: s.Adopted, Producers: s.Producers, Topics: s.Topics, Sources: s.Sources,
		Published: s.Published, FenceWait: s.FenceWait.Milliseconds(), At: s.At.UTC(),
	}
	if !s.Acked.IsZero() {
		at := s.AckedTx.CommitTime.UTC()
		t.Acked, t.AckedXID, t.AckedTime = s.Acked.String(), s.AckedTx.XID, &at
	}
	if !s.Settled.IsZero() {
		t.Settled = s.Settled.String()
	}
	return json.Marshal(t)
}

// ErrRecordVersion says that the record was written by a newer outboxcdc.
var ErrRecordVersion = errors.New("a version of the position record that this outboxcdc does not know")

// UnmarshalText reads what MarshalText wrote.
func (s *PositionRecord) UnmarshalText(b []byte) error {
	var t recordText
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("read the position record: %w", err)
	}
	if t.Version != recordVersion {
		return fmt.Errorf("read the position record: version %d: %w", t.Version, ErrRecordVersion)
	}
	out := PositionRecord{
		Slot: t.Slot, Generation: t.Generation, Timeline: t.Timeline, Clean: t.Clean, Adopted: t.Adopted, Producers: t.Producers, Topics: t.Topics,
		Sources: t.Sources, Published: t.Published, FenceWait: time.Duration(t.FenceWait) * time.Millisecond, At: t.At,
	}
	if out.Topics == nil && len(t.Partitions) > 0 {
		out.Topics = slices.Sorted(maps.Keys(t.Partitions))
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
	if t.Settled != "" {
		if out.Settled, err = ParsePosition(t.Settled); err != nil {
			return fmt.Errorf("read the position record: settled: %w", err)
		}
	}
	*s = out
	return nil
}

// Next is the record of a session that comes after s, which may be nil; producer is the id that it sends under, sources the
// fingerprint of its settings.
func (s *PositionRecord) Next(producer int64, sources string) PositionRecord {
	if s == nil {
		return PositionRecord{Generation: 1, Sources: sources, Producers: []int64{producer}}
	}
	next := *s
	next.Generation++
	next.Clean, next.Adopted = false, false
	next.Acked, next.AckedTx = s.AckedFor(sources)
	if next.Sources != sources {
		next.Settled = Position{}
	}
	next.Sources = sources
	next.Producers = slices.DeleteFunc(slices.Clone(s.Producers), func(id int64) bool { return id == producer })
	next.Producers = append(last(next.Producers, maxProducers-1), producer)
	return next
}

// AckedFor is Acked, and its transaction, for a reader whose settings have the given fingerprint. With other settings an event may
// have another ordinal, and the server may not send the transaction by which its history is verified; so Acked says nothing then.
func (s *PositionRecord) AckedFor(sources string) (Position, TxID) {
	if s.Sources != sources {
		return Position{}, TxID{}
	}
	return s.Acked, s.AckedTx
}

// PublishedFor is Published for a reader whose settings have the given fingerprint: "" with other settings, which may name other tables.
func (s *PositionRecord) PublishedFor(sources string) string {
	if s.Sources != sources {
		return ""
	}
	return s.Published
}

// Use adds topics that records may be in from now on.
func (s *PositionRecord) Use(topics []string) {
	all := slices.Concat(s.Topics, topics)
	slices.Sort(all)
	s.Topics = slices.Compact(all)
}

// Settle notes that no record of an earlier session is in doubt any more: all that they may have sent is at or before Acked.
func (s *PositionRecord) Settle() {
	s.Producers, s.Topics = last(slices.Clone(s.Producers), keptProducers), nil
	if !s.Acked.IsZero() {
		s.Settled = s.Acked
	}
}

// last is the end of a list, n long at most.
func last[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// Adoption is the position record that `slot adopt` writes: the next session starts at confirm, the slot's present position. published and
// sources identify what the publication sends at present, so the next session notices a publication that was altered after the adoption.
// Of s, which may be nil, the adoption keeps the number of sessions. It names no producer and no acked position, so the next session skips
// nothing.
func (s *PositionRecord) Adoption(slot string, systemID uint64, timeline int32, confirm pglogrepl.LSN, published, sources string, now time.Time) PositionRecord {
	out := PositionRecord{
		Slot: slot, Generation: 1, SystemID: systemID, Timeline: timeline, Confirm: confirm, Clean: true, Adopted: true, At: now,
		Published: published, Sources: sources,
	}
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

// Merge is what the newest records of one slot say together, given in the order of the topic; nil if there are none.
//
// The last record of the newest generation says which system, timeline and settings they are about: the last one of the topic
// may be a late record of a process that was frozen, or that had the slot for a moment only. All of them are believed, because
// each was true when it was written and Kafka and slot only go forward; so the highest positions count, and all producers and
// topics. An adoption makes all records up to its generation count for nothing, late ones too.
func Merge(records []PositionRecord) *PositionRecord {
	if len(records) == 0 {
		return nil
	}
	newest, adopted := 0, uint64(0)
	for i, r := range records {
		if last := &records[newest]; r.Generation > last.Generation || r.Generation == last.Generation && !last.Adopted {
			newest = i
		}
		if r.Adopted {
			adopted = max(adopted, r.Generation)
		}
	}
	out := records[newest]
	out.Clean = out.Clean && newest == len(records)-1
	out.Producers, out.Topics = nil, nil
	inOrder := slices.Clone(records)
	slices.SortStableFunc(inOrder, func(a, b PositionRecord) int { return cmp.Compare(a.Generation, b.Generation) })
	for _, r := range inOrder {
		if r.Generation <= adopted && !r.Adopted {
			continue
		}
		// The newest list comes last as a whole: Next keeps the end, and the list of a session that had settled is short.
		listed := make(map[int64]bool, len(r.Producers))
		for _, id := range r.Producers {
			listed[id] = true
		}
		out.Producers = slices.DeleteFunc(out.Producers, func(id int64) bool { return listed[id] })
		out.Producers = append(out.Producers, r.Producers...)
		out.Use(r.Topics)
		out.FenceWait = max(out.FenceWait, r.FenceWait)
		if r.SystemID != out.SystemID || r.Timeline != out.Timeline {
			continue
		}
		out.Confirm = max(out.Confirm, r.Confirm)
		acked, tx := r.AckedFor(out.Sources)
		if out.Acked.IsZero() || acked.Timeline == out.Acked.Timeline && acked.Compare(out.Acked) > 0 {
			out.Acked, out.AckedTx = acked, tx
		}
	}
	return &out
}

// Contradiction is why a session cannot start at start on this server after the position record; nil if it can. The server must be one
// that the writer of the record can have read from, and no other client may have moved the slot. The publication must be unchanged:
// events that were committed while it sent less are not in the stream. altered says how it was changed; "": it was not. The error is a
// [HistoryError].
func (s *PositionRecord) Contradiction(l Lineage, start pglogrepl.LSN, altered string) error {
	allowed := s.Confirm
	if end, over := l.EndOf(s.Timeline); over { // of a timeline that ended, only so much is part of the server's history
		allowed = min(allowed, end)
	}
	remedy := "compare the outbox table with the topics; then `outboxcdc slot adopt` makes the slot's present position the one to go on from"
	var what string
	switch {
	case s.SystemID != l.System():
		what = fmt.Sprintf("it was written for system %d, this server is system %d", s.SystemID, l.System())
		remedy = "if both servers are in use, give each a topic of its own in delivery.position_topic (slot adopt would stop the other server's daemon); " +
			"if this server replaces the other, " + remedy
	case !descends(l, s.Timeline):
		what = fmt.Sprintf("it was written on timeline %d, and the server's timeline %d does not descend from it", s.Timeline, l.Current())
	case !s.Acked.IsZero() && Holds(l, s.Acked) && s.Acked.CommitLSN >= l.End():
		what = fmt.Sprintf("Kafka has the transaction committed at %s, but the server's WAL ends at %s: it is an older copy", s.Acked.CommitLSN, l.End())
	case start > allowed:
		what = fmt.Sprintf("the slot is at %s, but outboxcdc confirmed %s at most: it was recreated, advanced, or read by another client, "+
			"and events committed in between may be missing in Kafka", start, allowed)
	case altered != "":
		what = fmt.Sprintf("since %s, %s", s.At.UTC().Format(time.RFC3339), altered)
	default:
		return nil
	}
	return &HistoryError{Op: "compare with the position record of slot " + s.Slot, Err: errors.New(what), Remedy: remedy}
}
