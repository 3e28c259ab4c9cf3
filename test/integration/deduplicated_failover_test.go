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

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// F36, F37: the server fails over, twice, to a standby that has the slot (17 and later). The server had waited for the first one
// with each event (synchronized_standby_slots): nothing is repeated. The second had been cut off while the daemon delivered on: what it has not is reported as phantoms, and
// what is written to it, at positions that the phantoms had before, is delivered.
func TestDeduplicatedFailover(t *testing.T) {
	for _, major := range long([]string{"17", "18"}, []string{"17"}) {
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
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)`, o.name) // a failover slot
	env := o.deduplicating(fence)
	n := 0
	write := func(rows int) {
		t.Helper()
		for range rows {
			o.insert("order", fmt.Sprint("k", n%7), n, 1)
			n++
		}
	}
	standby := o.standby()
	r := o.startStreaming(env...)
	o.syncSlot(standby, func() { write(1) })
	setSystem(o, "synchronized_standby_slots", fmt.Sprintf("standby_%d", o.pg.Port)) // no event before the standby has it
	write(50)
	o.awaitArrived(patience)
	r.kill9()
	o.failOver(standby)
	write(20)
	r = o.startStreaming(env...)
	o.healed()
	o.repeatsAtMost(o.verify(patience), 0, "the standby had everything")
	if r.leftOut() == 0 {
		t.Error("the slot of the standby was not behind: this run proved nothing")
	}
	if m, err := r.metrics(); err != nil || m["outboxcdc_phantom_events_total"] != 0 {
		t.Errorf("phantoms %v, %v; want none", m["outboxcdc_phantom_events_total"], err)
	}

	standby = o.standby()
	o.syncSlot(standby, func() { write(1) })
	o.awaitArrived(patience)
	_, err := standby.Stop(testContext(t), pgtest.Fast)
	must(t, err)
	write(lost)
	o.awaitArrived(patience)
	o.awaitConfirmed(o.walFlushed(), patience) // so that the position record knows of them
	had := map[string]bool{}
	for _, row := range o.truth() {
		had[row.ID] = true
	}
	r.kill9()
	o.failOver(standby)
	for _, row := range o.truth() {
		delete(had, row.ID)
	}
	if len(had) != lost {
		t.Fatalf("the standby lacks %d rows, want %d", len(had), lost)
	}
	write(2 * lost)
	r = o.startStreaming(env...)
	o.healed()
	o.awaitArrived(patience)
	o.awaitSettled()
	o.judgePhantoms(r, had)
}

// judgePhantoms holds what arrived to the table, except for the lost rows, and what the daemon says of these to what they are.
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
	o.proof.judged(v)
	must(o.t, v.err())
	o.repeatsAtMost(v, 0, nothingOnTheWay)
	said := 0
	for _, e := range r.logged("Kafka has events that the server lacks: a failover lost their transactions") {
		count, _ := e["count"].(float64)
		said += int(count)
		for _, id := range []any{e["first_event_id"], e["last_event_id"]} {
			if text, _ := id.(string); !lost[text] {
				o.t.Errorf("event %v is called a phantom, and is none", id)
			}
		}
	}
	m, err := r.metrics()
	must(o.t, err)
	if n := m["outboxcdc_phantom_events_total"]; len(phantoms) != len(lost) || said != len(lost) || int(n) != len(lost) {
		o.t.Errorf("%d phantoms in Kafka, the log says %d, the metric %v; want %d", len(phantoms), said, n, len(lost))
	}
	if n := len(r.logged("Kafka has events that the server lacks: a failover lost their transactions; searching for them")); n != 1 {
		o.t.Errorf("said %d times that they are looked for", n)
	}
	o.outcome("%d phantoms reported, with the first and last id of each partition; none of the new rows is missing", said)
}

// standby makes a physical standby of the outbox's server.
func (o *outbox) standby() *pgtest.Server {
	o.t.Helper()
	ctx := testContext(o.t)
	dir, err := os.MkdirTemp("", "outboxcdc-standby-")
	must(o.t, err)
	o.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(o.t, os.Chmod(dir, 0o755))
	data := filepath.Join(dir, "data")
	conn := fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres", o.pg.Port, pgtest.Superuser, pgtest.Password)
	slot := fmt.Sprintf("standby_%d", o.pg.Port)
	// There is no pg_basebackup: the copy is a cold one.
	_, err = o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	if out, err := exec.CommandContext(ctx, "cp", "-a", o.pg.DataDir, data).CombinedOutput(); err != nil {
		o.t.Fatalf("copy the data directory: %v\n%s", err, out)
	}
	must(o.t, o.pg.StartAgain(ctx))
	must(o.t, o.pg.Exec(ctx, "postgres", "SELECT pg_create_physical_replication_slot('"+slot+"', true)"))
	slots, err := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
	must(o.t, err)
	for _, copied := range slots { // the primary's
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

// syncSlot has the standby copy the slot, for which the primary's has to move.
func (o *outbox) syncSlot(standby *pgtest.Server, move func()) {
	o.t.Helper()
	s := session{url: standby.SuperURL("postgres")}
	defer s.close()
	await(o.t, patience, "the standby to have the slot", func() error {
		move()
		o.exec("SELECT pg_log_standby_snapshot()") // else the slot needs WAL from the last one on, for 15 s
		o.awaitConfirmed(o.walFlushed(), patience)
		var synced bool
		err := standby.Exec(context.Background(), "postgres", "SELECT pg_sync_replication_slots()")
		return errors.Join(err, s.scan("SELECT coalesce(bool_or(synced AND failover AND NOT temporary), false) FROM pg_replication_slots WHERE slot_name = '"+o.name+"'", &synced),
			unless(synced))
	})
}

// failOver kills the outbox's server; the standby takes its place.
func (o *outbox) failOver(standby *pgtest.Server) {
	o.t.Helper()
	_, err := o.pg.Stop(testContext(o.t), pgtest.Immediate)
	must(o.t, err)
	if standby.Pid() == 0 { // cut off: it must not catch up
		must(o.t, standby.StartAgain(testContext(o.t)))
	}
	must(o.t, standby.Exec(testContext(o.t), "postgres", "SELECT pg_promote()"))
	o.admin.close()
	o.pg, o.admin.url = standby, standby.SuperURL(o.name)
}
