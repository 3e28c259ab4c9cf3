package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/sql"
)

// A publication that was renamed was not handed over: its daemon ends, and says which publications there are. After the
// hand-over, a slot that was dropped is named with its remedy, and nothing is lost. What else a hand-over refuses is
// tested in package sql.
func TestScaleDropped(t *testing.T) {
	s := newScaled(t)
	s.setup(2, true)
	statements := s.handOverSQL(2)
	refused := func(words string) {
		t.Helper()
		err := s.try(statements, func(*pgconn.PgConn) { t.Errorf("%s: a daemon was stopped", words) })
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v; want: %s", err, words)
		}
	}
	s.exec(`ALTER PUBLICATION outboxcdc_0_of_1 RENAME TO kept`)
	s.daemons[0].awaitStop(patience, 79, "it was dropped or renamed", "publications name its partitions: kept, outboxcdc_0_of_2, outboxcdc_1_of_2. If")
	refused("table public.outbox has no publication outboxcdc_0_of_1: correct --from")
	s.exec(`ALTER PUBLICATION kept RENAME TO outboxcdc_0_of_1`)
	s.as(0)
	s.adopt(0)
	s.daemons[0] = s.startShard(0)
	s.handOver(2)
	s.startNew(2)
	s.stop(s.daemons[1])
	s.exec(`SELECT pg_drop_replication_slot($1)`, s.name+"_1_of_2")
	refused("slot " + s.name + "_1_of_2 was dropped, or the slot that it is copied from was read or is lost, after the hand-over: run outboxcdc recover with the settings of its daemon")
	s.insert("order", "k", 1, 20)
	s.as(1)
	s.mustRunBinary(append(s.env, s.slot(1)), "recover", "--yes")
	s.daemons[1] = s.startShard(1)
	s.daemons[1].awaitState("streaming", patience)
	must(t, s.try(statements, nil)) // again
	s.awaitArrived(patience)
	if v := judge(s.truth(), s.readAll()); v.err() != nil || v.Repeats > 0 {
		t.Errorf("%d repeats: %v", v.Repeats, v.err())
	}
}

// The session of the hand-over is killed at each of its points, and so are daemons: what docs/scale.md says, to repeat
// the step, leads to the new daemons, and nothing is missing, repeated, or in another order.
func TestScaleCut(t *testing.T) {
	rnd := newRand(t)
	s := newScaled(t)
	w := s.write(load{rand: rnd, keys: 60})
	for _, c := range []struct {
		point   string
		shards  int
		decided bool // what was done cannot be undone
	}{
		{"before commit", 2, false},
		{"before copies", 4, true},
		{"between copies", 2, true},
		{"between drops", 1, true},
		{"before drops", 2, true},
		{"client", 1, false}, // it may cancel the block or not
	} {
		s.setup(c.shards, true)
		s.kill(rnd.IntN(s.shards))
		statements := s.handOverSQL(c.shards)
		if c.point != "client" {
			cutAt(t, statements, c.point)
		}
		s.cut(statements, func(conn *pgconn.PgConn) {
			if c.point == "client" {
				must(t, conn.Conn().Close())
			}
			for _, r := range s.daemons {
				r.endExpected = true
				must(t, r.proc.Kill())
			}
		})
		w.awaitCommits(20)
		err := s.tryHandOver(c.shards)
		again := err != nil && strings.Contains(err.Error(), "no daemon reads slot")
		if err != nil && !again || c.point != "client" && again == c.decided {
			t.Fatalf("%s: %v", c.point, err)
		}
		if again {
			for n := range s.shards {
				s.daemons[n] = s.startShard(n)
			}
			s.handOver(c.shards)
		}
		s.startNew(c.shards)
		s.kill(rnd.IntN(s.shards))
	}
	w.awaitCommits(20)
	w.stop()
	s.drain()
	if v := judge(s.truth(), s.readAll()); v.err() != nil || v.Repeats > 0 {
		t.Errorf("%d repeats: %v", v.Repeats, v.err())
	}
}

// One daemon delivers a table without partitions, and a table with the partitions takes its place, while writers write.
func TestScaleFromPlainTable(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "16", "18"}, []string{defaultMajor}) {
		t.Run(major, func(t *testing.T) { scaleFromPlainTable(t, major) })
	}
}

