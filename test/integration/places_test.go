package integration

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// changeLog has the changes during a run by which events may go elsewhere than before.
type changeLog struct {
	Growth   map[string][2]int // partition count of each topic, at the beginning and at the end of the run
	Changes  []change          // of settings, in the order of time
	Sessions map[int64]int     // numbers the sessions, by their producer ids
	Dropped  map[string]bool   // ids of events that the poison policy dropped at least once
	Dead     string            // the dead-letter topic
}

// change is one of settings between two sessions. It costs duplicates and order if the newest position record lags
// behind Kafka: an event after its acked position may be sent to another topic than before.
type change struct {
	What     string   // rerouted, or a change of which events are poison
	Sessions int      // that had begun
	Acked    string   // by the position record; "": nothing
	Topics   []string // named by the position record
}

const rerouted = "route"

// knew reports whether the position record knew that the event at p is in Kafka.
func (c *change) knew(p position) bool {
	acked, _ := parsePosition(c.Acked)
	return !acked.before(p)
}

// note adds a change of settings. No daemon runs.
func (a *changeLog) note(o *outbox, what string) {
	o.t.Helper()
	c := change{What: what, Sessions: len(o.sessions())}
	all := o.positions()
	var acked position
	for _, s := range all[max(0, len(all)-20):] { // so many are merged
		if at, err := parsePosition(s.Acked); err == nil && acked.before(at) {
			acked, c.Acked = at, s.Acked
		}
		c.Topics = append(c.Topics, s.Topics...)
	}
	slices.Sort(c.Topics)
	c.Topics = slices.Compact(c.Topics)
	a.Changes = append(a.Changes, c)
}

// history returns that of a finished run with these changes.
func (a *changeLog) history(o *outbox) *history {
	o.t.Helper()
	h := o.history()
	a.Sessions = o.sessions()
	h.Altered = a
	return h
}

// sessions numbers the sessions by the producer ids that the position records name.
func (o *outbox) sessions() map[int64]int {
	o.t.Helper()
	numbers := map[int64]int{}
	for _, s := range o.positions() {
		for _, id := range s.Producers {
			if _, known := numbers[id]; !known {
				numbers[id] = len(numbers)
			}
		}
	}
	return numbers
}

// placedRecord is a record and when it was sent.
type placedRecord struct {
	kafkatest.Record
	id      string
	at      position
	session int
	changes int // before the session
}

// judgePlaces is judge for a run with a change log. The records of one partition between two changes are judged by
// themselves, with the rows that they belong to. Beyond that every row must be somewhere, in an allowed topic; an event
// has one position; an event is sent twice only where a change allows it; keys keep their order from one change to the
// next, and move only because their topic has grown.
func (h *history) judgePlaces() *verdict {
	v := &verdict{at: map[string]position{}, first: map[string]place{}, repeated: map[string]int{}}
	v.Rows, v.Records, v.problems = len(h.Truth), len(h.Records), h.truthProblems()
	rows, own := map[string]row{}, map[string]bool{}
	for _, r := range h.Truth {
		rows[r.ID], own[r.Topic] = r, true
	}
	all := h.placedRecords(v)
	var names []string // of places, in the order of changes
	places := map[string][]kafkatest.Record{}
	for _, rec := range all {
		if r, known := rows[rec.id]; known && rec.Topic != r.Topic && own[rec.Topic] {
			v.problems = append(v.problems, fmt.Sprintf("id %s is in topic %s, for %s", rec.id, rec.Topic, r.Topic))
		}
		name := fmt.Sprintf("%s after %d changes", placeOf(rec.Record).partition, rec.changes)
		if places[name] == nil {
			names = append(names, name)
		}
		places[name] = append(places[name], rec.Record)
	}
	for _, name := range names {
		v.add(judge(rowsOf(rows, places[name]), places[name]))
	}
	for _, r := range h.Truth {
		if _, there := v.at[r.ID]; !there {
			v.Missing = append(v.Missing, fmt.Sprintf("id %q of key %q for %s", r.ID, r.Key, r.Topic))
		}
	}
	h.checkPositions(v)
	h.checkDuplicates(all, v)
	h.checkKeys(all, v)
	if what := unsafeConfirm(h.Looks, h.Commits, v.first); what != "" {
		v.problems = append(v.problems, what)
	}
	return v
}

// placedRecords returns all records in the order of the sessions that sent them; those of a partition are in the
// order of offsets.
func (h *history) placedRecords(v *verdict) (all []placedRecord) {
	for _, rec := range h.Records {
		p := placedRecord{Record: rec}
		var known bool
		if p.session, known = h.Altered.Sessions[rec.Producer]; !known {
			v.problems = append(v.problems, fmt.Sprintf("%v is of producer %d, which no position record names", placeOf(rec), rec.Producer))
		}
		p.id, _ = headerOf(rec, "id")
		text, _ := headerOf(rec, "outboxcdc-position")
		p.at, _ = parsePosition(text) // errors are reported elsewhere
		for _, c := range h.Altered.Changes {
			if c.Sessions <= p.session {
				p.changes++
			}
		}
		all = append(all, p)
	}
	slices.SortStableFunc(all, func(a, b placedRecord) int { return cmp.Compare(a.session, b.session) })
	return all
}

