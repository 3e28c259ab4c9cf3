package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgfull"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// upgrade is a server that pg_upgrade brings to the next version. The new server listens on the port of the old one.
type upgrade struct {
	t            *testing.T
	older, newer *pgfull.Build
	from, to     string // folders of the servers
	settings     map[string]string
	oldServer    *pgtest.Server
	oldID        string // its system identifier
}

// newUpgrade starts the old server and creates the new cluster.
func newUpgrade(t *testing.T) *upgrade {
	t.Helper()
	u := &upgrade{t: t, older: pgfull.ForTest(t, "17"), newer: pgfull.ForTest(t, "18")}
	u.settings = map[string]string{"max_prepared_transactions": "10", "max_replication_slots": "20", "max_wal_senders": "20", "autovacuum": "off"}
	u.from, u.to = u.folder(u.older), u.folder(u.newer)
	u.oldServer = u.start(u.older, u.from, 0)
	_, err := u.start(u.newer, u.to, 0).Stop(testContext(t), pgtest.Fast)
	must(t, err)
	makeRole(t, u.oldServer)
	return u
}

func (u *upgrade) folder(b *pgfull.Build) string {
	u.t.Helper()
	dir, err := os.MkdirTemp("", "outboxcdc-upgrade"+b.Major+"-")
	must(u.t, err)
	u.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(u.t, b.Folder(dir))
	return dir
}

func (u *upgrade) start(b *pgfull.Build, dir string, port int) *pgtest.Server {
	u.t.Helper()
	s, err := pgtest.Start(testContext(u.t), b.Options(pgtest.Options{Dir: dir, Port: port, Settings: u.settings}))
	must(u.t, err)
	u.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			u.t.Error(err)
		}
	})
	return s
}

// stopOld stops the old server in mode fast, with or without a daemon.
func (u *upgrade) stopOld(o *outbox) {
	u.t.Helper()
	u.oldID = o.query("SELECT system_identifier::text FROM pg_control_system()")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o.admin.close()
	took, err := u.oldServer.Stop(ctx, pgtest.Fast)
	must(u.t, err)
	u.t.Logf("the old server stopped after %v", took.Round(time.Millisecond))
}

// run runs pg_upgrade and starts the new server.
func (u *upgrade) run(o *outbox) {
	u.t.Helper()
	began := time.Now()
	must(u.t, u.newer.Upgrade(testContext(u.t), u.older, u.from, u.to))
	u.t.Logf("pg_upgrade took %v", time.Since(began).Round(time.Millisecond))
	o.pg = u.start(u.newer, u.to, u.oldServer.Port)
}

// refuses runs pg_upgrade, which must refuse because of the slot.
func (u *upgrade) refuses() {
	u.t.Helper()
	err := u.newer.Upgrade(testContext(u.t), u.older, u.from, u.to)
	if err == nil || !strings.Contains(err.Error(), "logical replication slots that cannot be upgraded") {
		u.t.Fatalf("pg_upgrade with a slot that has not consumed everything: %v", err)
	}
}

// upgradeCheck runs `upgrade check`, which must end with this exit code.
func (o *outbox) upgradeCheck(env []string, exit int) *report {
	o.t.Helper()
	out, errs, got := o.runBinary(env, "upgrade", "check", "-o", "json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		o.t.Fatalf("%v: %s%s", err, out, errs)
	}
	if got != exit || r.Exit != exit || strings.Contains(out, password) {
		o.t.Fatalf("exit code %d, want %d, or a password:\n%s%s", got, exit, out, errs)
	}
	return &r
}

// upgradeCase is a way in which the daemon ends before pg_upgrade.
type upgradeCase struct {
	name, done string
	always     bool // without `make prove` as well
	end        func(u *upgrade, o *outbox, r *relay, env []string)
	lostSlot   bool // there is none on the new server
	recovers   int  // how many events `recover` then has to send
	runs       bool // the daemon of before still runs
}

