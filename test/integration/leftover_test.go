package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// leftoverReported is how soon the daemon reports a leftover: the next time that it asks, every 10 s, with an answer
// within 5 s.
const leftoverReported = 15*time.Second + busyAllowance

// copyRestored is how soon the copy is ready once the leftover was dropped. The server tries every 10 s, it completes
// the copy when the primary has logged its running transactions, which it does every 15 s, and the daemon asks every
// 10 s. Only on a busy machine it takes more than a minute.
const copyRestored = 3 * time.Minute

// F93: a switchover leaves the slot on the demoted primary. The daemon continues on the new primary and reports the
// leftover, and doctor names the command that drops it. In full length: after that the copy is ready, and the
// switchover back loses nothing.
func TestLeftoverOfASwitchover(t *testing.T) {
	t.Parallel()
	first, second := withStandby(t, nil, nil)
	o := newOutbox(t, options{pg: first, partitions: 6})
	o.proves("F93", "switchover that leaves the slot on the demoted primary; standby clean drops it%s", fullOrShort("; switchover back, to its copy", ""))
	o.createFailoverSlot()
	env := append(o.deduplicating(fence), "OUTBOXCDC_POSTGRES_STANDBYS=auto", fmt.Sprintf("OUTBOXCDC_POSTGRES_URL=postgres://%s:%s@%s,%s/%s?sslmode=disable",
		role, password, first.HostPort(), second.HostPort(), o.name))
	rnd := newRand(t)
	r := o.startStreaming(env...)
	write := o.writer()
	o.syncSlot(second, func() { write(1) })
	load1 := o.write(load{rand: rnd})
	load1.awaitCommits(100)
	load1.stop()

	o.switchOver(r, second, "back", map[string]string{"sync_replication_slots": "on"})
	demoted := time.Now()
	load2 := o.write(load{rand: rnd})
	host := first.HostPort()
	r.awaitStandby(host, "blocked", leftoverReported, map[string]float64{"up": 1, "slot_ready": 0, "slot_blocked": 1})
	o.outcome("reported %v after the demoted server accepted connections", time.Since(demoted).Round(100*time.Millisecond))
	o.checkLeftoverCommands(env, first, host)
	dropped := time.Now()
	written := load1.rows.Load()
	if isProving() {
		r.awaitStandby(host, "ready", copyRestored, map[string]float64{"up": 1, "slot_ready": 1, "slot_blocked": 0})
		o.outcome("ready %v after the leftover was dropped", time.Since(dropped).Round(100*time.Millisecond))
		load2.stop()
		written += load2.rows.Load()
		// The copy that replaced the leftover survives the next switchover, whose demoted server keeps a copy.
		o.switchOver(r, first, "forth", nil)
		load2 = o.write(load{rand: rnd})
	}
	load2.awaitCommits(100)
	load2.stop()
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "nothing was in flight at a switchover")
	if written += load2.rows.Load(); written < 200 {
		t.Errorf("%d rows: this proved little", written)
	}
}

// switchOver stops the outbox's server, promotes the standby, and makes the former primary its standby.
func (o *outbox) switchOver(r *relay, standby *pgtest.Server, slot string, settings map[string]string) {
	o.t.Helper()
	ctx, former := testContext(o.t), o.pg
	ended := r.sessionsEnded()
	_, err := former.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	await(o.t, patience, "the daemon to notice", func() error { return waitFor(r.sessionsEnded() > ended) })
	must(o.t, standby.Exec(ctx, "postgres", "SELECT pg_promote()"))
	o.moveTo(standby)
	all := map[string]string{}
	for _, more := range []map[string]string{standbyLimits, settings} {
		for name, value := range more {
			all[name] = value
		}
	}
	must(o.t, former.Follow(ctx, standby, slot, all))
	r.awaitState("streaming", patience)
}

// awaitStandby waits until the last log line about a host of postgres.standbys has that state, and until the metrics
// agree.
func (r *relay) awaitStandby(host, state string, d time.Duration, want map[string]float64) {
	r.t.Helper()
	await(r.t, d, host+" to be "+state, func() error {
		last := "not logged"
		for _, e := range r.entries() {
			if e["host"] == host && e["reason"] != nil {
				last, _ = e["state"].(string)
			}
		}
		m, err := r.metrics()
		if err == nil && last != state {
			err = errors.New("it is " + last)
		}
		for name, value := range want {
			series := fmt.Sprintf(`outboxcdc_standby_%s{host=%q,slot=%q}`, name, host, r.o.name)
			if got, ok := m[series]; err == nil && (!ok || got != value) {
				err = fmt.Errorf("%s is %v, %v", series, got, ok)
			}
		}
		return errors.Join(err, r.o.checkRelays())
	})
}

// checkLeftoverCommands runs the commands of an operator, up to the one that drops the leftover.
func (o *outbox) checkLeftoverCommands(env []string, on *pgtest.Server, host string) {
	t := o.t
	t.Helper()
	clean := []string{"standby", "clean", "--host", host}
	report, found := o.doctor(env...), false
	for _, f := range report.Findings {
		for _, m := range f.Remedy {
			found = found || f.Check == "standby_copy" && f.Level == "WARN" && strings.HasSuffix(m.Text, strings.Join(clean, " "))
		}
	}
	if !found {
		t.Errorf("doctor does not name the remedy: %+v", report.Findings)
	}
	s := session{url: on.SuperURL("postgres")}
	defer s.close()
	leftovers := func() (n int) {
		t.Helper()
		must(t, s.scan("SELECT count(*) FROM pg_replication_slots WHERE failover AND NOT synced AND slot_name = '"+o.name+"'", &n))
		return n
	}
	if out, _ := o.mustRunBinary(env, append(clean, "--dry-run")...); !strings.Contains(out, "would drop slot "+o.name+" on "+host) || leftovers() != 1 {
		t.Errorf("%d leftovers after --dry-run: %s", leftovers(), out)
	}
	if out, _ := o.mustRunBinary(env, append(clean, "--yes")...); !strings.Contains(out, "dropped slot "+o.name+" on "+host) || leftovers() != 0 {
		t.Errorf("%d leftovers after standby clean: %s", leftovers(), out)
	}
}