// rowsOf returns the rows that have a record among these, each with its topic, and numbered by key.
func rowsOf(rows map[string]row, records []kafkatest.Record) []row {
	var there []row
	had := map[string]bool{}
	for _, rec := range records {
		id, _ := headerOf(rec, "id")
		if r, known := rows[id]; known && !had[id] {
			had[id], r.Topic = true, rec.Topic
			there = append(there, r)
		}
	}
	slices.SortFunc(there, func(a, b row) int { return cmp.Compare(a.N, b.N) })
	last := map[string]int{}
	for i := range there {
		key := string(there[i].Key)
		last[key]++
		there[i].Seq = last[key]
	}
	return there
}

// add merges the verdict on one more place. Those of earlier sessions are added first.
func (v *verdict) add(p *verdict) {
	for id, at := range p.at {
		v.repeated[id] += p.repeated[id]
		other, again := v.at[id]
		if !again {
			v.at[id], v.first[id] = at, p.first[id]
			continue
		}
		v.repeated[id]++
		v.Repeats++
		if other != at {
			v.problems = append(v.problems, fmt.Sprintf("id %s has the positions %v and %v", id, other, at))
		}
	}
	v.Repeats += p.Repeats
	v.Missing, v.Phantom = append(v.Missing, p.Missing...), append(v.Phantom, p.Phantom...)
	v.OutOfOrder, v.BadRepeats = append(v.OutOfOrder, p.OutOfOrder...), append(v.BadRepeats, p.BadRepeats...)
	v.WrongContent, v.Misplaced = append(v.WrongContent, p.WrongContent...), append(v.Misplaced, p.Misplaced...)
	v.Invalid, v.problems = append(v.Invalid, p.Invalid...), append(v.problems, p.problems...)
}

// checkPositions fails if two events have the same position.
func (h *history) checkPositions(v *verdict) {
	owner := map[position]string{}
	for _, id := range slices.Sorted(maps.Keys(v.at)) {
		if other, taken := owner[v.at[id]]; taken {
			v.problems = append(v.problems, fmt.Sprintf("id %s has the position of id %s", id, other))
		}
		owner[v.at[id]] = id
	}
}

// checkDuplicates fails an event that was sent again, unless a change between the two allows it, or an older event of
// its key was sent after the first record: by a later session, or behind it in its partition.
func (h *history) checkDuplicates(all []placedRecord, v *verdict) {
	sent, ofKey := map[string][]*placedRecord{}, map[[2]string][]*placedRecord{}
	for i := range all {
		rec := &all[i]
		key := [2]string{rec.Topic, string(rec.Key)}
		for _, first := range sent[rec.id] {
			overtakes := func(older *placedRecord) bool {
				behind := older.Topic == first.Topic && older.Partition == first.Partition && older.Offset > first.Offset
				return (older.session > first.session || behind) && older.at.before(rec.at)
			}
			overtaken := slices.ContainsFunc(ofKey[key], overtakes) || slices.ContainsFunc(ofKey[[2]string{first.Topic, string(first.Key)}], overtakes)
			if !overtaken && !h.mayRepeat(first, rec) {
				v.problems = append(v.problems, fmt.Sprintf("id %s at %v was sent to %v and again to %v, and no change allows that", rec.id, rec.at, placeOf(first.Record), placeOf(rec.Record)))
			}
		}
		sent[rec.id] = append(sent[rec.id], rec)
		ofKey[key] = append(ofKey[key], rec)
	}
}

// mayRepeat reports whether a change sent the event to another topic, and no position record knew that the event was in
// Kafka or named its topic. Otherwise the daemon has read that topic.
func (h *history) mayRepeat(first, second *placedRecord) bool {
	letter := first.Topic == h.Altered.Dead || second.Topic == h.Altered.Dead
	return first.Topic != second.Topic && slices.ContainsFunc(h.Altered.Changes[first.changes:second.changes], func(c change) bool {
		return (c.What != rerouted) == letter && !c.knew(second.at) && !slices.Contains(c.Topics, first.Topic)
	})
}

// checkKeys checks two rules for the records of every key of a topic, in the order in which they were sent. Positions
// rise, except those of events that another topic has, or that the policy dropped before it was changed. And
// partitions are those of the first partition count, then those of a larger one, and never again those of a smaller
// one.
func (h *history) checkKeys(all []placedRecord, v *verdict) {
	type progress struct {
		newest *placedRecord
		count  int
	}
	keys := map[[2]string]*progress{}
	for i := range all {
		rec, key := &all[i], [2]string{all[i].Topic, string(all[i].Key)}
		p, growth := keys[key], h.Altered.Growth[all[i].Topic]
		if p == nil {
			p = &progress{rec, growth[0]}
			keys[key] = p
		}
		switch {
		case p.newest.at.before(rec.at):
			p.newest = rec
		case p.newest.changes == rec.changes: // the first one, or judged with its place
		case v.first[rec.id] != placeOf(rec.Record), h.Altered.Dropped[rec.id]:
			v.late++
		default:
			v.OutOfOrder = append(v.OutOfOrder, fmt.Sprintf("id %q at %v of key %s, at %v, was sent after id %q at %v", rec.id, rec.at, rec.Key, placeOf(rec.Record), p.newest.id, p.newest.at))
		}
		for p.count <= growth[1] && javaPartition(string(rec.Key), p.count)(0) != int(rec.Partition) {
			p.count++
		}
		if p.count > growth[1] {
			p.count = growth[1]
			v.Misplaced = append(v.Misplaced, fmt.Sprintf("id %q of key %s is at %v, which no partition count from %d to %d explains", rec.id, rec.Key, placeOf(rec.Record), growth[0], growth[1]))
		}
	}
}
