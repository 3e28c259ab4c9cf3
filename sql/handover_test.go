package sql

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// The rules of a hand-over, on a server, with readers of slots instead of daemons: test/integration hands over between
// daemons.
func TestHandOverOnServer(t *testing.T) {
	server := pgtest.ForTest(t, pgtest.Options{Major: "17"})
	for name, test := range map[string]func(*handedOver){
		"refused": handOverRefused, "waits": handOverWaits, "known": handOverKnown, "done": handOverDone, "whole": handOverWhole, "moved": handOverMoved, "twice": handOverTwice,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newHandedOver(t, server, "handover_"+name))
		})
	}
}

// handedOver is an outbox with a database and slots of its own.
type handedOver struct {
	*testing.T
	server  *pgtest.Server
	conn    *pgx.Conn
	p       Params // without Share
	readers map[string]*reader
	arrived arrivals
	edit    *strings.Replacer // of the statement that hands over
	name    string            // of the database
}

func newHandedOver(t *testing.T, server *pgtest.Server, name string) *handedOver {
	h := &handedOver{T: t, server: server, readers: map[string]*reader{}, edit: strings.NewReplacer(), name: name}
	h.p = defaults()
	h.p.Slot, h.p.Timeout = name, time.Minute
	must(t, server.Exec(t.Context(), "postgres", "DROP DATABASE IF EXISTS "+name, "CREATE DATABASE "+name))
	t.Cleanup(func() {
		for slot := range h.readers {
			h.stop(slot)
		}
		ctx := context.Background()
		h.await("the slots to be free", func() bool {
			return server.Exec(ctx, name, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()") == nil
		})
	})
	h.conn = pgtest.Connect(t, server.SuperURL(name))
	h.exec(`CREATE TABLE unrelated (n int)`)
	return h
}

// shared are the names for a number of daemons.
func (h *handedOver) shared(shards int) Params {
	p := h.p
	p.Tables = slices.Clone(p.Tables)
	must(h, p.Share(shards))
	return p
}

// setup executes the set-up, except for the role and its privileges.
func (h *handedOver) setup(p Params) {
	h.Helper()
	statements, err := Setup(p, 17)
	must(h, err)
	for _, st := range statements {
		if st.Name != Role && st.Name != Grants {
			h.exec(st.SQL)
		}
	}
}

// begin sets up for a number of daemons, which read.
func (h *handedOver) begin(shards int) {
	h.Helper()
	h.setup(h.shared(shards))
	h.readAll(h.shared(shards))
}

// next creates what the next number of daemons needs.
func (h *handedOver) next(shards int) {
	h.Helper()
	p := h.shared(shards)
	p.NoSlot = true
	h.setup(p)
}

func (h *handedOver) exec(sql string) {
	h.Helper()
	_, err := h.conn.PgConn().Exec(h.Context(), sql).ReadAll()
	must(h, err)
}

func (h *handedOver) text(sql string) (text string) {
	h.Helper()
	must(h, h.conn.QueryRow(h.Context(), "SELECT ("+sql+")::text").Scan(&text))
	return text
}

// slots are the names of all slots.
func (h *handedOver) slots() string {
	h.Helper()
	return h.text("SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots WHERE database = current_database()")
}

func (h *handedOver) insert(keys ...string) {
	h.Helper()
	for _, key := range keys {
		_, err := h.conn.Exec(h.Context(), "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', $1, 'x')", key)
		must(h, err)
	}
}

// await polls until a condition holds.
func (h *handedOver) await(what string, holds func() bool) {
	h.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			h.Fatalf("a minute was too short for %s", what)
		}
	}
}

