package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// A missing slot means that events may be lost. The daemon never recreates it by itself, which would skip them
// silently.
func TestSlotDroppedWhileDown(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F29", "slot dropped while the daemon is down")
	o.sample()
	r := o.startStreaming()
	o.insert("order", "k", 1, 50)
	o.repeatsAtMost(o.verify(patience), 0, "no fault yet")
	r.term()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 51, 1)
	for range 2 { // a supervisor may restart it after 79
		r = o.start()
		r.awaitStop(patience, 79, "slot "+o.name, "no logical slot of that name", "remedy: ")
	}
	is(t, "slots", slots(o), 0)
	is(t, "records", o.follow.records(), 50)
	o.outcome("exit 79 at each start, the slot is not recreated")
}

// slots returns how many there are of the daemon's slot and the recovery slot.
func slots(o *outbox) (n int) {
	o.t.Helper()
	must(o.t, o.admin.scan(`SELECT count(*) FROM pg_replication_slots WHERE database = '`+o.name+`' AND slot_name ~ '^`+o.name+`$|_recovery$|_backfill_[0-9a-f]{8}$'`, &n))
	return n
}

// An operator who recreates the slot accepts the gap. A process that delivers at least once and starts afterwards
// remembers nothing and cannot see it: it delivers the events of the new slot, from the first on.
func TestSlotRemadeWhileDown(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F30", "slot dropped and recreated by hand while the daemon is down, 2 events committed in between")
	o.sample()
	r := o.startStreaming(atLeastOnce)
	o.insert("order", "k", 1, 50)
	o.verify(patience)
	r.term()
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	for n := range 2 { // not in the ledger: they will not be delivered
		o.exec(insertInto+`(gen_random_uuid(), 'order', 'gap', 'added', '{}', '{}', $1)`, n)
	}
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
	o.exec(`DELETE FROM outbox WHERE aggregate_id = 'gap'`) // and so not expected
	o.insert("order", "k", 51, 50)
	o.startStreaming(atLeastOnce)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "the new slot begins after the delivered events")
	o.outcome("not noticed, because a new process that delivers at least once remembers nothing; the 2 are not counted here")
}

// awaitLost writes WAL and requests checkpoints until the server has removed WAL that the slot needs.
func awaitLost(o *outbox) {
	o.t.Helper()
	await(o.t, patience, "the slot to be invalidated", func() error {
		for range 3 {
			o.exec(`INSERT INTO counter VALUES (gen_random_uuid()::text)`)
			o.exec(`SELECT pg_switch_wal()`)
		}
		o.exec(`CHECKPOINT`)
		var status string
		if err := o.admin.scan(o.slotSQL("coalesce(wal_status, '')"), &status); err != nil || status != "lost" {
			return errors.Join(err, fmt.Errorf("its wal_status is %q", status))
		}
		return nil
	})
}

// max_slot_wal_keep_size invalidates a slot: while the daemon is down, and while it holds the slot because a topic is
// missing. 14 reports it in one way and 18 in another.
func TestSlotInvalidated(t *testing.T) {
	t.Parallel()
	for major, test := range map[string]func(*testing.T, *pgtest.Server){"14": invalidatedWhileDown, "18": invalidatedWhileHeld} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			test(t, ownPostgres(t, major, map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}))
		})
	}
}

func invalidatedWhileDown(t *testing.T, pg *pgtest.Server) {
	o := newOutbox(t, options{pg: pg})
	o.proves("F31", "slot invalidated by max_slot_wal_keep_size while the daemon is down")
	o.sample()
	r := o.startStreaming()
	o.insert("order", "k", 1, 50)
	o.repeatsAtMost(o.verify(patience), 0, "no fault yet")
	r.term()
	o.insert("order", "k", 51, 3)
	awaitLost(o)
	r = o.start()
	r.awaitStop(patience, 79, "slot "+o.name, "invalidated", "remedy: ")
	is(t, "slots", slots(o), 1)
	is(t, "records", o.follow.records(), 50)
	o.outcome("exit 79")
}

