package recovery

import (
	"fmt"
	"testing"
)

// TestSet: what was added is found, also after the set was asked in between, and what was not added is not.
func TestSet(t *testing.T) {
	s := NewSet()
	for i := range 1000 {
		s.Add("t", fmt.Append(nil, 2*i), nil)
		if i == 500 && !s.Has("t", []byte("0"), nil) {
			t.Error("0 is not found")
		}
	}
	for i := range 2000 {
		if s.Has("t", fmt.Append(nil, i), nil) != (i%2 == 0) {
			t.Errorf("%d", i)
		}
	}
	if s.Len() != 1000 {
		t.Error(s.Len())
	}
}

// Tables with different topics may have the same ids: that the row of one is missing does not send the row of the other.
func TestSetKnowsTopics(t *testing.T) {
	s := NewSet()
	s.Add("a", []byte("1"), nil)
	s.Add("b", []byte("2"), nil)
	for _, c := range []struct {
		topic, id string
		want      bool
	}{{"a", "1", true}, {"b", "1", false}, {"a", "2", false}, {"b", "2", true}} {
		if s.Has(c.topic, []byte(c.id), nil) != c.want {
			t.Errorf("topic %s, id %s: %t", c.topic, c.id, !c.want)
		}
	}
}
