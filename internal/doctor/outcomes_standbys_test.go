package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// standbyOutcomes are the cases of a primary and its standby, through a switchover.
func standbyOutcomes(t *testing.T, w *world) {
	ctx := t.Context()
	settings := map[string]string{"max_slot_wal_keep_size": "50GB", "sync_replication_slots": "on"}
	primary := pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{"max_slot_wal_keep_size": "50GB"}})
	w.makeRole(primary)
	p := w.newPlace(t, primary).make()
	copied, err := primary.Standby(ctx, "copier", settings)
	must(t, err)
	t.Cleanup(func() { must(t, copied.Close()) })
	watch := func(servers ...*pgtest.Server) {
		t.Helper()
		var urls []string
		for _, s := range servers {
			urls = append(urls, s.URL(p.name, roleName, rolePassword))
		}
		p.cfg.Standbys, _, err = replication.Hosts(urls, standby.ApplicationName(p.name), nil)
		must(t, err)
	}
	// Every case has this finding unless it sets synchronized_standby_slots.
	notWaited := outcome{slotStandby, "WARN", "copier"}

	watch(primary)
	p.cfg.AutoStandbys = true
	p.wants(notWaited, outcome{standbyHosts, "WARN", "postgres.url names one host"})
	p.cfg.AutoStandbys = false
	p.wants(notWaited, outcome{standbyHosts, "WARN", "names only the primary"})

	watch(primary, copied, w.pg)
	p.syncs(copied)
	p.wants(notWaited, outcome{standbyConnect, "WARN", w.pg.HostPort()}) // which has no such database
	stranger, _, err := replication.Hosts([]string{w.pg.URL("postgres", roleName, rolePassword)}, "x", nil)
	must(t, err)
	p.cfg.Standbys[2] = stranger[0]
	p.wants(notWaited, outcome{standbyHosts, "FAIL 78", w.pg.HostPort() + " is no standby of this cluster"})

	watch(primary, copied)
	p.exec("GRANT pg_read_all_settings TO " + roleName)
	p.setting("synchronized_standby_slots", "'copier'")
	p.syncs(copied)
	p.wants()
	p.exec("SELECT pg_create_physical_replication_slot('other')")
	must(t, copied.AppendConf("hot_standby_feedback = off", "sync_replication_slots = off", "primary_slot_name = 'other'",
		"primary_conninfo = 'host=127.0.0.1 port=1 user=u password="+rolePassword+"'"))
	must(t, copied.Reload())
	p.await("the standby to disconnect", "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'copier'")
	lost := outcome{slotStandby, "FAIL 69", "copier"}
	p.wants(lost, outcome{standbySettings, "WARN", "sync_replication_slots is off; hot_standby_feedback is off"}, outcome{standbyWaited, "WARN", "its slot other on the primary is missing or not active"})
	must(t, copied.AppendConf("primary_slot_name = 'copier'"))
	must(t, copied.Reload())
	p.wants(lost, outcome{standbySettings, "WARN", "no dbname"}, outcome{standbyWaited, "WARN", "missing or not active"})

	// A copy that was never made, and one that another slot blocks.
	q := p.in(t)
	q.cfg.Slot, q.rcfg.Slot = p.name+"_more", p.name+"_more"
	p.exec("SELECT pg_create_logical_replication_slot('" + q.cfg.Slot + "', 'pgoutput', failover => true)")
	q.wants(lost, outcome{standbySettings, "WARN", ""}, outcome{standbyWaited, "WARN", ""}, outcome{standbySlot, "WARN", "no copy"})
	p.exec("SELECT pg_drop_replication_slot('"+q.cfg.Slot+"')", "SELECT pg_drop_replication_slot('other')")

	// Two primaries: a standby is promoted while the primary runs.
	must(t, copied.AppendConf("primary_conninfo = '"+conninfo(primary)+"'", "hot_standby_feedback = on", "sync_replication_slots = on"))
	must(t, copied.Reload())
	p.await("the standby to connect", "SELECT active FROM pg_replication_slots WHERE slot_name = 'copier'")
	p.syncs(copied)
	p.wants()

	// The switchover leaves the slot on the demoted server.
	_ = p.conn.Close(ctx)
	_, err = primary.Stop(ctx, pgtest.Fast)
	must(t, err)
	must(t, copied.Exec(ctx, "postgres", "ALTER SYSTEM SET synchronized_standby_slots = ''", "SELECT pg_promote()"))
	must(t, primary.Follow(ctx, copied, "copier2", settings))
	p.moveTo(copied)
	watch(copied, primary)
	p.await("the standby to connect", "SELECT active FROM pg_replication_slots WHERE slot_name = 'copier2'")
	p.wants(outcome{slotStandby, "WARN", "copier2"}, outcome{standbySlot, "WARN", "is a leftover"})
	p.advises(standbySlot, "outboxcdc standby clean --host "+primary.HostPort())
	p.advises(standbySlot, "SELECT pg_drop_replication_slot('"+p.name+"')")
	must(t, primary.Exec(ctx, "postgres", "SELECT pg_promote()"))
	p.wants(outcome{standbyHosts, "FAIL 79", copied.HostPort() + " and " + primary.HostPort()})
	watch(primary) // the other one is known by postgres.url alone
	p.wants(outcome{standbyHosts, "FAIL 79", copied.HostPort() + " and " + primary.HostPort()})
}

