package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

// PositionRecord is what the daemon of a slot stores in the position topic. With it the next start recognises the
// server, the slot, and the records of earlier processes in Kafka. A reader merges the newest records of a slot
// ([Merge]). A record is stored before a status update carries its Confirm. Its Acked covers only events that Kafka
// has acknowledged. Only deduplicated delivery has position records, and only with Kafka: so producers, topics and the
// ends of partitions are Kafka's.
type PositionRecord struct {
	Slot       string
	Generation uint64 // counts the sessions of the slot
	SystemID   uint64
	Timeline   int32 // the server's
	// Epoch is that of the events committed at or after the last of EpochStarts, which has the starts of the latest
	// epochs, newest last. Events before it have an earlier one: see [PositionRecord.EpochOf].
	Epoch       uint32
	EpochStarts []pglogrepl.LSN
	// ServerMajor is the server's major version. pg_upgrade keeps the slots of version 17 and later only. 0: an earlier
	// version wrote this.
	ServerMajor int
	// UpgradedFrom is the system that the present one has replaced, as an operator has said: pg_upgrade has upgraded it,
	// or its rows were restored here. 0: none. No position of that system decides about an event of SystemID.
	UpgradedFrom uint64
	// Acked is the last event up to which Kafka has acknowledged every event. Zero: not known.
	Acked Position
	// AckedTx is the transaction of Acked. In the history of a restored copy another transaction may have its commit
	// LSN. An Acked without it is not read.
	AckedTx TxID
	// Settled is the last Acked that covered every event that earlier sessions may have sent; at first, and if the slot
	// was taken back before it with nothing acknowledged, the last position before the slot's. Events sent later have
	// higher positions, even an event that is sent after newer ones because its policy has changed. Zero: not known.
	Settled Position
	// Confirm is the highest position that a status update may have carried. If the slot is beyond it, another client
	// has moved the slot.
	Confirm pglogrepl.LSN
	// Producers are the producer ids of the processes whose records may be in Kafka after Acked, newest last. Each is that
	// of one turn of a process: see HasTurnAfter.
	Producers []int64
	// Topics are the topics that may have records after Acked, sorted. Recent are some of the topics that had records
	// shortly before it, those that left Topics last at the end: only a failover that loses acknowledged events is a
	// reason to search them.
	Topics, Recent []string
	// Sources is a fingerprint of the settings that decide which changes are events, and so which ordinal each event has.
	Sources string
	// Published identifies the catalog rows that decide what the publication sends, and the partitions of the outbox, in
	// the form that package replication writes and compares. "": not known.
	Published string
	// FenceWait is how long another instance has to wait after it has taken the slot from the writer. Zero: an earlier
	// version wrote this.
	FenceWait time.Duration
	// Clean: the session has ended, Kafka has no record of the slot after Acked, and none can still arrive.
	Clean bool
	// Adopted: an operator has decided that delivery continues from the slot's position.
	Adopted bool
	At      time.Time // when the record was written, by the daemon's clock
}

// recordVersion is the version of the text form. A reader refuses other versions.
const recordVersion = 1

// maxProducers is the maximum number of processes whose records are recognised. Events of earlier processes are sent
// again if the slot has not been confirmed since. A daemon that is killed within a second of each start adds one
// producer id a second.
const maxProducers = 1000

// keptProducers is how many producer ids stay in the record after [PositionRecord.Settle]. With them a failover soon
// after a restart is reported with the lost events of the previous process as well.
const keptProducers = 10

// recordText is the text form. System identifiers are strings, because not every JSON reader keeps such large numbers.
// An older outboxcdc ignores a field that it does not know, and writes records without it. If that could lose or repeat
// events, recordVersion has to be raised.
type recordText struct {
	Version    int              `json:"version"`
	Slot       string           `json:"slot"`
	Generation uint64           `json:"generation"`
	SystemID   string           `json:"system_id"`
	Timeline   int32            `json:"timeline"`
	Epoch      uint32           `json:"epoch,omitempty"`
	Starts     []string         `json:"epoch_starts,omitempty"`
	Major      int              `json:"server_major,omitempty"`
	Upgraded   string           `json:"upgraded_from,omitempty"`
	Acked      string           `json:"acked,omitempty"`
	AckedXID   uint32           `json:"acked_xid,omitempty"`
	AckedTime  *time.Time       `json:"acked_commit_time,omitempty"`
	Settled    string           `json:"settled,omitempty"`
	Confirm    string           `json:"confirm"`
	Clean      bool             `json:"clean"`
	Adopted    bool             `json:"adopted,omitempty"`
	Producers  []int64          `json:"producers,omitempty"`
	Topics     []string         `json:"topics,omitempty"`
	Recent     []string         `json:"recent_topics,omitempty"`
	Partitions map[string]int32 `json:"partitions,omitempty"` // in records of earlier versions: the topics, each with its partition count
	Sources    string           `json:"sources,omitempty"`
	Published  string           `json:"published,omitempty"`
	FenceWait  int64            `json:"fence_wait_ms,omitempty"`
	At         time.Time        `json:"at"`
}

