package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/replication"
)

// standbyFacts is what a host of postgres.standbys answered.
type standbyFacts struct {
	address string
	server  *standby.Server // nil: no answer
	verdict standby.Verdict
}

// checkStandbys asks the hosts of postgres.standbys at the same time. primary is the answer of the slot's server, nil
// if that is not the primary or has not answered.
func (e *examination) checkStandbys(ctx context.Context) {
	if len(e.Standbys) == 0 {
		e.because[groupStandbys] = "postgres.standbys is not set: nothing is known about copies of the slot"
		return
	}
	e.because[groupStandbys] = "none of the hosts has answered as a standby of this cluster"
	var primary *standby.Server
	if e.conn != nil && !e.server.Standby {
		var err error
		if primary, err = standby.Read(ctx, e.conn, e.Slot); err != nil {
			primary = nil
		}
	}
	all := make([]standbyFacts, len(e.Standbys))
	var asked sync.WaitGroup
	for i, h := range e.Standbys {
		asked.Go(func() { all[i] = e.askStandby(ctx, h, primary) })
	}
	asked.Wait()
	e.checkHosts(all, primary)
	for i := range all {
		h := &all[i]
		if h.server == nil {
			e.warn(standbyConnect, []Remedy{advicef("check that the server is running, that postgres.standbys has its address, and that its pg_hba.conf has a line for role %s", e.Role)},
				"%s cannot be asked about its copy of the slot: %s", h.address, h.verdict.Text)
			continue
		}
		e.ok(standbyConnect, "%s answers, PostgreSQL %d", h.address, h.server.Major())
		if h.server.InRecovery && h.verdict.State != standby.OtherCluster {
			e.checkCopy(h, primary)
			e.checkCopySettings(h, primary)
			e.checkWaited(h, primary)
		}
	}
}

func (e *examination) askStandby(ctx context.Context, h *replication.Host, primary *standby.Server) standbyFacts {
	server, err := standby.Ask(ctx, h, e.Slot)
	return standbyFacts{address: h.Address, server: server, verdict: standby.Judge(primary, server, err)}
}

// checkHosts checks that the hosts are one cluster with one primary.
func (e *examination) checkHosts(all []standbyFacts, primary *standby.Server) {
	var primaries, standbys []string
	known := primary == nil // the server of the slot is among the hosts
	for i := range all {
		h := &all[i]
		switch {
		case h.server == nil:
			standbys = append(standbys, h.address)
		case h.verdict.State == standby.OtherCluster:
			e.fail(standbyHosts, Wrong, []Remedy{settingf(`postgres: {standbys: ["host=<a standby of this cluster>"]}`)}, "%s is no standby of this cluster: %s", h.address, h.verdict.Text)
		case h.server.InRecovery:
			standbys = append(standbys, h.address)
		default:
			same := func(address string) bool {
				at := slices.IndexFunc(all, func(f standbyFacts) bool { return f.address == address })
				return standby.SameServer(all[at].server, h.server)
			}
			if !slices.ContainsFunc(primaries, same) { // two names of one server are one primary
				primaries = append(primaries, h.address)
			}
			known = known || standby.SameServer(primary, h.server)
		}
	}
	if !known && len(primaries) > 0 {
		primaries = append([]string{e.conn.PgConn().Conn().RemoteAddr().String()}, primaries...)
	}
	switch {
	case len(primaries) > 1:
		e.fail(standbyHosts, Lost, []Remedy{advicef("find out which of them is the right one, and stop the other before applications write to it")},
			"the cluster has %d primaries: %s", len(primaries), strings.Join(primaries, " and "))
	case e.AutoStandbys && len(all) == 1:
		e.warn(standbyHosts, []Remedy{settingf(`postgres: {standbys: ["host=<first server>", "host=<second server>"]}`)},
			"postgres.standbys is auto, and postgres.url names one host, %s: no standby is watched", all[0].address)
	case len(standbys) == 0 && len(e.found[standbyHosts]) == 0:
		e.warn(standbyHosts, []Remedy{settingf(`postgres: {standbys: ["host=<first server>", "host=<second server>"]}`)},
			"postgres.standbys names only the primary, %s", strings.Join(primaries, ", "))
	case len(e.found[standbyHosts]) == 0:
		e.ok(standbyHosts, "standbys: %s", strings.Join(standbys, ", "))
	}
}