func upgradeCases() []upgradeCase {
	return []upgradeCase{
		{name: "killed", done: "the daemon killed before the server was stopped", always: true, end: func(u *upgrade, o *outbox, r *relay, _ []string) {
			r.kill9()
			u.stopOld(o)
		}},
		{name: "stopped first", done: "the daemon stopped before the server", end: func(u *upgrade, o *outbox, r *relay, _ []string) {
			r.term()
			u.stopOld(o)
		}},
		{name: "stopped last", done: "the daemon stopped after the server, on which another transaction was committed", end: func(u *upgrade, o *outbox, r *relay, env []string) {
			o.exec(`CREATE TABLE other AS SELECT generate_series(1, 1000)`)
			o.upgradeCheck(env, 0) // while the server stops, the daemon confirms nothing
			u.stopOld(o)
			r.signal(syscall.SIGTERM)
			is(u.t, "exit code", r.awaitExit(patience), 0)
		}},
		{name: "runs", done: "the daemon never stopped", runs: true, end: func(u *upgrade, o *outbox, _ *relay, _ []string) { u.stopOld(o) }},
		{name: "refused", done: "the daemon killed before it confirmed what Kafka has, so that pg_upgrade refuses; then both started again", end: func(u *upgrade, o *outbox, r *relay, env []string) {
			r.term()
			r = o.startStreaming(append(slices.Clone(env), "OUTBOXCDC_TUNING_STATUS_INTERVAL=1h")...) // the slot does not move
			o.insert("order", "refused", 1, 10)
			o.awaitArrived(patience)
			r.kill9()
			u.stopOld(o)
			u.refuses()
			must(u.t, u.oldServer.StartAgain(testContext(u.t)))
			o.upgradeCheck(env, 1)
			r = o.startStreaming(env...) // it skips what it finds in Kafka
			o.upgradeCheck(env, 0)
			u.stopOld(o)
			r.signal(syscall.SIGKILL)
			r.awaitExit(patience)
		}},
		{
			name: "slot dropped", lostSlot: true, recovers: 10,
			done: "the slot dropped with undelivered events before pg_upgrade, as an upgrade of PostgreSQL 16 loses it",
			end: func(u *upgrade, o *outbox, r *relay, env []string) {
				r.term()
				o.insert("order", "lost", 1, 10)
				o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				o.upgradeCheck(env, 1)
				u.stopOld(o)
			},
		},
		{
			name: "refused by a service", lostSlot: true, always: true,
			done: "a managed service that refuses the upgrade until the slot is dropped, after `upgrade check`",
			end: func(u *upgrade, o *outbox, r *relay, _ []string) {
				steps := serviceSteps(u.t)
				is(u.t, "the steps in docs/upgrade.md", steps[0]+", "+steps[2], "outboxcdc upgrade check, outboxcdc recover --this-server") // run before and after
				if u.serviceAccepts(o) {
					u.t.Error("the service accepts a slot")
				}
				r.term()
				o.exec(strings.ReplaceAll(steps[1], "'outboxcdc'", "'"+o.name+"'"))
				if !u.serviceAccepts(o) {
					u.t.Fatal("the service refuses without a slot")
				}
				u.stopOld(o)
			},
		},
	}
}

// serviceAccepts is whether a managed service that knows no slots begins the upgrade: as Amazon RDS before PostgreSQL
// 17, it refuses if there is any.
func (u *upgrade) serviceAccepts(o *outbox) bool {
	u.t.Helper()
	return o.query("SELECT count(*)::text FROM pg_replication_slots WHERE slot_type = 'logical'") == "0"
}

// serviceSteps returns the three steps of docs/upgrade.md for a service that refuses.
func serviceSteps(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/upgrade.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(doc), "\n## A managed service that refuses\n")
	_, block, _ := strings.Cut(rest, "```\n")
	block, _, _ = strings.Cut(block, "```")
	var steps []string
	for line := range strings.Lines(block) {
		command, _, _ := strings.Cut(line, "  #")
		steps = append(steps, strings.TrimSpace(command))
	}
	if len(steps) != 3 {
		t.Fatalf("the steps of docs/upgrade.md: %q", steps)
	}
	return steps
}

