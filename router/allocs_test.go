//go:build !race

// The race detector drops objects from pools at random, also from those of encoding/json.

package router

import (
	"strings"
	"testing"
)

func TestMessageDoesNotAllocate(t *testing.T) {
	r := newMessages(t, nil)
	ev := messageOf(strings.Replace(fullBody, `"headers":{}`, `"headers":{"traceparent":"00-x","n":1}`, 1))
	var rec Record
	if n := testing.AllocsPerRun(1000, func() {
		must(t, r.Route(ev, testPos, &rec))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
