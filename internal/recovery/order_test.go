package recovery

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/relay"
)

// TestDoubtIsSettledFirst: a row that is not judged can be older than missing rows of its key. Nothing is sent before
// it is decided what becomes of it, so that the run that the error names sends all of them in their order.
func TestDoubtIsSettledFirst(t *testing.T) {
	w := lose(t, true, losses["the slot was moved"])
	w.put("5", "k5", "other", "")
	w.rows[7].key = "k5"
	_, err := w.recover(true).Deliver(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--unjudged=send") || !strings.Contains(err.Error(), "nothing was sent") || len(w.sentIDs()) > 0 {
		t.Fatal(err, w.sentIDs())
	}
	r := w.recover(true)
	r.Unjudged = SendUnjudged
	if _, err := r.Deliver(t.Context()); err != nil || strings.Join(w.sentIDs(), " ") != "4 5 6 7" {
		t.Error(err, w.sentIDs())
	}
}

// TestLaterThanDoubt: the keys of rows that are not judged, and may be sent, are listed if Kafka has later events.
// They do not keep missing rows from compacted topics.
func TestLaterThanDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		unjudged Unjudged
		missing  bool // of the key as well
		keys     int
		topics   int
	}{
		"no decision": {AskUnjudged, false, 1, 0}, "send": {SendUnjudged, false, 1, 0}, "leave": {LeaveUnjudged, false, 0, 0},
		"a missing row": {LeaveUnjudged, true, 1, 1},
	} {
		w := lose(t, true, losses["the slot was moved"])
		w.rows[5].id, w.rows[7].key = "", "k5"
		if c.missing {
			w.rows[6].key = "k5"
		}
		w.rows[7].created = time.Now().Add(time.Second)
		w.deliver(7, 8)
		r := w.recover(true)
		r.Poison.Policy, r.Unjudged, r.DryRun = relay.StopAtPoison, c.unjudged, true
		_, err := r.Deliver(t.Context())
		if f := w.found[len(w.found)-1]; f.Unjudged.Rows != 1 || f.LaterKeys != c.keys || len(f.LaterTopics) != c.topics {
			t.Errorf("%s: %d rows are not judged, %d keys have later events, in %v; error %v", name, f.Unjudged.Rows, f.LaterKeys, f.LaterTopics, err)
		}
	}
}
