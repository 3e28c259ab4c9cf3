package main

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	orders := map[int64]int64{1: 100, 2: 200}
	for _, c := range []struct {
		name   string
		ledger []entry
		want   string // "" if the ledger is right
	}{
		{"right", []entry{{2, 200}, {1, 100}}, ""},
		{"missing", []entry{{1, 100}}, "order 2 is not booked"},
		{"twice", []entry{{1, 100}, {2, 200}, {2, 200}}, "order 2 is booked 2 times"},
		{"another amount", []entry{{1, 100}, {2, 20}}, "order 2 is booked with 20, and has 200"},
		{"phantom", []entry{{1, 100}, {2, 200}, {3, 0}}, "order 3 is booked and does not exist"},
	} {
		err := judge("after a test", orders, c.ledger)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