func invalidatedWhileHeld(t *testing.T, pg *pgtest.Server) {
	o := newOutbox(t, options{pg: pg, types: []string{"order", "unknown"}, missing: []string{"unknown"}})
	o.proves("F31", "slot invalidated by max_slot_wal_keep_size while the daemon waits for a topic")
	o.sample()
	// The daemon does not read while it waits, so it notices the lost connection by its own status updates.
	r := o.startStreaming("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=3s")
	o.insert("order", "k", 1, 50)
	o.awaitArrived(patience)
	o.awaitSettled()
	truth := o.truth()
	before := walInsert(o)
	o.insert("unknown", "k", 1, 1)
	r.awaitState("waiting_for_topic", patience)
	r.endExpected = true
	awaitLost(o)
	r.awaitStop(patience, 79, "slot "+o.name, "remedy: ")
	if c := o.confirmedIfAny(); c > before {
		t.Errorf("the slot confirms %s; the event that waits for its topic was committed after %s", c, before)
	}
	o.makeTopic("unknown", 1, nil) // so that all topics can be read
	v := judge(truth, o.readAll())
	must(t, v.err())
	o.proof.setVerdict(v)
	o.repeatsAtMost(v, 0, "no fault yet")
	o.outcome("exit 79")
}

// confirmedIfAny returns the confirmed position; 0 if the slot is lost and the server does not show it any more.
func (o *outbox) confirmedIfAny() pglogrepl.LSN {
	o.t.Helper()
	lsn, err := pglogrepl.ParseLSN(o.query(o.slotSQL("coalesce(confirmed_flush_lsn, '0/0')::text")))
	must(o.t, err)
	return lsn
}

// Between two sessions of one process that delivers at least once the slot is advanced, or recreated. That may be
// another instance's work, so the daemon only logs and counts it; the skipped events are not delivered.
func TestSlotAheadBetweenSessions(t *testing.T) {
	for _, c := range []struct{ name, fault, done, sql string }{
		{"advanced", "F33", "slot moved by pg_replication_slot_advance", `PERFORM pg_replication_slot_advance('%[1]s', pg_current_wal_lsn());`},
		{"remade", "F30", "slot dropped and recreated by hand", `PERFORM pg_drop_replication_slot('%[1]s');`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.proves(c.fault, "%s between two sessions of a process, past an event that was not delivered", c.done)
			o.sample()
			login, env := o.ownRole("LOGIN REPLICATION")
			r := o.startStreaming(env, atLeastOnce)
			o.insert("order", "k", 1, 50)
			o.awaitArrived(patience)
			o.awaitSettled()

			o.exec(`ALTER ROLE ` + login + ` NOLOGIN`) // keeps the daemon out meanwhile
			o.endSessions()
			o.awaitSlotFree()
			o.exec(insertInto + `(gen_random_uuid(), 'order', 'gap', 'added', '{}', '{}', 1)`) // not in the ledger: it will not be delivered
			o.exec(`DO $$ BEGIN ` + fmt.Sprintf(c.sql, o.name) + ` END $$`)
			if c.name == "remade" {
				o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
			}
			o.exec(`DELETE FROM outbox WHERE aggregate_id = 'gap'`)
			o.exec(`ALTER ROLE ` + login + ` LOGIN`)
			o.insert("order", "k", 51, 50)
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, daemonRemembers)
			m, err := r.metrics()
			must(t, err)
			if n := m["outboxcdc_slot_ahead_total"]; n != 1 {
				t.Errorf("outboxcdc_slot_ahead_total is %v, want 1", n)
			}
			warned := 0
			for _, e := range r.entries() {
				if text, _ := e["msg"].(string); e["level"] == "WARN" && strings.Contains(text, "ahead of the last position") {
					warned++
				}
			}
			if warned != 1 {
				t.Errorf("%d warnings that the slot is ahead, want 1", warned)
			}
			o.outcome("warned once and counted; the event in the gap is not counted here")
		})
	}
}

// endSessions ends every connection of the outbox's daemons, from the server's side.
func (o *outbox) endSessions() {
	o.t.Helper()
	o.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, "outboxcdc-"+o.name)
}

// ownRole creates a role for this test alone, which can read the outbox, and returns the setting that uses it.
func (o *outbox) ownRole(attributes string) (name, env string) {
	o.t.Helper()
	name = o.name
	o.exec(`CREATE ROLE ` + name + ` ` + attributes + ` PASSWORD '` + password + `'`)
	o.exec(`GRANT USAGE ON SCHEMA public TO ` + name)
	o.exec(`GRANT SELECT ON outbox TO ` + name)
	o.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := o.pg.Exec(ctx, o.name, `DROP OWNED BY `+name, `DROP ROLE `+name); err != nil {
			o.t.Errorf("drop the test's role: %v", err)
		}
	})
	return name, "OUTBOXCDC_POSTGRES_URL=" + o.pg.URL(o.name, name, password)
}

// query returns one value from the database, as text.
func (o *outbox) query(sql string, args ...any) (text string) {
	o.t.Helper()
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&text) }))
	return text
}
