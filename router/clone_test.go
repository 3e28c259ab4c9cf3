package router

import (
	"reflect"
	"testing"
)

// TestClone: a copy is equal, nil and empty included, and does not change with the original.
func TestClone(t *testing.T) {
	texts := func(s string) *Record {
		return &Record{
			ID: []byte("id" + s), Topic: "t", Key: []byte{}, Value: []byte("value" + s), PartitionBy: []byte("by" + s), Partition: 3, Timestamp: 7,
			Headers: []Header{{Name: "a", Value: []byte("1" + s)}, {Name: "b"}, {Name: "c", Value: []byte{}}},
		}
	}
	for _, r := range []*Record{texts(""), {}} {
		c := r.Clone()
		if !reflect.DeepEqual(r, c) {
			t.Errorf("%+v of %+v", c, r)
		}
	}
	r := texts("x")
	c := r.Clone()
	for _, b := range [][]byte{r.ID, r.Value, r.PartitionBy, r.Headers[0].Value} {
		clear(b)
	}
	_ = append(c.ID, "overwrites"...) // a text ends where the next one begins
	if !reflect.DeepEqual(c, texts("x")) {
		t.Errorf("%+v", c)
	}
}
