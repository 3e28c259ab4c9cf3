package replication

import (
	"reflect"
	"testing"
)

// The text form of members can be read again. It is empty for more members than a position record can hold.
func TestMembersText(t *testing.T) {
	many := &members{oids: make([]uint32, maxStoredMembers+1), checks: make([]int16, maxStoredMembers+1)}
	for _, c := range []struct {
		text string
		m    *members
	}{
		{"", &members{oids: []uint32{}, checks: []int16{}}},
		{"16384/0 4294967295/2", &members{oids: []uint32{16384, 4294967295}, checks: []int16{0, 2}}},
		{many.String(), &members{oids: []uint32{}, checks: []int16{}}},
	} {
		if got := parseMembers(c.text); !reflect.DeepEqual(got, c.m) || got.String() != c.text {
			t.Errorf("%q is read as %v and written as %q", c.text, got, got)
		}
	}
	if got := parseMembers("x 1/ 5/1"); !reflect.DeepEqual(got, &members{oids: []uint32{5}, checks: []int16{1}}) {
		t.Errorf("another text: %v", got)
	}
}
