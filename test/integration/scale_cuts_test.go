package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// The hand-over of docs/scale.md refuses publications that together do not have every partition exactly once, or that
// the slots do not know, and says which. It has stopped no daemon then.
func TestScaleRefused(t *testing.T) {
	s := newScaled(t)
	s.exec(`CREATE TABLE unrelated (n int)`)
	conn := pgtest.Connect(t, s.pg.SuperURL(s.name))
	open, err := conn.Begin(testContext(t))
	must(t, err)
	_, err = open.Exec(testContext(t), `INSERT INTO unrelated VALUES (1)`) // no slot passes it
	must(t, err)
	s.setup(2, true)
	refused := func(words string) {
		t.Helper()
		if err := s.tryHandOver(2); err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "nothing was changed") {
			t.Errorf("%v; want: %s", err, words)
		}
	}
	const one, zero = "outboxcdc_1_of_2", "outboxcdc_0_of_2"
	s.exec(`ALTER PUBLICATION ` + one + ` RENAME TO another`)
	refused("publication " + one + " does not exist: repeat step 1")
	s.exec(`ALTER PUBLICATION another RENAME TO ` + one)
	s.exec(`ALTER PUBLICATION ` + one + ` DROP TABLE outbox_1`)
	refused("partition outbox_1 is in 0 publications: {}: repeat step 1")
	s.exec(`ALTER PUBLICATION ` + one + ` ADD TABLE outbox_1 WHERE (aggregate_id <> 'a')`)
	refused("partition outbox_1 is in 0 publications: {}")
	s.exec(`ALTER PUBLICATION ` + one + ` DROP TABLE outbox_1`)
	s.exec(`CREATE PUBLICATION no_events FOR TABLE outbox_1 WITH (publish = 'insert')`)
	refused("repeat step 2") // its rows are no events
	s.exec(`ALTER PUBLICATION ` + one + ` ADD TABLE outbox_1, outbox_0`)
	refused("partition outbox_0 is in 2 publications: {" + zero + "," + one + "}, partition outbox_1 is in 2 publications: {no_events," + one + "}")
	s.exec(`DROP PUBLICATION no_events`)
	s.exec(`ALTER PUBLICATION ` + one + ` DROP TABLE outbox_0`)
	s.exec(`ALTER PUBLICATION ` + one + ` SET (publish = 'update')`)
	refused("partition outbox_1 is in 0 publications: {}, partition outbox_3 is in 0 publications: {}")
	s.exec(`ALTER PUBLICATION ` + one + ` SET (publish = 'insert')`)
	refused("the slots do not know the publications yet: repeat step 2")
	must(t, errors.Join(open.Rollback(testContext(t)), conn.Close(testContext(t))))
	s.page(1, 2)
	s.stop(s.daemons[0])
	refused("no daemon reads slot " + s.name + "_0_of_1: start it")
	s.daemons[0] = s.startShard(0)
	text := s.block(2, 2)
	wrong := func(words, was, is string) {
		t.Helper()
		err := s.tryBlock(strings.Replace(text, was, is, 1), func(*pgconn.PgConn) { t.Errorf("%s: a daemon was stopped", is) })
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v; want: %s", err, words)
		}
	}
	mistakes := func() {
		t.Helper()
		wrong("table outbox has no publication outboxcdc_0_of_3, publication outboxcdc_1_of_3, publication outboxcdc_2_of_3, slot "+s.name+"_0_of_3, ", "old int := 1", "old int := 3")
		wrong("slot another_0_of_1: correct slot, ", "slot text := '"+s.name, "slot text := 'another")
		wrong("publication another_0_of_2 does not exist", "publication text := 'outboxcdc", "publication text := 'another")
		wrong("publication outboxcdc_0_of_16 does not exist", "new int := 2", "new int := 16")
	}
	mistakes()
	wrong("there is no table unrelated with partitions", "outbox regclass := 'outbox'", "outbox regclass := 'unrelated'")
	s.exec(`SELECT pg_copy_logical_replication_slot($1, $2)`, s.name+"_0_of_1", s.name+"_0_of_2") // as setup sql without --no-slot leaves one
	conn = pgtest.Connect(t, s.pg.SuperURL(s.name))
	_, err = conn.PgConn().Exec(testContext(t), "BEGIN; SELECT 1").ReadAll()
	must(t, err)
	if _, err = conn.PgConn().Exec(testContext(t), text).ReadAll(); err == nil || !strings.Contains(err.Error(), "invalid transaction termination") {
		t.Errorf("in a transaction: %v", err)
	}
	must(t, conn.Close(testContext(t)))
	s.exec(`ALTER PUBLICATION outboxcdc_0_of_1 RENAME TO kept`) // which is not what the hand-over does
	s.daemons[0].awaitStop(patience, 79, "it was dropped or renamed", "publications name its partitions: kept, outboxcdc_0_of_2, outboxcdc_1_of_2. If")
	wrong("table outbox has no publication outboxcdc_0_of_1: correct slot, publication", "", "")
	s.exec(`ALTER PUBLICATION kept RENAME TO outboxcdc_0_of_1`)
	s.as(0)
	s.adopt(0)
	s.daemons[0] = s.startShard(0)
	s.handOver(2)
	done := func() {
		t.Helper()
		if err := s.tryBlock(text, func(*pgconn.PgConn) { t.Error("a daemon was stopped again") }); err != nil {
			t.Errorf("the hand-over again: %v", err)
		}
	}
	done()
	mistakes()
	s.startNew(2)
	done()
	// A slot of a new daemon that was dropped is not what the hand-over has left.
	s.stop(s.daemons[1])
	s.exec(`SELECT pg_drop_replication_slot($1)`, s.name+"_1_of_2")
	wrong("slot "+s.name+"_1_of_2 was dropped after the hand-over: run outboxcdc recover with the settings of its daemon", "", "")
	s.insert("order", "k", 1, 20)
	s.as(1)
	s.mustRunBinary(append(s.env, s.slot(1)), "recover", "--yes")
	s.daemons[1] = s.startShard(1)
	s.daemons[1].awaitState("streaming", patience)
	done()
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
		s.page(1, c.shards)
		s.kill(rnd.IntN(s.shards))
		text := s.block(2, c.shards)
		if c.point != "client" {
			text = cutAt(t, text, c.point)
		}
		s.cut(text, func(conn *pgconn.PgConn) {
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
	s.exec(`CREATE SCHEMA shards`)
	s.table = "shards.outbox"
	s.setup(4, true)
	s.exec(`ALTER TABLE shards.outbox ADD COLUMN n bigint`)
	s.exec(`CREATE VIEW by_view AS SELECT * FROM outbox`)
	s.exec(`CREATE TABLE by_rule (LIKE outbox)`)
	s.exec(`CREATE RULE moved AS ON INSERT TO by_rule DO INSTEAD INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES (NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.payload)`)
	s.exec(`CREATE FUNCTION by_function() RETURNS void BEGIN ATOMIC INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'f', 'x', '{}'); END`)
	s.page(1, 4)
	if err := s.tryBlock(strings.Replace(s.block(2, 4), "'shards.%I'", "'public.%I'", 1), nil); err == nil ||
		!strings.Contains(err.Error(), "there is no table public.outbox with partitions: repeat step 1; nothing was changed") {
		t.Errorf("a table without partitions: %v", err)
	}
	s.kill(0)
	s.cut(cutAt(t, s.block(2, 4), "before commit"), func(*pgconn.PgConn) { s.stop(s.daemons[0]) })
	w.awaitCommits(20)
	s.daemons[0] = s.startShard(0)
	s.handOver(4)
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

// cut executes a block that hands over, calls stop when that says that the daemons are to be stopped, and waits until
// the session has ended.
func (s *scaled) cut(text string, stop func(*pgconn.PgConn)) {
	s.t.Helper()
	var backend uint32
	await(s.t, 2*patience, "the hand-over to stop the daemons", func() error {
		err := s.tryBlock(text, func(conn *pgconn.PgConn) {
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

// cutAt lets the session of the block end at a point: the server's state is what it is after a kill there.
func cutAt(t *testing.T, block, point string) string {
	t.Helper()
	const cut = " PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60); "
	const commit, copies = "COMMIT;\n    END IF;", "PERFORM pg_copy_logical_replication_slot(leaving[1]::name, name::name) FROM unnest(coming"
	const drops = "PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (leaving"
	edits := map[string][2]string{
		"before commit":  {commit, cut + commit},
		"before copies":  {copies, cut + copies},
		"between copies": {copies, copies + "[:1]) name; " + cut + copies},
		"before drops":   {drops, cut + drops},
		"between drops":  {drops, drops + "[:1]); " + cut + drops},
	}[point]
	if strings.Count(block, edits[0]) != 1 {
		t.Fatalf("the block has no %s", edits[0])
	}
	return strings.Replace(block, edits[0], edits[1], 1)
}
