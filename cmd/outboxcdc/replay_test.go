package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestReplayKeys: a table without an aggregate type cannot be asked for a key, and the error says that, and not how to
// write one.
func TestReplayKeys(t *testing.T) {
	r := &replayer{keys: []string{"order/42"}}
	if got, err := r.where(&config.Columns{AggregateType: "t", AggregateID: "a"}); err != nil || got != `("t" = 'order' AND "a" = '42')` {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := r.where(&config.Columns{AggregateID: "a"}); err == nil || !strings.Contains(err.Error(), "has no columns of aggregate type and id") {
		t.Errorf("without a type: %v", err)
	}
	r.keys = []string{"42"}
	if _, err := r.where(&config.Columns{AggregateType: "t", AggregateID: "a"}); err == nil || !strings.Contains(err.Error(), "write TYPE/ID") {
		t.Errorf("a key without a type: %v", err)
	}
}