func scaleFromPlainTable(t *testing.T, major string) {
	rnd := newRand(t)
	pg := sharedPostgres(t, major)
	t.Parallel()
	s := &scaled{outbox: newOutbox(t, options{pg: pg, partitions: 6})}
	s.env = s.deduplicating(steadyFence)
	t.Cleanup(s.dropSlots)
	s.daemons = []*relay{s.start(s.env...)}
	s.daemons[0].awaitState("streaming", patience)
	w := s.write(load{rand: rnd, keys: 60})
	w.awaitCommits(50)
	s.beside = true
	s.setup(4, true)
	s.exec(`ALTER TABLE shards.outbox ADD COLUMN n bigint`)
	s.exec(`CREATE VIEW by_view AS SELECT * FROM outbox`)
	s.exec(`CREATE TABLE by_rule (LIKE outbox)`)
	s.exec(`CREATE RULE moved AS ON INSERT TO by_rule DO INSTEAD INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES (NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.payload)`)
	s.exec(`CREATE FUNCTION by_function() RETURNS void BEGIN ATOMIC INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'f', 'x', '{}'); END`)
	s.kill(0)
	cutStop := func(point string) {
		t.Helper()
		statements := s.handOverSQL(4)
		cutAt(t, statements, point)
		s.cut(statements, func(*pgconn.PgConn) { s.stop(s.daemons[0]) })
		w.awaitCommits(20)
	}
	cutStop("before commit")
	s.daemons[0] = s.startShard(0)
	cutStop("before copies")
	// It has handed over, and nothing but the old slot has what was committed since: no command makes another one.
	s.args = []string{"-c", s.file(1)}
	env := append(append(s.outbox.env(), s.env...), "OUTBOXCDC_POSTGRES_SLOT="+s.name+"_1_of_4")
	s.startAs([]string{"-c", s.file(1), "run"}, env).awaitStop(patience, 79, "have handed over to this one")
	s.checkCreatesNothing(env, "have handed over to this one")
	must(t, s.tryHandOver(4))
	w.awaitCommits(20)
	must(t, s.tryHandOver(4))
	old := s.startShard(0)
	old.awaitStop(patience, 79, "publications name its partitions: outboxcdc_0_of_4, outboxcdc_1_of_4, outboxcdc_2_of_4, outboxcdc_3_of_4. If")
	s.checkCreatesNothing(append(s.env, "OUTBOXCDC_POSTGRES_SLOT="+s.name), "publications name its partitions: outboxcdc_0_of_4")
	s.startNew(4)
	// No daemon would deliver what still goes into the table before.
	for _, statement := range []string{
		`INSERT INTO by_view (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'v', 'x', '{}')`,
		`INSERT INTO by_rule (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'r', 'x', '{}')`, `SELECT by_function()`,
	} {
		err := s.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, statement)
			return err
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.ConstraintName != "replaced" || pg.TableName != "outbox_before" {
			t.Errorf("%s: %v", statement, err)
		}
	}
	s.exec(`CREATE OR REPLACE FUNCTION by_function() RETURNS void BEGIN ATOMIC INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'f', 'x', '{}'); END`)
	s.exec(`SELECT by_function()`)
	w.awaitCommits(50)
	w.stop()
	s.drain()
	for _, r := range s.daemons {
		s.stop(r)
	}
	var before, after int
	must(t, s.admin.scan(`SELECT (SELECT count(*) FROM outbox_before), (SELECT count(*) FROM outbox)`, &before, &after))
	s.exec(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, n) SELECT id, aggregate_type, aggregate_id, event_type, payload, headers, n FROM outbox_before`)
	if v := judge(s.truth(), s.readAll()); v.err() != nil || v.Repeats > 0 || before == 0 || after == 0 {
		t.Errorf("%d rows in the table before, %d in the one after; %d repeats: %v", before, after, v.Repeats, v.err())
	}
}

// cut executes a hand-over, calls stop when that says that the daemons are to be stopped, and waits until the session
// has ended.
func (s *scaled) cut(statements sql.Statements, stop func(*pgconn.PgConn)) {
	s.t.Helper()
	var backend uint32
	await(s.t, 2*patience, "the hand-over to stop the daemons", func() error {
		err := s.try(statements, func(conn *pgconn.PgConn) {
			backend = conn.PID()
			stop(conn)
		})
		if backend == 0 {
			return err
		}
		if err == nil {
			s.t.Fatal("the session was not cut")
		}
		return nil
	})
	await(s.t, patience, "the end of the session", func() error {
		var running int
		err := s.admin.scan(fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity WHERE pid = %d`, backend), &running)
		return errors.Join(err, waitFor(running == 0))
	})
}

// cutAt lets the session end at a point of the hand-over: the server's state is what it is after a kill there.
func cutAt(t *testing.T, statements sql.Statements, point string) {
	t.Helper()
	const cut = " PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60); "
	const commit, copies = "COMMIT;\n        PERFORM", "PERFORM pg_copy_logical_replication_slot(slot_name, name::name) FROM unnest(missing"
	const drops = "PERFORM pg_drop_replication_slot(slot_name) FROM (SELECT * FROM pg_replication_slots WHERE database = current_database() AND plugin = 'pgoutput') slots WHERE slot_name = ANY (old_slots"
	edits := map[string][2]string{
		"before commit":  {commit, cut + commit},
		"before copies":  {copies, cut + copies},
		"between copies": {copies, copies + "[:1]) name, pg_replication_slots WHERE slot_name = source; " + cut + copies},
		"before drops":   {drops, cut + drops},
		"between drops":  {drops, drops + "[:1]); " + cut + drops},
	}[point]
	for i := range statements {
		if st := &statements[i]; st.Name == sql.HandOver {
			if !strings.Contains(st.SQL, edits[0]) {
				t.Fatalf("the hand-over has no %s", edits[0])
			}
			st.SQL = strings.Replace(st.SQL, edits[0], edits[1], 1)
		}
	}
}
