package checkpoint

import "testing"

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
