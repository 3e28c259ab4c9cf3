package relay

import (
	"errors"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// suspects are the events of a batch that Kafka has refused because of one of them, in their order. They are sent in
// groups: the first event of a group waits until nothing is in flight, and so does the event after its last one. So
// the group of the refused record is refused again, and its events are the suspects of the next session. A record that
// is refused in a group of one is poison.
type suspects struct {
	events []checkpoint.Position
	group  int // number of events in a group
}

// groups is the number of groups. More groups are more round trips, fewer groups are more sessions.
const groups = 8

func newSuspects(events []checkpoint.Position) suspects {
	slices.SortFunc(events, checkpoint.Position.Compare)
	return suspects{events, max(1, len(events)/groups)}
}

// groupOf returns how many events there are in the group of the event at pos, and whether it is the last suspect; 0:
// it is no suspect.
func (s *suspects) groupOf(pos checkpoint.Position) (size int, last bool) {
	n := len(s.events)
	if n == 0 || pos.Compare(s.events[n-1]) > 0 {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(s.events, pos, checkpoint.Position.Compare)
	if !found {
		return 0, false
	}
	return s.group, i == n-1
}

// findRefused handles an error of the sink that means that Kafka refuses the content of a batch. If the batch had a
// single record, that record is poison. Otherwise the next session sends the events of the batch in small groups.
func (s *session) findRefused(cause error) error {
	var r interface {
		Refused() (n []uint64, ok bool)
	}
	if !errors.As(cause, &r) {
		return cause
	}
	numbers, ok := r.Refused()
	switch {
	case !ok:
	case s.single != nil && len(numbers) == 1 && numbers[0] == s.single.n:
		p := s.single.poison
		p.Message = cause.Error()
		if s.single.dead {
			return &finalPoison{&p}
		}
		return s.r.noteRefused(&p)
	default:
		s.r.suspects = newSuspects(s.tracker.Positions(s.stream.Identity(), numbers))
		s.r.log.Warn("a batch is refused; sending its records in smaller groups to find the refused record", "count", len(numbers), "error", cause)
	}
	return cause
}