// syncs waits until the standby has a copy, for which the slot has to move.
func (p *place) syncs(s *pgtest.Server) {
	p.t.Helper()
	p.awaitOn(s, "the copy of the slot", "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '"+p.name+"' AND synced AND NOT temporary)", func() {
		p.exec("SELECT pg_log_standby_snapshot()", "SELECT pg_replication_slot_advance('"+p.name+"', pg_current_wal_lsn())")
	})
}

// moveTo makes another server the place, which has its database.
func (p *place) moveTo(s *pgtest.Server) {
	p.s, p.conn = s, pgtest.Connect(p.t, s.SuperURL(p.name))
	p.rcfg.URL = func() (string, error) { return s.URL(p.name, roleName, rolePassword), nil }
}

func conninfo(s *pgtest.Server) string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres", s.Port, pgtest.Superuser, pgtest.Password)
}

// Before PostgreSQL 17, other programs copy the slot: the settings of the synchronization are not missed.
func TestStandbyBefore17(t *testing.T) {
	e := &examination{findings: newFindings(), Config: Config{Slot: "orders", Role: "u", Command: "outboxcdc"}}
	primary := &standby.Server{Version: 160000, System: "1", Slot: &replication.Slot{Kind: "logical"}}
	host := &standby.Server{Version: 160000, System: "1", InRecovery: true, Feedback: true, PrimarySlot: "p", Slot: &replication.Slot{Kind: "logical", ConfirmedFlush: 1}}
	check := func(want string, level Level, words string) {
		t.Helper()
		clear(e.found)
		h := &standbyFacts{address: "db-2:5432", server: host, verdict: standby.Judge(primary, host, nil)}
		e.checkCopy(h, primary)
		e.checkCopySettings(h, primary)
		e.checkWaited(h, primary)
		f := e.found[want][0]
		if f.Level != level || !strings.Contains(f.Text, words) {
			t.Errorf("%s: %s %s, want %s %q", want, f.Level, f.Text, level, words)
		}
	}
	check(standbySlot, OK, "Patroni's permanent slots")
	check(standbySettings, OK, "hot_standby_feedback is on, primary_slot_name is p")
	check(standbyWaited, NotChecked, "since PostgreSQL 17")
	primary.Version, host.Version, primary.Waited, primary.Physical = 170000, 170000, []string{"q"}, map[string]bool{"p": true}
	check(standbyWaited, Warn, "its slot p is not in")
	primary.Physical["p"] = false // to wait for it would stop delivery
	check(standbyWaited, Warn, "its slot p on the primary is missing or not active")
	primary.Version, host.Version = 160000, 160000
	host.Slot, host.Feedback = nil, false
	check(standbySlot, Warn, "no copy")
	check(standbySettings, Warn, "hot_standby_feedback is off")
}

// PostgreSQL 19 says why the copy is not complete: each reason has its remedy.
func TestStandbySkips(t *testing.T) {
	primary := &standby.Server{Version: 190000, System: "1", Slot: &replication.Slot{Kind: "logical", Failover: true}}
	for skip, remedy := range map[string]string{
		"": "start the daemon, or on the primary", standby.SkipNotFlushed: "name its slot p in synchronized_standby_slots",
		standby.SkipSnapshot: "pg_log_standby_snapshot()", standby.SkipRemoved: "hot_standby_feedback",
	} {
		e := &examination{findings: newFindings(), Config: Config{Slot: "orders", Role: "u", Command: "outboxcdc"}}
		host := &standby.Server{
			Version: 190000, System: "1", InRecovery: true, PrimarySlot: "p", SyncSkip: skip,
			Slot: &replication.Slot{Kind: "logical", Failover: true, Synced: true, Temporary: true},
		}
		e.checkCopy(&standbyFacts{address: "db-2:5432", server: host, verdict: standby.Judge(primary, host, nil)}, primary)
		if f := e.found[standbySlot][0]; f.Level != Warn || !strings.Contains(f.Text, skip) || !strings.Contains(f.Remedy[0].Text, remedy) {
			t.Errorf("%q: %+v, want the remedy %q", skip, f, remedy)
		}
	}
}
