package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/peek"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// TestPeekHeld: events are marked whose key is held, by letters or by a poison event that was shown before.
func TestPeekHeld(t *testing.T) {
	for what, reached := range map[string]bool{"Kafka was read": true, "Kafka was not reached": false} {
		var out strings.Builder
		p := &peeker{out: &out, notes: &out}
		if reached {
			p.held = &checkpoint.OpenKeys{}
			p.held.Note("t", []byte("a"), "0")
		}
		show := func(id, key string, cause router.Cause, policy relay.PoisonPolicy) {
			v := &peek.Event{Record: &router.Record{ID: []byte(id), Topic: "t"}}
			if key != "" {
				v.Record.Key = []byte(key)
			}
			if cause != "" {
				v.Poison, v.Policy = &router.Poison{Cause: cause, Topic: "t"}, policy
			}
			must(t, p.show(v))
		}
		show("1", "a", "", "")
		show("2", "b", "", "")
		show("3", "b", router.BadHeaders, relay.HoldKey)
		show("4", "b", "", "")
		show("5", "c", router.BadHeaders, relay.DeadLetter)
		show("6", "c", "", "")
		show("7", "", router.NullKey, relay.HoldKey)
		show("8", "", "", "")
		show("9", "b", router.BadHeaders, relay.HoldKey)
		var got []string
		for line := range strings.Lines(out.String()) {
			for word := range strings.FieldsSeq(line) {
				if strings.HasPrefix(word, "id=") || strings.HasPrefix(word, "held_by=") {
					got = append(got, word)
				}
			}
		}
		want := "held_by=0 id=1 id=2 id=3 held_by=3 id=4 id=5 id=6 id=7 id=8 held_by=3 id=9"
		if !reached {
			want = "id=1 id=2 id=3 id=4 id=5 id=6 id=7 id=8 id=9"
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
