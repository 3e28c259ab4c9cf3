package checkpoint

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// TestRelease: a command handles the letters of a key in their order, and all of them from the first on.
func TestRelease(t *testing.T) {
	type step struct {
		key    string
		asked  Fate
		want   Fate
		stays  bool // although it was to be handled: Kafka does not take it
		oldest int64
	}
	for what, c := range map[string]struct {
		followers Fate
		steps     []step
	}{
		"retry of the first sends all": {Send, []step{{"a", Send, Send, false, 0}, {"a", Leave, Send, false, 0}, {"a", Send, Send, false, 0}}},
		"retry of one in the middle":   {Send, []step{{"a", Leave, Leave, false, 0}, {"a", Send, Behind, false, 0}, {"a", Leave, Leave, false, 0}, {"a", Drop, Behind, false, 0}}},
		"a follower that is refused is the first one": {Send, []step{
			{"a", Send, Send, false, 0}, {"a", Leave, Send, true, 0}, {"a", Leave, Leave, false, 1}, {"a", Send, Behind, false, 1},
		}},
		"other keys go on": {Send, []step{
			{"a", Send, Send, true, 0}, {"b", Send, Send, false, 0}, {"a", Send, Behind, false, 0}, {"b", Leave, Send, false, 0}, {"c", Leave, Leave, false, 4},
		}},
		"drop of the first sends the others":      {Send, []step{{"a", Drop, Drop, false, 0}, {"a", Leave, Send, false, 0}, {"a", Drop, Drop, false, 0}, {"a", Leave, Send, false, 0}}},
		"drop with followers":                     {Drop, []step{{"a", Drop, Drop, false, 0}, {"a", Leave, Drop, false, 0}, {"b", Leave, Leave, false, 2}}},
		"drop of one in the middle":               {Drop, []step{{"a", Leave, Leave, false, 0}, {"a", Drop, Behind, false, 0}}},
		"a first one that cannot be recorded":     {Send, []step{{"a", Drop, Drop, true, 0}, {"a", Leave, Leave, false, 0}}},
		"the key of another topic is another one": {Send, []step{{"a", Leave, Leave, false, 0}, {"u/a", Send, Send, false, 1}}},
	} {
		r := Release{Followers: c.followers}
		for n, s := range c.steps {
			l := &Letter{HeldKey: HeldKey{"t", s.key}, Place: LetterPlace{Offset: int64(n)}}
			if s.key == "u/a" {
				l.HeldKey = HeldKey{"u", "a"}
			}
			got := r.Decide(l, s.asked)
			if got != s.want {
				t.Errorf("%s: letter %d: fate %d, want %d", what, n, got, s.want)
			}
			r.Done(l, (got == Send || got == Drop) && !s.stays)
			if got == Leave || got == Behind {
				if at := r.OldestOpen(l); at.Offset != s.oldest {
					t.Errorf("%s: letter %d: the oldest is %d, want %d", what, n, at.Offset, s.oldest)
				}
			}
		}
	}
}

// TestReleaseOrder: the letters of a key are handled by the positions of their events, wherever they are.
func TestReleaseOrder(t *testing.T) {
	at := func(partition int32, offset int64, system uint64, timeline int32, lsn pglogrepl.LSN, ordinal uint32) *Letter {
		l := &Letter{HeldKey: HeldKey{"t", "a"}, Place: LetterPlace{partition, offset}, Time: time.Unix(int64(system), 0)}
		l.Position.SystemID, l.Position.Timeline, l.Position.CommitLSN, l.Position.Ordinal = system, timeline, lsn, ordinal
		return l
	}
	other := &Letter{HeldKey: HeldKey{"u", "a"}, Place: LetterPlace{0, 9}}
	letters := []*Letter{ // as a command reads them
		at(0, 1, 7, 1, 300, 1), at(0, 4, 7, 1, 300, 3), at(0, 5, 7, 1, 200, 1), other, // 200 was stored late
		at(1, 2, 7, 1, 100, 1), at(1, 3, 7, 1, 300, 2), at(1, 6, 7, 2, 50, 1), at(1, 7, 8, 1, 10, 1), at(1, 8, 7, 1, 300, 3),
	}
	for what, refused := range map[string]int{"all are taken": -1, "one is refused": 3} {
		r := Release{Followers: Send}
		for _, l := range letters {
			r.Note(l)
		}
		var got []string
		asked := letters
		for round := 0; len(asked) > 0 && round < 10; round++ {
			var later []*Letter
			for _, l := range asked {
				switch fate := r.Decide(l, Send); fate {
				case Later:
					later = append(later, l)
				default:
					text := fmt.Sprint(l.Place.Partition, ":", l.Place.Offset)
					if fate == Behind {
						text += "!"
					}
					got = append(got, text)
					r.Done(l, fate == Send && len(got) != refused)
				}
			}
			asked = later
		}
		want := []string{"0:9", "1:2", "0:5", "0:1", "1:3", "0:4", "1:8", "1:6", "1:7"}
		if refused > 0 {
			for i := refused; i < len(want); i++ {
				want[i] += "!"
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}
