package relay

import (
	"hash/maphash"
	"maps"
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// An event that Kafka has is skipped, unless an older event of its key was sent after it. That happens if Kafka has
// lost the older one, or has refused it, or if its cause of poison is gone. Without this rule the older state of the
// key would be the last one in its topic, for good if the topic is compacted. A letter of a held key is in the order of
// its key as well, because a command sends it to the topic of the key.

// resentEvents are the events in doubt that the sessions of a process have sent, by key, while Kafka may have had later
// ones.
type resentEvents struct {
	seed maphash.Seed
	keys map[uint64][]resent
	all  uint32 // the last session that has sent some, of any key: there were too many
}

// resent is the first event of a key that a session has sent. Those of a key are in the order of their positions, and
// of their sessions: after a later session has sent an older event, an earlier one does not matter.
type resent struct {
	pos     checkpoint.Position
	session uint32
}

// maxResentKeys bounds the memory. It is more than a session has in flight.
const maxResentKeys = 1 << 17

func newResentEvents() resentEvents {
	return resentEvents{seed: maphash.MakeSeed(), keys: map[uint64][]resent{}}
}

func (e *resentEvents) note(session uint32, pos checkpoint.Position, topic string, key []byte) {
	if len(e.keys) == maxResentKeys {
		clear(e.keys)
		e.all = session
	}
	hash := checkpoint.KeyHash(e.seed, topic, key)
	of := e.keys[hash]
	if len(of) > 0 && of[len(of)-1].session == session {
		return
	}
	of = slices.DeleteFunc(of, func(r resent) bool { return r.pos.Compare(pos) >= 0 })
	e.keys[hash] = append(of, resent{pos, session})
}

// after returns the last session that has sent an event of the key that is older than the one at pos; 0: none has.
func (e *resentEvents) after(pos checkpoint.Position, topic string, key []byte) (session uint32) {
	if key == nil || e.isEmpty() { // without a key there is no order
		return 0
	}
	for _, r := range e.keys[checkpoint.KeyHash(e.seed, topic, key)] {
		if r.pos.Compare(pos) < 0 {
			session = r.session
		}
	}
	return max(e.all, session)
}

func (e *resentEvents) isEmpty() bool { return e.all == 0 && len(e.keys) == 0 }

func (e *resentEvents) forget() {
	clear(e.keys)
	e.all = 0
}

// noteSent notes that an event is sent, to its topic or as a letter of its key. It matters if earlier sessions may have
// sent a later one.
func (s *session) noteSent(pos checkpoint.Position, topic string, key []byte) {
	m := &s.r.mem
	if pos.CommitLSN >= s.earlierEnd || pos.CommitLSN > s.newestKnown && pos.CommitLSN > m.Found.Newest() {
		return
	}
	if s.firstResent.IsZero() {
		s.firstResent = pos
	}
	if key != nil {
		m.resent.note(s.number, pos, topic, key)
	}
}

// logOvertaken logs the first event that is sent again because an older one of its key was.
func (s *session) logOvertaken(pos checkpoint.Position) {
	if s.overtakenLogged {
		return
	}
	s.overtakenLogged = true
	s.r.log.Warn("Kafka lacks an event and has later ones of its key: sending those again after it, so that the last record of each key is the newest",
		"topic", s.rec.Topic, "event_id", string(s.rec.ID), "position", pos.String())
}

// newestEvent returns the commit LSN of the newest event that this process knows to be in Kafka.
func (m *memory) newestEvent() pglogrepl.LSN { return max(m.Newest().CommitLSN, m.Events.Newest()) }

// noteOthers notes that other processes have had the slot since the last session of this one, and may have sent older
// events after those that this process knows. All of them count as one session. producers are those of all sessions up
// to the present one.
func (m *memory) noteOthers(producers []int64) {
	if m.newestEvent() == 0 || len(m.producers) == 0 {
		return
	}
	last, session := slices.Index(producers, m.producers[len(m.producers)-1]), m.Overtake()
	others := maps.Clone(m.others)
	if others == nil {
		others = map[int64]uint32{}
	}
	for i, id := range producers[:len(producers)-1] {
		if i > last {
			others[id] = session
		}
	}
	m.others = others // a search may use the former one
}

// topicInDoubt returns the topic of the current record if its end has to be read before anything is decided about the
// event: because other processes may have sent older events to it, or because the event may become a letter. Otherwise
// "".
func (s *session) topicInDoubt(p *router.Poison) string {
	if s.r.mem.others == nil && s.held == nil || p != nil && p.Cause == router.IllegalTopic {
		return ""
	}
	return s.rec.Topic
}

// isInOrder reports whether everything that this process knows is in order.
func (m *memory) isInOrder() bool { return m.resent.isEmpty() && m.others == nil }

// forgetOrder forgets in which order earlier sessions have sent events: none of them is in doubt any more.
func (m *memory) forgetOrder() {
	m.resent.forget()
	m.others = nil
}