// checkCopy checks the copy of the slot on a standby.
func (e *examination) checkCopy(h *standbyFacts, primary *standby.Server) {
	v, drop := h.verdict, advicef("on %s: SELECT pg_drop_replication_slot(%s)", h.address, literal(e.Slot))
	warn := func(remedies ...Remedy) {
		e.warn(standbySlot, remedies, "%s: %s: a failover to this server loses the slot", h.address, v.Text)
	}
	log := advicef("look for \"slot sync\" in the log of %s, and at standby_settings", h.address)
	switch v.State {
	case standby.Ready:
		text := v.Text
		if v.LagBytes != nil {
			text += fmt.Sprintf(", %s behind the primary's slot", human.Size(*v.LagBytes))
		}
		e.ok(standbySlot, "%s: %s", h.address, text)
	case standby.Blocked:
		if v.Leftover {
			drop.Text += ", which is the same without its checks"
			warn(shellf("%s standby clean --host %s", e.Command, h.address), drop)
			return
		}
		warn(advicef("find out which program has created that slot, and rename or drop it"), drop)
	case standby.Missing:
		switch {
		case h.server.Major() < 17:
			warn(advicef("let Patroni (slots) or the extension pg_failover_slots copy the slot, or update to PostgreSQL 17"))
		case primary != nil && primary.Slot != nil && !primary.Slot.Failover:
			warn(advicef("make it a failover slot: see failover above"))
		default:
			warn(log)
		}
	case standby.Invalidated:
		warn(advicef("with hot_standby_feedback = on, a slot in primary_slot_name and enough max_slot_wal_keep_size, the next synchronization replaces the copy"), log)
	default:
		warn(completeCopy(h.server.SyncSkip, h.server.PrimarySlot), log)
	}
}

// completeCopy is how the copy that a standby has begun becomes complete. PostgreSQL 19 and later say why it is not.
func completeCopy(skip, standbySlot string) Remedy {
	switch skip {
	case standby.SkipNotFlushed:
		return advicef("the standby is behind the slot: let it catch up, and name its slot %s in synchronized_standby_slots, so that the primary's slot waits for it", standbySlot)
	case standby.SkipSnapshot:
		return advicef("on the primary SELECT pg_log_standby_snapshot(), if no transaction stays open for long")
	case standby.SkipRemoved:
		return advicef("the copy is complete when the slot has moved: start the daemon; see standby_settings for hot_standby_feedback and primary_slot_name")
	}
	return advicef("the copy is complete when the slot has moved: start the daemon, or on the primary SELECT pg_log_standby_snapshot()")
}

// checkCopySettings checks the settings of a standby without which it has no copy, or loses it.
func (e *examination) checkCopySettings(h *standbyFacts, primary *standby.Server) {
	s := h.server
	var problems []string
	var remedies []Remedy
	set := func(problem, setting string) {
		problems = append(problems, problem)
		remedies = append(remedies, advicef("on %s: ALTER SYSTEM SET %s; SELECT pg_reload_conf()", h.address, setting))
	}
	// Before 17, and for a slot without failover, other programs copy it.
	syncs := s.Major() >= 17 && (primary == nil || primary.Slot == nil || primary.Slot.Failover)
	if syncs && s.SyncSlots != "on" {
		set("sync_replication_slots is off", "sync_replication_slots = on")
	}
	if !s.Feedback {
		set("hot_standby_feedback is off, so the primary may remove rows that the copy needs", "hot_standby_feedback = on")
	}
	if s.PrimarySlot == "" {
		set("primary_slot_name is empty, so the primary may remove WAL that the standby needs", "primary_slot_name = '<its physical slot on the primary>'")
	}
	if syncs && s.NamesDB != nil && !*s.NamesDB {
		set("primary_conninfo has no dbname, without which no slot is copied", fmt.Sprintf("primary_conninfo = '<the present value> dbname=%s'", e.Database))
	}
	unknown := ""
	if syncs && s.NamesDB == nil {
		unknown = fmt.Sprintf("; whether primary_conninfo has a dbname is not known (GRANT pg_read_all_settings TO %s, if you want it to be)", ident(e.Role))
	}
	if len(problems) > 0 {
		e.warn(standbySettings, remedies, "%s: %s%s", h.address, strings.Join(problems, "; "), unknown)
		return
	}
	text := "hot_standby_feedback is on, primary_slot_name is " + s.PrimarySlot
	if syncs {
		text = "sync_replication_slots is on, " + text
	}
	e.ok(standbySettings, "%s: %s%s", h.address, text, unknown)
}

// checkWaited checks that the primary sends no event before the standby has it.
func (e *examination) checkWaited(h *standbyFacts, primary *standby.Server) {
	name := h.server.PrimarySlot
	switch {
	case h.server.Major() < 17:
		e.skip(standbyWaited, "synchronized_standby_slots exists since PostgreSQL 17")
	case primary == nil:
		e.skip(standbyWaited, "the primary has not answered")
	case len(primary.Waited) == 0:
		e.skip(standbyWaited, "synchronized_standby_slots is empty: see standby_slots")
	case name == "":
		e.skip(standbyWaited, "%s has no primary_slot_name", h.address)
	case !slices.Contains(primary.Waited, name) && primary.Physical[name]:
		e.warn(standbyWaited, alterSystem("synchronized_standby_slots = '%s'", strings.Join(append(slices.Clone(primary.Waited), name), ",")),
			"%s: its slot %s is not in synchronized_standby_slots: after a failover to it, events may have been delivered that it never had", h.address, name)
	case !primary.Physical[name]:
		e.warn(standbyWaited, []Remedy{advicef("start the standby, or correct its primary_slot_name")}, "%s: its slot %s on the primary is missing or not active", h.address, name)
	default:
		e.ok(standbyWaited, "%s: %s is in synchronized_standby_slots and active", h.address, name)
	}
}
