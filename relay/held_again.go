package relay

import (
	"maps"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// An event whose record Kafka has is skipped, unless an older one was sent again after it in its partition. A letter of
// a held key is in the dead-letter topic, and a command may have sent it from there to its topic. So its partition does
// not matter, but its key: nothing overtakes it, unless an older event of its key was sent again. Every older event was
// acknowledged before the letter was sent, so that happens only after an event that is older still was sent again.

// isLetter reports whether the record of the event at pos that Kafka may have is a letter of a held key, and whether an
// older event of the key was sent again after it. acked means that this process has an acknowledgement of the event.
// Without one, the letter that it has sent may be lost, and an older letter be the one that Kafka has.
func (s *session) isLetter(pos checkpoint.Position, acked bool) (is, overtaken bool) {
	if s.held == nil {
		return false, false
	}
	m := &s.r.mem
	session, is := m.letters[pos]
	if !acked {
		session, is = 0, false
	}
	if !is && s.readsEnds {
		is, overtaken = m.Found.HasLetter(pos, s.rec.ID)
	}
	if !is || s.rec.Key == nil { // a dead letter without a key is in no order
		return is, false
	}
	return true, overtaken || max(m.resentAll, m.resentKeys[checkpoint.KeyOf(s.rec.Topic, s.rec.Key)]) > session
}

// followsLetter reports whether an older event of the current record's key was sent again, perhaps as a letter, after
// the record that Kafka has of the event at pos.
func (s *session) followsLetter(pos checkpoint.Position) bool {
	m := &s.r.mem
	if s.held == nil || s.rec.Key == nil {
		return false
	}
	session, acked := m.Events.Has(pos, s.rec.ID)
	if acked {
		session++
	}
	return max(m.resentAll, m.resentKeys[checkpoint.KeyOf(s.rec.Topic, s.rec.Key)]) > session
}

// maxResentKeys bounds memory.resentKeys: a backlog may have any number of keys.
const maxResentKeys = 10_000

// noteResentKey notes that an event in doubt of the key is sent, to its topic or as a letter. It matters only if Kafka
// may have letters of earlier sessions.
func (s *session) noteResentKey(topic string, key []byte) {
	m := &s.r.mem
	if s.held == nil || key == nil || !s.readsEnds && len(m.letters) == 0 {
		return
	}
	if len(m.resentKeys) == maxResentKeys {
		clear(m.resentKeys)
		m.resentAll = m.Events.Session() + 1
	}
	m.resentKeys[checkpoint.KeyOf(topic, key)] = m.Events.Session() + 1
}

// noteLetter notes that the event at pos is sent as a letter of a key.
func (s *session) noteLetter(pos checkpoint.Position, topic string, key []byte) {
	const few = 1000
	m := &s.r.mem
	if len(m.letters) >= max(few, s.letters.kept) {
		confirmed := s.rule.Confirmed()
		maps.DeleteFunc(m.letters, func(p checkpoint.Position, _ uint32) bool { return p.CommitLSN < confirmed })
		s.letters.kept = 2 * len(m.letters)
	}
	if pos.CommitLSN < s.earlierEnd {
		s.noteResentKey(topic, key)
	}
	m.letters[pos] = m.Events.Session() + 1
}