// MarshalText returns the value of the record in the position topic.
func (s *PositionRecord) MarshalText() ([]byte, error) {
	t := recordText{
		Version: recordVersion, Slot: s.Slot, Generation: s.Generation, SystemID: strconv.FormatUint(s.SystemID, 10), Timeline: s.Timeline,
		Epoch: s.Epoch, Confirm: s.Confirm.String(), Clean: s.Clean, Adopted: s.Adopted, Producers: s.Producers, Topics: s.Topics, Recent: s.Recent, Sources: s.Sources,
		Published: s.Published, FenceWait: s.FenceWait.Milliseconds(), At: s.At.UTC(),
	}
	if !s.Acked.IsZero() {
		at := s.AckedTx.CommitTime.UTC()
		t.Acked, t.AckedXID, t.AckedTime = s.Acked.String(), s.AckedTx.XID, &at
	}
	if !s.Settled.IsZero() {
		t.Settled = s.Settled.String()
	}
	for _, from := range s.EpochStarts {
		t.Starts = append(t.Starts, from.String())
	}
	if t.Major = s.ServerMajor; s.UpgradedFrom != 0 {
		t.Upgraded = strconv.FormatUint(s.UpgradedFrom, 10)
	}
	return json.Marshal(t)
}

// ErrRecordVersion means that a newer outboxcdc wrote the record.
var ErrRecordVersion = errors.New("a version of the position record that this outboxcdc does not know")

