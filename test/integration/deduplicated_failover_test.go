package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// F36, F37: the server fails over, twice, to a standby that has the slot (17 and later). The server waited for the
// first standby with each event (synchronized_standby_slots): nothing is repeated. The second was cut off while the
// daemon kept delivering: the events it lacks are reported as phantoms, and new events at the positions of phantoms are
// delivered.
func TestDeduplicatedFailover(t *testing.T) {
	t.Parallel()
	for _, major := range fullOrShort([]string{"17", "18"}, []string{"17"}) {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			deduplicatedFailover(t, major)
		})
	}
}

func deduplicatedFailover(t *testing.T, major string) {
	const lost = 30
	o := newOutbox(t, options{pg: ownPostgres(t, major, nil), partitions: 6})
	o.proves("F36 F37", "failover of a deduplicating daemon's server to a standby with the slot: one in synchronized_standby_slots, then one that lacks the last %d events", lost)
	o.createFailoverSlot()
	env := o.deduplicating(fence)
	write := o.writer()
	standby := o.newStandby()
	r := o.startStreaming(env...)
	o.syncSlot(standby, func() { write(1) })
	setSystem(o, "synchronized_standby_slots", fmt.Sprintf("standby_%d", o.pg.Port)) // no event is sent before the standby has it
	write(50)
	o.awaitArrived(patience)
	r.kill9()
	o.leaveRecovery(env, standby)
	o.failOver(standby)
	if out, _, code := o.runBinary(env, "run"); code != 79 {
		t.Errorf("a recovery has not finished, and a daemon on the new primary ends with %d:\n%s", code, out)
	}
	o.recover(env, 0)
	write(20)
	r = o.startStreaming(env...)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "the standby had everything")
	if r.skippedInKafka() == 0 {
		t.Error("the slot of the standby was not behind: this run proved nothing")
	}
	if m, err := r.metrics(); err != nil || m["outboxcdc_phantom_events_total"] != 0 {
		t.Errorf("phantoms %v, %v; want none", m["outboxcdc_phantom_events_total"], err)
	}

	standby = o.newStandby()
	o.syncSlot(standby, func() { write(1) })
	o.awaitArrived(patience)
	_, err := standby.Stop(testContext(t), pgtest.Fast)
	must(t, err)
	write(lost)
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience) // the position record then covers them
	had := o.idSet()
	r.kill9()
	o.failOver(standby)
	o.lostOf(had, lost)
	write(2 * lost)
	r = o.startStreaming(env...)
	o.awaitHealed()
	o.awaitArrived(patience)
	o.awaitSettled()
	o.judgePhantoms(r, had)
}

// F37: a daemon that runs during a failover that loses events it has delivered continues like one that was restarted:
// it counts exactly the phantoms. The last of them are newer than its position record. The new primary is another
// host of the URL, or has the address of the old one.
func TestRunningThroughLossyFailover(t *testing.T) {
	t.Parallel()
	for _, oneAddress := range []bool{false, true} {
		t.Run(fmt.Sprintf("one address %v", oneAddress), func(t *testing.T) {
			t.Parallel()
			runningThroughLossyFailover(t, oneAddress)
		})
	}
}

func runningThroughLossyFailover(t *testing.T, oneAddress bool) {
	const lost = 30
	o := newOutbox(t, options{pg: ownPostgres(t, "17", nil), partitions: 6})
	o.proves("F37", "failover, while the daemon runs, to a standby that lacks the last %d events; the new primary at the same address: %v", lost, oneAddress)
	o.createFailoverSlot()
	write := o.writer()
	standby := o.newStandby()
	hosts, follow := o.pg.HostPort()+","+standby.HostPort(), func() {}
	if oneAddress {
		p, err := faultproxy.Start(o.pg.HostPort())
		must(t, err)
		t.Cleanup(func() { _ = p.Close() })
		hosts, follow = p.Addr(), func() { p.Target(standby.HostPort()) }
	}
	r := o.startStreaming(append(o.deduplicating(fence), fmt.Sprintf("OUTBOXCDC_POSTGRES_URL=postgres://%s:%s@%s/%s?sslmode=disable", role, password, hosts, o.name))...)
	o.syncSlot(standby, func() { write(1) })
	o.awaitArrived(patience)
	_, err := standby.Stop(testContext(t), pgtest.Fast)
	must(t, err)
	write(lost)
	o.awaitArrived(patience) // the position record need not cover them yet
	had := o.idSet()
	o.failOver(standby)
	follow()
	o.lostOf(had, lost)
	write(2 * lost)
	o.awaitHealed()
	o.awaitArrived(patience)
	o.awaitSettled()
	o.judgePhantoms(r, had)
}

