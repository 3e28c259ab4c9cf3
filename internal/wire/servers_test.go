package wire

import (
	"slices"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/peek"
	"github.com/outboxcdc/outboxcdc/router"
)

// TestWaitingRows: poison waits as well, in the topic that its row is routed to. An update of a row is not its event.
func TestWaitingRows(t *testing.T) {
	var got []string
	show := waitingRows(func(rec *router.Record) error {
		got = append(got, string(rec.ID)+" "+rec.Topic)
		return nil
	})
	for _, e := range []peek.Event{
		{Record: &router.Record{ID: []byte("a"), Topic: "order"}},
		{Record: &router.Record{ID: []byte("b")}, Poison: &router.Poison{Cause: router.NullKey, Topic: "order"}},
		{Record: &router.Record{ID: []byte("c"), Topic: "order"}, Poison: &router.Poison{Cause: router.Update, Topic: "order"}},
	} {
		if err := show(&e); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"a order", "b order"}; !slices.Equal(got, want) {
		t.Errorf("what waits: %q, want %q", got, want)
	}
}