// UnmarshalText parses the text form.
func (s *PositionRecord) UnmarshalText(b []byte) error {
	var t recordText
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("read the position record: %w", err)
	}
	if t.Version != recordVersion {
		return fmt.Errorf("read the position record: version %d: %w", t.Version, ErrRecordVersion)
	}
	out := PositionRecord{
		Slot: t.Slot, Generation: t.Generation, Timeline: t.Timeline, Epoch: t.Epoch, ServerMajor: t.Major, Clean: t.Clean, Adopted: t.Adopted, Producers: t.Producers, Topics: t.Topics, Recent: t.Recent,
		Sources: t.Sources, Published: t.Published, FenceWait: time.Duration(t.FenceWait) * time.Millisecond, At: t.At,
	}
	if out.Topics == nil && len(t.Partitions) > 0 {
		out.Topics = slices.Sorted(maps.Keys(t.Partitions))
	}
	var err error
	if out.SystemID, err = strconv.ParseUint(t.SystemID, 10, 64); err != nil {
		return fmt.Errorf("read the position record: system_id: %w", err)
	}
	if t.Upgraded != "" {
		if out.UpgradedFrom, err = strconv.ParseUint(t.Upgraded, 10, 64); err != nil {
			return fmt.Errorf("read the position record: upgraded_from: %w", err)
		}
	}
	for _, text := range t.Starts {
		from, err := pglogrepl.ParseLSN(text)
		if err != nil {
			return fmt.Errorf("read the position record: epoch_starts %q: %w", text, err)
		}
		out.EpochStarts = append(out.EpochStarts, from)
	}
	if out.Confirm, err = pglogrepl.ParseLSN(t.Confirm); err != nil {
		return fmt.Errorf("read the position record: confirm %q: %w", t.Confirm, err)
	}
	if t.Acked != "" {
		if out.Acked, err = ParsePosition(t.Acked); err != nil {
			return fmt.Errorf("read the position record: %w", err)
		}
		if t.AckedTime == nil { // without the transaction, nothing verifies that the server has this history
			out.Acked = Position{}
		} else {
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

// Next returns the first record of the session after s, which may be nil, with this server. producer is the session's
// producer id, sources the fingerprint of its settings.
func (s *PositionRecord) Next(l Lineage, producer int64, sources string) PositionRecord {
	if s == nil {
		return PositionRecord{SystemID: l.System(), Timeline: l.Current(), Generation: 1, Sources: sources, Producers: []int64{producer}}
	}
	next := *s
	next.enter(l)
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

// AckedFor returns Acked and its transaction if the reader's settings have the given fingerprint. With other settings
// an event may have another ordinal, and the server may not send the transaction that verifies its history, so
// AckedFor returns zero.
func (s *PositionRecord) AckedFor(sources string) (Position, TxID) {
	if s.Sources != sources {
		return Position{}, TxID{}
	}
	return s.Acked, s.AckedTx
}

// PublishedFor returns Published for a reader whose settings have the given fingerprint. Other settings may name
// other tables or another publication: for them it has no first word, which is about all of them together.
func (s *PositionRecord) PublishedFor(sources string) string {
	if s.Sources != sources {
		_, rest, _ := strings.Cut(s.Published, " ")
		return rest
	}
	return s.Published
}

// maxRecent is the maximum number of topics in Recent.
const maxRecent = 100

// Use sets the topics that may have records after Acked, so that the record does not grow with every topic that was
// ever used.
func (s *PositionRecord) Use(topics []string) {
	was := s.Topics
	topics = slices.Clone(topics)
	slices.Sort(topics)
	s.Topics = slices.Compact(topics)
	isListed := func(topic string) bool {
		_, listed := slices.BinarySearch(s.Topics, topic)
		return listed
	}
	recent := slices.DeleteFunc(slices.Clone(s.Recent), func(topic string) bool { return isListed(topic) || slices.Contains(was, topic) })
	s.Recent = last(append(recent, slices.DeleteFunc(slices.Clone(was), isListed)...), maxRecent)
}

// Settle notes that every event that earlier sessions may have sent is at or before Acked.
func (s *PositionRecord) Settle() {
	s.Producers = last(slices.Clone(s.Producers), keptProducers)
	if !s.Acked.IsZero() {
		s.Settled = s.Acked
	}
}

// last returns the last n elements of a list.
func last[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// Adoption returns the position record that `slot adopt` writes: the next session starts at confirm, the slot's
// current position. published and sources identify what the publication sends now, so the next session notices if the
// publication is altered after the adoption. The generation continues that of s, which may be nil. The epoch is a new
// one, because nothing is known about the order of the positions before and after the adoption. The record names no
// producer and no acked position, so the next session skips nothing.
func (s *PositionRecord) Adoption(slot string, systemID uint64, timeline int32, major int, confirm pglogrepl.LSN, published, sources string, now time.Time) PositionRecord {
	out := PositionRecord{
		Slot: slot, Generation: 1, Epoch: 1, SystemID: systemID, Timeline: timeline, ServerMajor: major, Confirm: confirm, Clean: true, Adopted: true, At: now,
		Published: published, Sources: sources,
	}
	if s != nil {
		out.Generation = s.Generation + 1
		out.Epoch = s.Epoch + 1
		if s.SystemID == systemID {
			out.UpgradedFrom = s.UpgradedFrom
		}
	}
	return out
}

// Predecessors returns the systems, other than this one, whose records in Kafka may be of rows of this one: the slot
// was theirs before. s may be nil.
func (s *PositionRecord) Predecessors(system uint64) (systems []uint64) {
	if s == nil {
		return nil
	}
	for _, other := range []uint64{s.SystemID, s.UpgradedFrom} {
		if other != 0 && other != system {
			systems = append(systems, other)
		}
	}
	return systems
}

// Unusable means that position records cannot be read or stored until an operator resolves the cause.
type Unusable struct {
	Topic  string // the position topic
	Why    string
	Remedy string
	Err    error // the cause, if it says more than Why

	Missing bool // the topic does not exist
	Denied  bool // a permission is missing
	Record  bool // only the newest record cannot be read; another one can be stored after it
}

func (e *Unusable) Error() string {
	text := "position topic " + e.Topic + ": " + e.Why
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; remedy: " + e.Remedy
}

func (e *Unusable) Unwrap() error { return e.Err }

// Recent is how many of a slot's newest records are read.
const Recent = 20

// Merge merges the newest records of one slot, given in the order of the topic. It returns nil if there are none.
//
// System, timeline and settings are those of the last record of the newest generation: the last record of the topic
// may be a late one, of a process that was frozen or that had the slot only for a moment. The merged record has the
// highest positions, and all producers and topics, those of each writer's last record: each record was true when it
// was written, and neither Kafka nor the slot goes back. An adoption invalidates all records up to its generation,
// late ones included. If lists of producers differ in the order, the newer record decides.
func Merge(records []PositionRecord) *PositionRecord {
	if len(records) == 0 {
		return nil
	}
	newest, adopted := 0, uint64(0)
	for i, r := range records {
		if last := &records[newest]; r.Generation > last.Generation || r.Generation == last.Generation && (r.Adopted || !last.Adopted) {
			newest = i
		}
		if r.Adopted {
			adopted = max(adopted, r.Generation)
		}
	}
	out := records[newest]
	out.Epoch, out.EpochStarts = latestEpoch(records, &out)
	out.Clean = out.Clean && newest == len(records)-1
	out.Producers = nil
	type writer struct {
		generation uint64
		producer   int64
	}
	topics := map[writer][]string{} // of the last record of each writer: it knows what Kafka has acknowledged since the one before
	inOrder := slices.Clone(records)
	slices.SortStableFunc(inOrder, func(a, b PositionRecord) int { return cmp.Compare(a.Generation, b.Generation) })
	for _, r := range inOrder {
		if r.Generation <= adopted && !r.Adopted {
			continue
		}
		out.Producers = addTurns(r.Producers, out.Producers)
		by := writer{generation: r.Generation}
		if n := len(r.Producers); n > 0 {
			by.producer = r.Producers[n-1]
		}
		topics[by] = r.Topics
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
	out.Use(slices.Concat(slices.Collect(maps.Values(topics))...))
	return &out
}
