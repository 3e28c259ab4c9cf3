package recovery

import (
	"fmt"
	"testing"
)

// TestSet: what was added is found, also after the set was asked in between, and what was not added is not.
func TestSet(t *testing.T) {
	var s, other Set
	other.Add(Event{Topic: "t", ID: "1"})
	s.AddAll(&other)
	for i := range 1000 {
		s.Add(Event{Topic: "t", ID: fmt.Sprint(2 * i)})
		if i == 500 && !s.Has(Event{Topic: "t", ID: "0"}) {
			t.Error("0 is not found")
		}
	}
	for i := range 2000 {
		if s.Has(Event{Topic: "t", ID: fmt.Sprint(i)}) != (i%2 == 0 || i == 1) {
			t.Errorf("%d", i)
		}
	}
	if s.Len() != 1001 {
		t.Error(s.Len())
	}
}

// What identifies an event is topic, id, key and value. Tables with different topics may have the same ids, and an id
// may be used again.
func TestSetKnowsEvents(t *testing.T) {
	var s Set
	s.Add(Event{"a", "1", "k", 7})
	for _, e := range []Event{{"b", "1", "k", 7}, {"a", "2", "k", 7}, {"a", "1", "x", 7}, {"a", "1", "k", 8}} {
		if s.Has(e) {
			t.Errorf("%+v is found", e)
		}
	}
}