// createFailoverSlot replaces the slot by one that standbys copy.
func (o *outbox) createFailoverSlot() {
	o.t.Helper()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)`, o.name)
}

// writer returns a function that writes events of seven keys.
func (o *outbox) writer() func(rows int) {
	n := 0
	return func(rows int) {
		o.t.Helper()
		for range rows {
			o.insert("order", fmt.Sprint("k", n%7), n, 1)
			n++
		}
	}
}

// idSet returns the ids of the rows of the table.
func (o *outbox) idSet() map[string]bool {
	o.t.Helper()
	ids := map[string]bool{}
	for _, row := range o.truth() {
		ids[row.ID] = true
	}
	return ids
}

// lostOf removes from had the rows that the table has. want rows must be left.
func (o *outbox) lostOf(had map[string]bool, want int) {
	o.t.Helper()
	for id := range o.idSet() {
		delete(had, id)
	}
	if len(had) != want {
		o.t.Fatalf("the standby lacks %d rows, want %d", len(had), want)
	}
}

// judgePhantoms compares the records with the table, except for the lost rows, and the reported phantoms with the lost
// rows.
func (o *outbox) judgePhantoms(r *relay, lost map[string]bool) {
	o.t.Helper()
	h := o.history()
	var phantoms []string
	h.Records = slices.DeleteFunc(h.Records, func(rec kafkatest.Record) bool {
		id, _ := headerOf(rec, "id")
		if lost[id] {
			phantoms = append(phantoms, id)
		}
		return lost[id]
	})
	v := h.judge()
	o.proof.setVerdict(v)
	must(o.t, v.err())
	o.repeatsAtMost(v, 0, noneInFlight)
	said := 0
	for _, e := range r.logged("Kafka has events that the server lacks: a failover lost their transactions") {
		count, _ := e["count"].(float64)
		said += int(count)
		for _, id := range []any{e["first_event_id"], e["last_event_id"]} {
			if text, _ := id.(string); !lost[text] {
				o.t.Errorf("event %v is reported as a phantom, and is none", id)
			}
		}
	}
	m, err := r.metrics()
	must(o.t, err)
	if n := m["outboxcdc_phantom_events_total"]; len(phantoms) != len(lost) || said != len(lost) || int(n) != len(lost) {
		o.t.Errorf("%d phantoms in Kafka, the log says %d, the metric %v; want %d", len(phantoms), said, n, len(lost))
	}
	is(o.t, "log lines", len(r.logged("Kafka has events that the server lacks: a failover lost their transactions; searching for them")), 1)
	o.outcome("%d phantoms reported, with the first and last id of each partition; none of the new rows is missing", said)
}

// newStandby creates a physical standby of the outbox's server.
func (o *outbox) newStandby() *pgtest.Server {
	o.t.Helper()
	ctx := testContext(o.t)
	dir, err := os.MkdirTemp("", "outboxcdc-standby-")
	must(o.t, err)
	o.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(o.t, os.Chmod(dir, 0o755))
	data := filepath.Join(dir, "data")
	conn := fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres", o.pg.Port, pgtest.Superuser, pgtest.Password)
	slot := fmt.Sprintf("standby_%d", o.pg.Port)
	// pg_basebackup is not available: copy the stopped server.
	_, err = o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	if out, err := exec.CommandContext(ctx, "cp", "-a", o.pg.DataDir, data).CombinedOutput(); err != nil {
		o.t.Fatalf("copy the data directory: %v\n%s", err, out)
	}
	must(o.t, o.pg.StartAgain(ctx))
	must(o.t, o.pg.Exec(ctx, "postgres", "SELECT pg_create_physical_replication_slot('"+slot+"', true)"))
	slots, err := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
	must(o.t, err)
	for _, copied := range slots { // copied from the primary
		must(o.t, os.RemoveAll(copied))
	}
	must(o.t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	s, err := pgtest.Start(ctx, pgtest.Options{Major: o.pg.Major, Dir: dir, Settings: map[string]string{
		"primary_conninfo": conn, "primary_slot_name": slot, "hot_standby_feedback": "on", "max_prepared_transactions": "10", "max_replication_slots": "20",
	}})
	must(o.t, err)
	o.t.Cleanup(func() {
		if o.t.Failed() {
			o.t.Logf("the log of the standby:\n%s", tail(s.LogFile, 30))
		}
		if err := s.Close(); err != nil {
			o.t.Error(err)
		}
	})
	return s
}

// leaveRecovery kills a recovery, and waits until the standby has the slot that says so.
func (o *outbox) leaveRecovery(env []string, standby *pgtest.Server) {
	o.t.Helper()
	c := o.startCommand(append(slices.Clone(env), "OUTBOXCDC_TUNING_FENCE_WAIT=5m"), "recover", "--yes")
	s := session{url: standby.SuperURL("postgres")}
	defer s.close()
	await(o.t, patience, "the standby to have the recovery slot", func() error {
		var created, synced bool
		must(o.t, o.admin.scan("SELECT coalesce(bool_or(failover), false) FROM pg_replication_slots WHERE slot_name = '"+o.name+"_recovery'", &created))
		if created {
			_ = c.cmd.Process.Kill()
		}
		o.exec("SELECT pg_log_standby_snapshot()")
		err := standby.Exec(context.Background(), "postgres", "SELECT pg_sync_replication_slots()")
		return errors.Join(err, s.scan("SELECT coalesce(bool_or(synced AND NOT temporary), false) FROM pg_replication_slots WHERE slot_name = '"+o.name+"_recovery'", &synced),
			waitFor(created && synced))
	})
	<-c.ended
}

// syncSlot makes the standby copy the slot, for which the primary's slot has to move.
func (o *outbox) syncSlot(standby *pgtest.Server, move func()) {
	o.t.Helper()
	s := session{url: standby.SuperURL("postgres")}
	defer s.close()
	await(o.t, patience, "the standby to have the slot", func() error {
		move()
		o.exec("SELECT pg_log_standby_snapshot()") // else the slot needs WAL from the last snapshot on, for 15 s
		o.awaitConfirmed(o.walFlushed(), patience)
		var synced bool
		err := standby.Exec(context.Background(), "postgres", "SELECT pg_sync_replication_slots()")
		return errors.Join(err, s.scan("SELECT coalesce(bool_or(synced AND failover AND NOT temporary), false) FROM pg_replication_slots WHERE slot_name = '"+o.name+"'", &synced),
			waitFor(synced))
	})
}

// failOver kills the outbox's server and promotes the standby.
func (o *outbox) failOver(standby *pgtest.Server) {
	o.t.Helper()
	_, err := o.pg.Stop(testContext(o.t), pgtest.Immediate)
	must(o.t, err)
	if standby.Pid() == 0 { // the standby was cut off: it must not catch up
		must(o.t, standby.StartAgain(testContext(o.t)))
	}
	must(o.t, standby.Exec(testContext(o.t), "postgres", "SELECT pg_promote()"))
	o.admin.close()
	o.pg, o.admin.url = standby, standby.SuperURL(o.name)
}