// handOver executes the statement that hands over, and calls stop when it says that the daemons are to
// be stopped; then it stops the readers.
func (h *handedOver) handOver(p Params, from int, stop func()) error {
	h.Helper()
	statements, err := HandOverFrom(p, from)
	must(h, err)
	cc, err := pgx.ParseConfig(h.server.SuperURL(h.name))
	must(h, err)
	said := make(chan struct{}, 1)
	cc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Message == "stop the old daemons now" {
			said <- struct{}{}
		}
	}
	conn, err := pgx.ConnectConfig(h.Context(), cc)
	must(h, err)
	_, err = conn.PgConn().Exec(h.Context(), statements.Get(Session)).ReadAll()
	must(h, err)
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(h.Context(), h.edit.Replace(statements.Get(HandOver))).ReadAll()
		done <- errors.Join(err, conn.Close(context.Background()))
	}()
	select {
	case <-said:
		if stop != nil {
			stop()
		}
		for slot := range h.readers {
			h.stop(slot)
		}
		return <-done
	case err := <-done:
		return err
	}
}

// refused checks that a hand-over is refused with words, and that no daemon was to be stopped.
func (h *handedOver) refused(p Params, from int, words string) {
	h.Helper()
	err := h.handOver(p, from, func() { h.Errorf("%s: the daemons were to be stopped", words) })
	if err == nil || !strings.Contains(err.Error(), words) {
		h.Fatalf("%v; want: %s", err, words)
	}
}

// known executes the statement that waits. Meanwhile the server writes which transactions run, as it does every 15
// seconds.
func (h *handedOver) known(p Params, from int) {
	h.Helper()
	statements, err := HandOverFrom(p, from)
	must(h, err)
	ctx, cancel := context.WithCancel(h.Context())
	var beside sync.WaitGroup
	beside.Go(func() {
		for ctx.Err() == nil {
			_ = h.server.Exec(ctx, p.Slot, "SELECT pg_log_standby_snapshot()", "SELECT pg_sleep(0.1)")
		}
	})
	h.exec(statements.Get(Known))
	cancel()
	beside.Wait()
}