// F95: pg_upgrade while the application is stopped. `upgrade check` fails until everything is delivered. The daemon
// stops at the new server with 79, and continues after `slot adopt --upgraded-from`: nothing is missing, and nothing
// is repeated.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, c := range upgradeCases() {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if !c.always {
				skipUnlessProving(t)
			}
			t.Parallel()
			upgradeServer(t, c)
		})
	}
}

func upgradeServer(t *testing.T, c upgradeCase) {
	rnd := newRand(t)
	u := newUpgrade(t)
	o := newOutbox(t, options{pg: u.oldServer})
	o.proves("F95", "pg_upgrade from 17 to 18, %s", c.done)
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	w := o.write(load{rand: rnd})
	w.awaitCommits(100)
	w.stop()
	o.awaitArrived(patience)
	r.term()
	o.insert("order", "late", 1, 10)
	if rep := o.upgradeCheck(env, 1); rep.level("consumed") != "FAIL 1" || rep.level("position_record") != "OK" {
		t.Errorf("with undelivered events: %+v", rep)
	}
	r = o.startStreaming(env...)
	if rep := o.upgradeCheck(env, 0); rep.level("consumed") != "OK" || rep.level("active") != "OK" || rep.level("position_record") != "OK" {
		t.Errorf("with everything delivered: %+v", rep)
	}
	o.awaitArrived(patience)
	c.end(u, o, r, env)
	u.run(o)

	if !c.runs {
		r = o.start(env...)
	}
	if c.lostSlot {
		r.awaitStop(patience, 79, "no logical slot of that name", "outboxcdc recover")
		if _, text := o.adopt(env, 79, "--upgraded-from", u.oldID); !strings.Contains(text, "is missing: run outboxcdc recover") {
			t.Errorf("slot adopt without a slot: %s", text)
		}
		said := o.recover(env, 0, "--this-server")
		if says(t, said, fmt.Sprintf("%d rows are missing", c.recovers)); c.recovers > 0 {
			says(t, said, fmt.Sprintf("%d records sent", c.recovers))
		}
	} else {
		r.awaitStop(patience, 79, "outboxcdc slot adopt --upgraded-from "+u.oldID)
		u.adopt(o, env)
	}
	r = o.startStreaming(env...)
	if _, text := o.adopt(env, 1, "--upgraded-from", u.oldID); !strings.Contains(text, "is active for PID ") {
		t.Errorf("beside a running daemon: %s", text)
	}
	w = o.write(load{rand: rnd})
	w.awaitCommits(100)
	r.kill9() // the next start recognizes what Kafka has of the new system
	o.startStreaming(env...)
	w.awaitCommits(100)
	o.awaitHealed()
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "pg_upgrade keeps a slot only if everything is confirmed")
	o.audit(env, 0, "--deep")
	o.outcome("exit 79 at the new server; %s", map[bool]string{false: "after `slot adopt --upgraded-from` it continues", true: "`recover` brings the rest"}[c.lostSlot])
}

// adopt runs `slot adopt --upgraded-from`, which refuses every other system.
func (u *upgrade) adopt(o *outbox, env []string) {
	u.t.Helper()
	newID := o.query("SELECT system_identifier::text FROM pg_control_system()")
	for id, words := range map[string][]string{
		"7000000000000000001": {"7000000000000000001", "was written for system " + u.oldID},
		newID:                 {"system " + newID + " itself"},
	} {
		_, text := o.adopt(env, 1, "--upgraded-from", id)
		for _, w := range append(words, "nothing was changed") {
			if !strings.Contains(text, w) {
				u.t.Errorf("--upgraded-from %s, of %s: no %q in %s", id, u.oldID, w, text)
			}
		}
	}
	a, _ := o.adopt(env, 0, "--upgraded-from", u.oldID, "-o", "json")
	if n := a.New; !a.Written || !n.Adopted || n.UpgradedFrom != u.oldID || len(n.Producers) > 0 || n.Confirm != o.confirmed().String() {
		u.t.Errorf("adopted: %+v", n)
	}
	if _, text := o.adopt(env, 1, "--upgraded-from", u.oldID); !strings.Contains(text, "is of this server already") {
		u.t.Errorf("adopted again: %s", text)
	}
}
