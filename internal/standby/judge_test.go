package standby

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// What each kind of slot on a standby means, on servers before and after the synchronization of slots.
func TestJudge(t *testing.T) {
	primary := func(version int, s *replication.Slot) *Server {
		return &Server{Version: version, System: "1", Started: time.Unix(1, 0), Slot: s}
	}
	failover := &replication.Slot{Kind: "logical", Failover: true, ConfirmedFlush: 500}
	plain := &replication.Slot{Kind: "logical", ConfirmedFlush: 500}
	copied := func(change func(*replication.Slot)) *replication.Slot {
		s := &replication.Slot{Kind: "logical", Failover: true, Synced: true, ConfirmedFlush: 400}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		primary *Server
		version int
		slot    *replication.Slot
		want    State
		says    string
	}{
		"a copy":           {primary(170000, failover), 170000, copied(func(*replication.Slot) {}), Ready, "synchronized"},
		"no copy":          {primary(170000, failover), 170000, nil, Missing, "no copy"},
		"a leftover":       {primary(170000, failover), 170000, copied(func(s *replication.Slot) { s.Synced = false }), Blocked, "leftover"},
		"a lost leftover":  {primary(170000, failover), 170000, copied(func(s *replication.Slot) { s.Synced, s.WALStatus = false, "lost" }), Blocked, "leftover"},
		"a new copy":       {primary(170000, failover), 170000, copied(func(s *replication.Slot) { s.Temporary = true }), Incomplete, "not complete"},
		"without position": {primary(170000, failover), 170000, copied(func(s *replication.Slot) { s.ConfirmedFlush = 0 }), Incomplete, "no confirmed position"},
		"invalidated":      {primary(170000, failover), 170000, copied(func(s *replication.Slot) { s.Invalidation = "rows_removed" }), Invalidated, "rows_removed"},
		"lost":             {primary(170000, failover), 170000, copied(func(s *replication.Slot) { s.WALStatus = "lost" }), Invalidated, "WAL"},
		"physical":         {primary(170000, failover), 170000, &replication.Slot{Kind: "physical"}, Blocked, "physical"},
		"another slot":     {primary(170000, failover), 170000, plain, Blocked, "not a copy"},
		"Patroni's, on 17": {primary(170000, plain), 170000, plain, Ready, "Patroni"},
		"Patroni's, on 15": {primary(150000, plain), 150000, plain, Ready, "Patroni"},
		"lost, on 15":      {primary(150000, plain), 150000, &replication.Slot{Kind: "logical", ConfirmedFlush: 1, WALStatus: "lost"}, Invalidated, "WAL"},
		"none, on 15":      {primary(150000, plain), 150000, nil, Missing, "no copy"},
		"alone":            {nil, 170000, copied(func(*replication.Slot) {}), Ready, "synchronized"},
	} {
		v := Judge(c.primary, &Server{Version: c.version, InRecovery: true, System: "1", Started: time.Unix(2, 0), Slot: c.slot}, nil)
		if v.State != c.want || !strings.Contains(v.Text, c.says) || v.Leftover != strings.Contains(v.Text, "leftover") {
			t.Errorf("%s: %+v; want %s, %q", name, v, c.want, c.says)
		}
		if known := v.State == Ready && c.primary != nil; known != (v.LagBytes != nil) {
			t.Errorf("%s: lag %v", name, v.LagBytes)
		}
	}
	for reason, says := range map[string]string{"": "the position of the primary's slot", SkipRemoved: "removed WAL", SkipNotFlushed: "flushed", SkipSnapshot: "snapshot", "a later one": "a later one"} {
		host := &Server{Version: 190000, InRecovery: true, System: "1", Slot: copied(func(s *replication.Slot) { s.Temporary = true }), SyncSkip: reason}
		if v := Judge(primary(190000, failover), host, nil); v.State != Incomplete || !strings.Contains(v.Text, reason) || !strings.Contains(v.Text, says) {
			t.Errorf("skipped for %q: %+v", reason, v)
		}
		host.Slot.Temporary = false
		if v := Judge(primary(190000, failover), host, nil); v.State != Ready || strings.Contains(v.Text, "skipped: "+reason) == (reason == "") {
			t.Errorf("a copy, skipped for %q: %+v", reason, v)
		}
	}
	v := Judge(primary(170000, failover), &Server{Version: 170000, InRecovery: true, System: "1", Slot: copied(func(*replication.Slot) {})}, nil)
	if v.LagBytes == nil || *v.LagBytes != 100 {
		t.Errorf("the lag is %v, want 100", v.LagBytes)
	}
	if v := Judge(nil, nil, fmt.Errorf("connect: %w", context.DeadlineExceeded)); v.State != Unreachable || v.Text != "no answer within 5 s" {
		t.Errorf("%+v", v)
	}
	if v := Judge(nil, nil, &replication.Error{Op: "connect to x", Err: errors.New("refused")}); v.Text != "refused" {
		t.Errorf("%+v", v)
	}
}
