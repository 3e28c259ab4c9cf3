package standby

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// patience is far more than anything here takes.
const patience = time.Minute

const slot = "orders"

// await calls done until it returns nil.
func await(t *testing.T, what string, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := child.Await(ctx, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pair is a primary and a standby, and the names by which a role with CONNECT alone asks them.
type pair struct {
	t                *testing.T
	ctx              context.Context
	primary, standby *pgtest.Server
	role             string
}

// standbySettings make a standby copy slots.
var standbySettings = map[string]string{"sync_replication_slots": "on"}

func newPair(t *testing.T, major string, settings map[string]string) *pair {
	t.Helper()
	child.SkipShort(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	p := &pair{t: t, ctx: ctx, role: "watcher"}
	var err error
	p.primary, err = pgtest.Start(ctx, pgtest.Options{Major: major})
	must(t, err)
	t.Cleanup(func() { must(t, p.primary.Close()) })
	must(t, p.primary.Exec(ctx, "postgres", "CREATE ROLE watcher LOGIN PASSWORD 'secret'", "CREATE ROLE dropper LOGIN REPLICATION PASSWORD 'secret'"))
	p.standby, err = p.primary.Standby(ctx, "first", settings)
	must(t, err)
	t.Cleanup(func() { must(t, p.standby.Close()) })
	return p
}

func (p *pair) host(s *pgtest.Server) *replication.Host {
	p.t.Helper()
	hosts, _, err := replication.Hosts([]string{s.URL("postgres", p.role, "secret")}, ApplicationName(slot), nil)
	must(p.t, err)
	return hosts[0]
}

// judge asks both servers and judges the standby's copy.
func (p *pair) judge() Verdict {
	p.t.Helper()
	primary, err := Ask(p.ctx, p.host(p.primary), slot)
	must(p.t, err)
	host, err := Ask(p.ctx, p.host(p.standby), slot)
	return Judge(primary, host, err)
}

// awaitState waits for a state, while it moves the slot of the primary: a standby needs a slot that moves.
func (p *pair) awaitState(want State) Verdict {
	p.t.Helper()
	var v Verdict
	await(p.t, "the state "+string(want), func() error {
		if s, err := Ask(p.ctx, p.host(p.primary), slot); err == nil && s.Slot != nil {
			must(p.t, p.primary.Exec(p.ctx, "postgres", "SELECT pg_log_standby_snapshot()", "SELECT pg_replication_slot_advance('"+slot+"', pg_current_wal_lsn())"))
		}
		if v = p.judge(); v.State != want {
			return fmt.Errorf("the state is %s: %s", v.State, v.Text)
		}
		return nil
	})
	return v
}

// switchOver stops the primary, promotes the standby, and makes the former primary its standby.
func (p *pair) switchOver(slot string) {
	p.t.Helper()
	_, err := p.primary.Stop(p.ctx, pgtest.Fast)
	must(p.t, err)
	must(p.t, p.standby.Exec(p.ctx, "postgres", "SELECT pg_promote()"))
	must(p.t, p.primary.Follow(p.ctx, p.standby, slot, standbySettings))
	p.primary, p.standby = p.standby, p.primary
}

// A role with CONNECT alone sees the whole life of a copy: no copy, a synchronized one, and after a switchover the
// leftover on the demoted server.
func TestCopyThroughASwitchover(t *testing.T) {
	t.Parallel()
	p := newPair(t, "17", standbySettings)
	if v := p.judge(); v.State != Missing {
		t.Errorf("without a slot: %+v", v)
	}
	must(t, p.primary.Exec(p.ctx, "postgres", "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput', false, false, true)"))
	v := p.awaitState(Ready)
	if v.LagBytes == nil || v.Leftover {
		t.Errorf("synchronized: %+v", v)
	}
	s, err := Ask(p.ctx, p.host(p.standby), slot)
	must(t, err)
	if !s.InRecovery || s.SyncSlots != "on" || !s.Feedback || s.PrimarySlot != "first" || s.NamesDB != nil || !s.Receiving || s.Major() != 17 {
		t.Errorf("the standby says %+v", s)
	}
	if now, err := Ask(p.ctx, p.host(p.primary), slot); err != nil || now.InRecovery || !now.Physical["first"] || len(now.Waited) > 0 || now.System != s.System || now.System == "" {
		t.Errorf("the primary says %+v, %v", now, err)
	}
	must(t, p.primary.Exec(p.ctx, "postgres", "GRANT pg_read_all_settings TO watcher"))
	await(t, "the privilege to reach the standby", func() error {
		if s, err = Ask(p.ctx, p.host(p.standby), slot); err == nil && (s.NamesDB == nil || !*s.NamesDB) {
			err = fmt.Errorf("dbname: %v", s.NamesDB)
		}
		return err
	})
	must(t, p.primary.Exec(p.ctx, "postgres", "REVOKE pg_read_all_settings FROM watcher"))

	p.switchOver("second")
	await(t, "the leftover", func() error {
		if v = p.judge(); v.State != Blocked || !v.Leftover {
			return fmt.Errorf("after the switchover: %+v", v)
		}
		return nil
	})
	// The leftover hides nothing else: alone, without the primary's answer, it is one as well.
	s, err = Ask(p.ctx, p.host(p.standby), slot)
	must(t, err)
	if v := Judge(nil, s, nil); v.State != Blocked || !v.Leftover {
		t.Errorf("without the primary: %+v", v)
	}
	p.clean()
	p.awaitState(Ready)
	// The promoted server has the slot as a copy, so that its demotion leaves no leftover.
	p.switchOver("third")
	p.awaitState(Ready)
}

// clean removes the leftover on the standby, with a role that has REPLICATION.
func (p *pair) clean() {
	t := p.t
	t.Helper()
	ask := func(s *pgtest.Server) *Server {
		t.Helper()
		answer, err := Ask(p.ctx, p.host(s), slot)
		must(t, err)
		return answer
	}
	primary, standby := ask(p.primary), ask(p.standby)
	if err := CheckLeftover(slot, "here", primary, primary); err == nil {
		t.Error("the primary's own slot would be dropped")
	}
	must(t, CheckLeftover(slot, "here", primary, standby))
	for _, c := range []struct {
		role, system string
		on           *pgtest.Server
		code         int
	}{
		{"watcher", primary.System, p.standby, exit.NoPermission},
		{"dropper", "1", p.standby, exit.Fault},
		{"dropper", primary.System, p.primary, exit.Fault},
	} {
		p.role = c.role
		if err := Clean(p.ctx, p.host(c.on), slot, c.system); exit.Code(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if ask(p.primary).Slot == nil || ask(p.standby).Slot == nil {
		t.Fatal("a slot was dropped that is no leftover")
	}
	must(t, Clean(p.ctx, p.host(p.standby), slot, primary.System))
	p.awaitState(Ready)
	if err := Clean(p.ctx, p.host(p.standby), slot, primary.System); exit.Code(err) != exit.Fault {
		t.Errorf("a synchronized copy: %v", err)
	}
	p.role = "watcher"
}

// A host that does not answer, one of another cluster and a second primary are recognized.
func TestHostsThatAreNoStandby(t *testing.T) {
	t.Parallel()
	p := newPair(t, "17", nil)
	stranger := pgtest.ForTest(t, pgtest.Options{Major: "17"})
	must(t, stranger.Exec(p.ctx, "postgres", "CREATE ROLE watcher LOGIN PASSWORD 'secret'"))
	primary, err := Ask(p.ctx, p.host(p.primary), slot)
	must(t, err)
	judge := func(s *pgtest.Server) Verdict {
		host, err := Ask(p.ctx, p.host(s), slot)
		return Judge(primary, host, err)
	}
	if v := judge(p.primary); v.State != IsPrimary {
		t.Errorf("the primary itself: %+v", v)
	}
	if v := judge(stranger); v.State != OtherCluster || !strings.Contains(v.Text, primary.System) {
		t.Errorf("another cluster: %+v", v)
	}
	// A command that accepts a standby prefers the primary, wherever it is in the list.
	source, err := replication.NewSource(replication.Config{Slot: slot, WalSenderTimeout: time.Minute, URL: func() (string, error) {
		return fmt.Sprintf("postgres://watcher:secret@%s,%s/postgres", p.standby.HostPort(), p.primary.HostPort()), nil
	}})
	must(t, err)
	conn, err := source.Connect(p.ctx, "test", true)
	must(t, err)
	if s, err := Read(p.ctx, conn, slot); err != nil || s.InRecovery {
		t.Errorf("connected to the standby: %v", err)
	}
	hangUp(p.ctx, conn)

	must(t, p.standby.Exec(p.ctx, "postgres", "SELECT pg_promote()"))
	if v := judge(p.standby); v.State != OtherPrimary {
		t.Errorf("a second primary: %+v", v)
	}
	_, err = p.standby.Stop(p.ctx, pgtest.Immediate)
	must(t, err)
	if v := judge(p.standby); v.State != Unreachable || strings.Contains(v.Text, "secret") || v.Text == "" {
		t.Errorf("a server that is down: %+v", v)
	}
}
