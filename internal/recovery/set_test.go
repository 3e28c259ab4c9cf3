package recovery

import "testing"

// Tables with different topics may have the same ids: that the row of one is missing does not send the row of the other.
func TestSetKnowsTopics(t *testing.T) {
	s := NewSet()
	s.Add("a", []byte("1"))
	s.Add("b", []byte("2"))
	for _, c := range []struct {
		topic, id string
		want      bool
	}{{"a", "1", true}, {"b", "1", false}, {"a", "2", false}, {"b", "2", true}} {
		if s.Has(c.topic, []byte(c.id)) != c.want {
			t.Errorf("topic %s, id %s: %t", c.topic, c.id, !c.want)
		}
	}
}