// handOverRefused: what is not as it has to be is named, and no daemon is stopped.
func handOverRefused(h *handedOver) {
	h.begin(1)
	open := pgtest.Connect(h, h.server.SuperURL(h.p.Slot))
	_, err := open.Exec(h.Context(), "BEGIN; INSERT INTO unrelated VALUES (1)") // no slot passes it
	must(h, err)
	two := h.shared(2)
	h.next(2)
	const zero, one = "outboxcdc_0_of_2", "outboxcdc_1_of_2"
	for _, c := range []struct{ change, words, back string }{
		{"RENAME TO another", "publication " + one + " does not exist; drop the publications", "ALTER PUBLICATION another RENAME TO " + one},
		{"DROP TABLE outbox_1", "partition public.outbox_1 is in 0 publications: {}; drop the publications", ""},
		{"ADD TABLE outbox_1 WHERE (aggregate_id <> 'a')", "partition public.outbox_1 is in 0 publications: {}", "ALTER PUBLICATION " + one + " DROP TABLE outbox_1"},
		{"ADD TABLE outbox_1, outbox_0", "partition public.outbox_0 is in 2 publications: {" + zero + "," + one + "}; ", "ALTER PUBLICATION " + one + " DROP TABLE outbox_0"},
		{"SET (publish = 'update')", "partition public.outbox_1 is in 0 publications: {}, partition public.outbox_3 is in 0 publications: {}", "ALTER PUBLICATION " + one + " SET (publish = 'insert')"},
		{"DROP TABLE outbox_1", "partition public.outbox_1 is in 0", "CREATE PUBLICATION no_events FOR TABLE outbox_1 WITH (publish = 'insert')"},
		{"SET (publish = 'insert')", "the slots do not know the publications yet", "DROP PUBLICATION no_events"}, // its rows are no events
		{"ADD TABLE outbox_1", "the slots do not know the publications yet", ""},
	} {
		h.exec("ALTER PUBLICATION " + one + " " + c.change)
		h.refused(two, 1, c.words)
		h.exec(c.back)
	}
	h.exec("ALTER PUBLICATION " + one + " ADD TABLE outbox_0")
	rollback := func() {
		h.Helper()
		_, err := open.Exec(h.Context(), "ROLLBACK")
		must(h, err)
		h.known(two, 1)
	}
	rollback()
	h.refused(two, 1, "partition public.outbox_0 is in 2 publications")
	h.exec("ALTER PUBLICATION " + one + " DROP TABLE outbox_0")
	_, err = open.Exec(h.Context(), "BEGIN; INSERT INTO unrelated VALUES (1)")
	must(h, err)
	h.exec("ALTER PUBLICATION " + one + " DROP TABLE outbox_1")
	h.exec("ALTER PUBLICATION " + one + " ADD TABLE outbox_1")
	h.refused(two, 1, "the slots do not know the publications yet") // the publication, and not the table
	rollback()
	h.stop(h.p.Slot + "_0_of_1")
	h.refused(two, 1, "no daemon reads slot "+h.p.Slot+"_0_of_1: start it")
	h.readAll(h.shared(1))
	h.exec("SELECT pg_copy_logical_replication_slot('" + h.p.Slot + "_0_of_1', '" + h.p.Slot + "_0_of_2')")
	early := two.Shard(0)
	h.read(&early)
	h.refused(two, 1, "a daemon reads slot "+early.Slot+": stop it")
	h.stop(early.Slot)
	h.exec("CREATE ROLE " + h.p.Slot + "; GRANT ALL ON outbox TO " + h.p.Slot)
	h.Cleanup(func() {
		_ = h.server.Exec(context.Background(), h.p.Slot, "DROP OWNED BY "+h.p.Slot, "DROP ROLE "+h.p.Slot)
	})
	h.edit = strings.NewReplacer("SET LOCAL lock_timeout", "SET LOCAL ROLE "+h.p.Slot+"; SET LOCAL lock_timeout")
	h.refused(two, 1, "role "+h.p.Slot+" does not own publication outboxcdc_0_of_1, publication outboxcdc_0_of_2, publication outboxcdc_1_of_2")
	h.edit = strings.NewReplacer("COMMIT; -- which", "COMMIT; SET LOCAL ROLE "+h.p.Slot+"; -- which")
	h.refused(two, 1, "permission denied to use replication slots")
	h.edit = strings.NewReplacer()
	mistakes(h)
	for _, create := range []string{"physical_replication_slot('%s')", "logical_replication_slot('%s', 'test_decoding')"} {
		h.exec("SELECT pg_create_" + strings.ReplaceAll(create, "%s", h.p.Slot+"_0_of_0"))
		h.refused(two, 1, "slot "+h.p.Slot+"_0_of_0 is another one than this needs: drop it")
		h.exec("SELECT pg_drop_replication_slot('" + h.p.Slot + "_0_of_0')")
	}
	other := two
	other.Tables = []Table{{Schema: "public", Name: "unrelated"}}
	h.refused(other, 1, `there is no table "public"."unrelated" with partitions; drop`)
	h.next(16)
	h.edit = strings.NewReplacer("current_setting('max_wal_senders')::int", "1")
	h.refused(two, 1, "max_wal_senders is too small")
	h.edit = strings.NewReplacer()
	if h.text("current_setting('max_replication_slots')::int < 17") == "true" { // of a server of this test
		h.known(h.shared(16), 1)
		h.refused(h.shared(16), 1, "max_replication_slots is too small")
	}
	statements, err := HandOverFrom(two, 1)
	must(h, err)
	if _, err := h.conn.PgConn().Exec(h.Context(), "BEGIN; SELECT 1;"+statements.Get(HandOver)).ReadAll(); err == nil || !strings.Contains(err.Error(), "invalid transaction termination") {
		h.Errorf("in a transaction: %v", err)
	}
}

