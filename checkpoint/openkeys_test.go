package checkpoint

import "testing"

func TestOpenKeys(t *testing.T) {
	var none *OpenKeys
	if by, _ := none.By("t", []byte("a")); by != "" {
		t.Error("nil holds a key")
	}
	var o OpenKeys
	o.Note("t", []byte("a"), "1")
	o.Hold("t", []byte("a"), "2")
	o.Hold("t", []byte(""), "3")
	for _, c := range []struct {
		topic string
		key   []byte
		by    string
		ours  bool
	}{
		{"t", []byte("a"), "1", false}, {"t", []byte(""), "3", true}, {"t", nil, "", false}, {"u", []byte("a"), "", false},
	} {
		if by, ours := o.By(c.topic, c.key); by != c.by || ours != c.ours {
			t.Errorf("%s/%q: held by %q, ours %v", c.topic, c.key, by, ours)
		}
	}
}
