package main

import (
	"strings"
	"testing"
	"time"
)

// A relay that streams but delivers nothing, although events were committed, is shown as waiting.
func TestRowShowsWaiting(t *testing.T) {
	for _, c := range []struct {
		look  look
		state string
		want  string
	}{
		{look{committed: 10, delivered: 5}, "streaming", "streaming, waits"},
		{look{committed: 10, delivered: 5, timed: 3}, "streaming", "streaming"},
		{look{committed: 10, delivered: 10}, "streaming", "streaming"},
		{look{committed: 10, delivered: 5}, "reconnecting", "reconnecting"},
	} {
		row := (&printer{}).rowText(time.Second, c.look, gauges{state: c.state})
		if !strings.HasSuffix(row, "   "+c.want) {
			t.Errorf("%+v, %s: %q", c.look, c.state, row)
		}
	}
}
