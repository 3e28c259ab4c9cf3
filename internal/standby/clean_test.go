package standby

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Everything but a leftover is refused, with what was seen and a remedy.
func TestCheckLeftover(t *testing.T) {
	type change func(primary, host *Server)
	for name, c := range map[string]struct {
		change change
		code   int
		says   string // "": the slot may be dropped
	}{
		"a leftover":                 {func(_, _ *Server) {}, 0, ""},
		"a lost leftover":            {func(_, h *Server) { h.Slot.WALStatus = "lost" }, 0, ""},
		"another cluster":            {func(_, h *Server) { h.System = "2" }, exit.Config, "another cluster: its system identifier is 2, the primary's 1"},
		"unknown cluster":            {func(_, h *Server) { h.System = "" }, exit.NoPermission, "pg_control_system"},
		"unknown primary":            {func(p, _ *Server) { p.System = "" }, exit.NoPermission, "pg_control_system"},
		"the primary":                {func(p, h *Server) { *h = *p }, exit.Fault, "it is the primary"},
		"a second primary":           {func(_, h *Server) { h.InRecovery = false }, exit.Fault, "two primaries"},
		"before 17":                  {func(_, h *Server) { h.Version = 160000 }, exit.Fault, "PostgreSQL 16"},
		"no slot":                    {func(_, h *Server) { h.Slot = nil }, exit.Fault, "no slot orders"},
		"a copy":                     {func(_, h *Server) { h.Slot.Synced = true }, exit.Fault, "synchronized copy"},
		"no failover slot":           {func(_, h *Server) { h.Slot.Failover = false }, exit.Fault, "no leftover (logical, failover false"},
		"physical":                   {func(_, h *Server) { h.Slot.Kind = "physical" }, exit.Fault, "no leftover (physical"},
		"in use":                     {func(_, h *Server) { h.Slot.Active, h.Slot.ActivePID = true, 7 }, exit.Fault, "in use by PID 7"},
		"the primary has no slot":    {func(p, _ *Server) { p.Slot = nil }, exit.Lost, "only trace"},
		"the primary's slot is lost": {func(p, _ *Server) { p.Slot.WALStatus = "lost" }, exit.Lost, "only trace"},
	} {
		primary := &Server{Version: 170000, System: "1", Started: time.Unix(1, 0), Slot: &replication.Slot{Kind: "logical", Failover: true, ConfirmedFlush: 9}}
		host := &Server{Version: 170000, System: "1", Started: time.Unix(2, 0), InRecovery: true, Slot: &replication.Slot{Kind: "logical", Failover: true, ConfirmedFlush: 5}}
		c.change(primary, host)
		err := CheckLeftover(slot, "db-2:5432", primary, host)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says == "":
		case err == nil || exit.Code(err) != c.code || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v (%d)", name, err, exit.Code(err))
		case !strings.HasPrefix(err.Error(), "db-2:5432: ") || !strings.Contains(err.Error(), "remedy: ") || !strings.HasSuffix(err.Error(), "nothing was changed"):
			t.Errorf("%s: no host, no remedy, or not what happened: %v", name, err)
		}
	}
}