// mistakes hands over with names that are wrong.
func mistakes(h *handedOver) {
	h.Helper()
	two := h.shared(2)
	h.refused(two, 3, "table public.outbox has no publication outboxcdc_0_of_3, publication outboxcdc_1_of_3, publication outboxcdc_2_of_3, slot "+h.p.Slot+"_0_of_3, ")
	b := h.p.Slot + "_b_0_of_1" // a slot of another database
	must(h, h.server.Exec(h.Context(), "postgres", "SELECT pg_create_logical_replication_slot('"+b+"', 'pgoutput')"))
	h.Cleanup(func() {
		_ = h.server.Exec(context.Background(), "postgres", "SELECT pg_drop_replication_slot('"+b+"')")
	})
	wrong := two
	wrong.Slot += "_b"
	h.refused(wrong, 1, "slot "+b+": correct --from")
	other := two
	other.Publication = "another"
	h.refused(other, 1, "publication another_0_of_2 does not exist")
	h.refused(h.shared(15), 1, "publication outboxcdc_0_of_15 does not exist")
}

// handOverWaits: writers wait, and the daemons are stopped when they have delivered everything, and not before.
func handOverWaits(h *handedOver) {
	h.begin(2)
	h.next(1)
	one := h.shared(1)
	h.known(one, 2)
	h.insert("a", "b", "c", "d")
	h.exec("SELECT pg_copy_logical_replication_slot('" + h.p.Slot + "_0_of_2', '" + h.p.Slot + "_0_of_1')") // as set-up without NoSlot leaves one
	h.await("the rows to arrive", func() bool { return h.arrived.len() == 4 })
	for _, r := range h.readers {
		r.silent.Store(true) // confirms nothing
	}
	h.insert("e", "f", "g", "h")
	late := pgtest.Connect(h, h.server.SuperURL(h.p.Slot))
	var said atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- h.handOver(one, 2, func() {
			said.Store(true)
			_, err := late.Exec(h.Context(), "SET lock_timeout = '200ms'; INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'late', 'x')")
			if pg, is := errors.AsType[*pgconn.PgError](err); !is || pg.Code != "55P03" { // lock_not_available
				h.Errorf("a writer did not wait: %v", err)
			}
			var publications int
			must(h, late.QueryRow(h.Context(), "SELECT count(*) FROM pg_publication WHERE pubname LIKE '%_of_2'").Scan(&publications))
			if publications != 2 {
				h.Error("the publications were dropped before the daemons were stopped")
			}
		})
	}()
	sleeping := 0
	h.await("the hand-over to wait for the daemons", func() bool {
		if h.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == "1" {
			sleeping++
		}
		return sleeping == 10 || said.Load()
	})
	if said.Load() {
		h.Error("the daemons were to be stopped before they had confirmed everything")
	}
	for _, r := range h.readers {
		r.silent.Store(false)
		must(h, r.confirm())
	}
	must(h, <-done)
	if got := h.slots(); got != h.p.Slot+"_0_of_1" {
		h.Errorf("slots: %s", got)
	}
	h.readAll(one)
	h.insert("i", "j")
	h.delivered("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
}

// handOverKnown: the statement that waits does so for a transaction that began before the publications.
func handOverKnown(h *handedOver) {
	h.begin(1)
	open := pgtest.Connect(h, h.server.SuperURL(h.p.Slot))
	_, err := open.Exec(h.Context(), "BEGIN; INSERT INTO unrelated VALUES (1)")
	must(h, err)
	h.next(2)
	statements, err := HandOverFrom(h.shared(2), 1)
	must(h, err)
	h.exec("SET statement_timeout = '2s'")
	_, err = h.conn.PgConn().Exec(h.Context(), statements.Get(Known)).ReadAll()
	if pg, is := errors.AsType[*pgconn.PgError](err); !is || pg.Code != "57014" { // query_canceled
		h.Errorf("it did not wait: %v", err)
	}
	h.exec("SET statement_timeout = 0")
	must(h, open.Close(h.Context()))
	h.known(h.shared(2), 1)
	// WAL that this transaction has written, for example because a catalog was pruned, is not flushed until it ends.
	h.edit = strings.NewReplacer("written := pg_current", "PERFORM pg_logical_emit_message(false, 'x', 'y');\nwritten := pg_current", "1..300", "1..100")
	must(h, h.server.Exec(h.Context(), "postgres", "ALTER DATABASE "+h.name+" SET default_transaction_read_only = on"))
	must(h, h.handOver(h.shared(2), 1, nil))
}
