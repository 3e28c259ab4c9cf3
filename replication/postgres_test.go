package replication

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// oppositeSettings changes every setting that the bytes depend on, of a role or a database.
const oppositeSettings = `
ALTER %[1]s SET DateStyle = 'SQL, DMY'; ALTER %[1]s SET IntervalStyle = 'sql_standard';
ALTER %[1]s SET extra_float_digits = -15; ALTER %[1]s SET TimeZone = 'Asia/Tokyo';
ALTER %[1]s SET bytea_output = 'escape'; ALTER %[1]s SET client_encoding = 'LATIN1';
ALTER %[1]s SET client_min_messages = 'error'; ALTER %[1]s SET wal_sender_timeout = '0';
ALTER %[1]s SET search_path = public; ALTER %[1]s SET quote_all_identifiers = on; ALTER %[1]s SET lc_monetary = 'C.UTF-8'`

type bench struct {
	*testing.T
	server *pgtest.Server
	sql    *pgx.Conn
	source *Source
	last   string // statement
}

// newBench returns a database with outbox, publication and slot, and a source that uses an ordinary role.
func newBench(t *testing.T, major string) *bench {
	t.Helper()
	server := pgtest.ForTest(t, pgtest.Options{Major: major})
	ctx := t.Context()
	sql, err := pgx.Connect(ctx, server.SuperURL("postgres"))
	must(t, err)
	t.Cleanup(func() { _ = sql.Close(context.Background()) })
	b := &bench{T: t, server: server, sql: sql}
	b.exec(`CREATE ROLE relay LOGIN REPLICATION PASSWORD 'secret'`)
	b.exec(`CREATE TABLE outbox (id int PRIMARY KEY, at timestamptz, f float8, b bytea, i interval, s text)`)
	b.exec(`GRANT SELECT ON outbox TO relay`)
	b.exec(`CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert')`)
	b.exec(`SELECT pg_create_logical_replication_slot('slot', 'pgoutput')`)
	b.source, err = NewSource(Config{
		URL:  func() (string, error) { return server.URL("postgres", "relay", "secret"), nil },
		Slot: "slot", Publication: "pub", Tables: []Table{{Schema: "public", Name: "outbox", Columns: []string{"id", "s"}}},
		WalSenderTimeout: time.Minute, ReadInterval: testInterval,
	})
	must(t, err)
	return b
}

func (b *bench) exec(sql string) {
	b.Helper()
	b.last = sql
	if _, err := b.sql.Exec(b.Context(), sql); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

func (b *bench) open() *Stream {
	b.Helper()
	st, err := b.source.Open(b.Context())
	must(b, err)
	b.Cleanup(func() { _ = st.Close(0, time.Now()) })
	return st
}

func (b *bench) openFails(want Kind) {
	b.Helper()
	st, err := b.source.Open(b.Context())
	if err == nil {
		err = st.Found()
		_ = st.Close(0, time.Now())
	}
	if err == nil || KindOf(err) != want {
		b.Fatalf("opened with %v, want %s", err, want)
	}
}

// newDecoder returns a decoder that resolves relations with the stream.
func newDecoder(t *testing.T, st *Stream) *decoder.Decoder {
	var d *decoder.Decoder
	d = decoder.New(func(rel *decoder.Relation) (use bool, err error) {
		rel.Source, err = st.Resolve(t.Context(), &Announced{OID: rel.OID, Schema: rel.Namespace, Name: rel.Name, Columns: rel.ColumnNames(), XID: d.XID()})
		rel.Unattached = rel.Source == Unattached
		return rel.Source != NotOurs, err
	})
	return d
}

// next reads until the decoder returns an event or the stream an error.
func (b *bench) next(st *Stream, dec *decoder.Decoder) (*decoder.Event, error) {
	b.Helper()
	for {
		if ev, err := b.nextRow(st, dec); err != nil || !ev.Relation.Unattached {
			return ev, err
		}
	}
}

// nextRow is next, also for rows that are no events because their table was not attached.
func (b *bench) nextRow(st *Stream, dec *decoder.Decoder) (*decoder.Event, error) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		st.SetDeadline(time.Now().Add(time.Second))
		msg, err := st.Receive()
		if errors.Is(err, ErrDeadline) {
			if err := st.Status(st.Start(), true, time.Now()); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if msg.Data == nil {
			continue
		}
		m, err := dec.Decode(msg.Data)
		if err != nil {
			return nil, err
		}
		if m.Kind == decoder.KindEvent {
			return m.Event, nil
		}
	}
	b.Fatal("no event within a minute")
	return nil, nil
}

// TestBytesDoNotDependOnRoleOrDatabase changes every setting of role and database that the bytes could depend on.
func TestBytesDoNotDependOnRoleOrDatabase(t *testing.T) {
	b := newBench(t, "18")
	b.exec(fmt.Sprintf(oppositeSettings, "ROLE relay"))
	b.exec(fmt.Sprintf(oppositeSettings, "DATABASE postgres"))
	b.exec(`ALTER TABLE outbox ADD COLUMN r regclass, ADD COLUMN m money`)
	st := b.open()
	b.exec(`INSERT INTO outbox VALUES (1, '2026-11-21 10:00:00+00', 0.1::float8 + 0.2::float8, '\x00ff5c', '1 year 2 days 03:00:00', 'Grüße, 世界', 'outbox', 1234.5)`)
	dec := newDecoder(t, st)
	ev, err := b.next(st, dec)
	must(t, err)
	for i, want := range []string{"1", "2026-11-21 10:00:00+00", "0.30000000000000004", `\x00ff5c`, "1 year 2 days 03:00:00", "Grüße, 世界", "public.outbox", "$1,234.50"} {
		if got := string(ev.Values[i].Data); got != want {
			t.Errorf("column %s: %q, want %q", ev.Relation.Columns[i].Name, got, want)
		}
	}
	var timeout string
	if err := b.sql.QueryRow(t.Context(), `SELECT count(*)::text FROM pg_stat_replication WHERE application_name = 'outboxcdc-slot'`).Scan(&timeout); err != nil || timeout != "1" {
		t.Errorf("walsenders named outboxcdc-slot: %s %v", timeout, err)
	}
}

// TestTransactionTimeoutIsOurs: a role's transaction_timeout would end a walsender while it sends a transaction, but
// does not end ours.
func TestTransactionTimeoutIsOurs(t *testing.T) {
	for _, major := range []string{"16", "17", "18"} {
		t.Run(major, func(t *testing.T) {
			b := newBench(t, major)
			st, err := b.source.Open(t.Context())
			must(t, err)
			_ = st.Close(0, time.Now())
			if major == "16" { // has no transaction_timeout
				return
			}
			b.exec(`ALTER ROLE relay SET transaction_timeout = '2s'`) // long enough for a catalog check
			b.exec(`INSERT INTO outbox SELECT i, NULL, NULL, NULL, NULL, repeat('x', 1000) FROM generate_series(1, 30000) i`)
			st = b.open()
			dec := newDecoder(t, st)
			for i := range 30000 {
				if i%1000 == 0 { // the socket's buffers are full, and the walsender waits during the transaction
					time.Sleep(100 * time.Millisecond)
				}
				if _, err := b.next(st, dec); err != nil {
					t.Fatalf("row %d: %v", i+1, err)
				}
			}
		})
	}
}

// TestRemovedSegment: the walsender finds that WAL is missing after START_REPLICATION was accepted. The error is the
// same whether we read the slot before or after that.
func TestRemovedSegment(t *testing.T) {
	for _, major := range []string{"14", "17"} {
		t.Run(major, func(t *testing.T) {
			b := newBench(t, major)
			for i := range 3 {
				b.exec(fmt.Sprintf(`INSERT INTO outbox VALUES (%d)`, i))
				b.exec(`SELECT pg_switch_wal()`)
			}
			var name string
			must(t, b.sql.QueryRow(t.Context(), `SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots`).Scan(&name))
			must(t, os.Remove(filepath.Join(b.server.DataDir, "pg_wal", name)))
			for range 10 {
				st, err := b.source.Open(t.Context())
				if err == nil {
					_, err = b.next(st, newDecoder(t, st))
					_ = st.Close(0, time.Now())
				}
				if KindOf(err) != SlotLost || err == nil {
					t.Fatalf("%v, want %s", err, SlotLost)
				}
			}
		})
	}
}

// TestWalSenderTimeoutIsOurs: a silent client loses the slot after our wal_sender_timeout, although role and database
// set it to 0.
func TestWalSenderTimeoutIsOurs(t *testing.T) {
	b := newBench(t, "15")
	b.exec(fmt.Sprintf(oppositeSettings, "ROLE relay"))
	b.source.cfg.WalSenderTimeout = time.Second
	b.open()
	start := time.Now()
	must(t, b.source.WaitFree(t.Context(), func(*Slot) {}))
	if d := time.Since(start); d > 30*time.Second { // the sender of other tests has a minute
		t.Fatalf("the slot was free after %s", d)
	}
}

func TestOpenErrors(t *testing.T) {
	b := newBench(t, "14")
	good := b.source.cfg
	with := func(change func(*Config)) {
		b.source.cfg = good
		b.source.last.Store(nil)
		change(&b.source.cfg)
	}
	with(func(c *Config) { c.Slot = "other" })
	b.openFails(SlotMissing)
	with(func(c *Config) { c.Publication = "other" })
	b.openFails(PublicationMissing)
	with(func(c *Config) { c.Tables = []Table{{Schema: "public", Name: "other"}} })
	b.openFails(PublicationChanged)
	with(func(c *Config) {
		c.URL = func() (string, error) { return b.server.URL("postgres", "relay", "wrong"), nil }
	})
	b.openFails(Credentials)
	with(func(*Config) {})
	b.exec(`SELECT pg_create_logical_replication_slot('td', 'test_decoding')`)
	with(func(c *Config) { c.Slot = "td" })
	b.openFails(Unsuitable)
	b.exec(`SELECT pg_create_logical_replication_slot('twophase', 'pgoutput', false, true)`)
	with(func(c *Config) { c.Slot = "twophase" })
	b.openFails(Unsuitable)
	with(func(*Config) {})
	b.exec(`ALTER ROLE relay NOREPLICATION`)
	b.openFails(PrivilegeMissing)
	b.exec(`ALTER ROLE relay REPLICATION`)
	b.exec(`CREATE TABLE other (id int)`)
	b.exec(`ALTER PUBLICATION pub SET TABLE other`)
	with(func(*Config) {})
	b.openFails(PublicationChanged)
	b.exec(`ALTER PUBLICATION pub SET TABLE outbox`)
	b.exec(`ALTER PUBLICATION pub SET (publish = 'update')`)
	with(func(*Config) {})
	b.openFails(PublicationChanged)
	b.exec(`ALTER PUBLICATION pub SET (publish = 'insert')`)
	with(func(c *Config) {
		c.Tables = []Table{{Schema: "public", Name: "outbox", Columns: []string{"id", "gone"}}}
	})
	st := b.open()
	if m := st.Missing(); len(m) != 1 || m[0] != "gone" {
		t.Fatalf("missing columns %v", m)
	}
	b.source.last.Store(nil)
	b.openFails(SlotActive)
	must(t, st.Close(st.Start(), time.Now()))
	b.open() // a clean end frees the slot at once
}

// TestGuardSeesUndoneAlteration: an alteration that was undone between two catalog checks may have lost rows.
func TestGuardSeesUndoneAlteration(t *testing.T) {
	b := newBench(t, "18")
	b.exec(`CREATE TABLE other (id int)`)
	for _, c := range []struct {
		name, do, undo string
		want           Kind
	}{
		{"row filter", `ALTER PUBLICATION pub SET TABLE outbox WHERE (id > 5)`, `ALTER PUBLICATION pub SET TABLE outbox`, PublicationChanged},
		{"table removed", `ALTER PUBLICATION pub SET TABLE other`, `ALTER PUBLICATION pub SET TABLE outbox`, PublicationChanged},
		{"publish", `ALTER PUBLICATION pub SET (publish = 'delete')`, `ALTER PUBLICATION pub SET (publish = 'insert')`, PublicationChanged},
		{"renamed", `ALTER PUBLICATION pub RENAME TO pub2`, `ALTER PUBLICATION pub2 RENAME TO pub`, PublicationChanged},
		{"dropped", `DROP PUBLICATION pub`, `CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert')`, PublicationChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.source.last.Store(nil)
			st := b.open()
			defer func() { _ = st.Close(0, time.Now()) }()
			if _, err := st.Check(t.Context()); err != nil {
				t.Fatalf("before: %v", err)
			}
			b.exec(`ALTER PUBLICATION pub ADD TABLE other`) // not ours
			if _, err := st.Check(t.Context()); err != nil {
				t.Fatalf("another table was added: %v", err)
			}
			b.exec(`ALTER PUBLICATION pub DROP TABLE other`)
			b.exec(c.do)
			b.exec(c.undo)
			if _, err := st.Check(t.Context()); KindOf(err) != c.want || err == nil {
				t.Fatalf("after: %v, want %s", err, c.want)
			}
			_ = st.Close(0, time.Now())
			b.openFails(PublicationChanged) // in a new session, too
		})
	}
}

func TestGuardSeesRenamedTable(t *testing.T) {
	b := newBench(t, "17")
	st := b.open()
	b.exec(`ALTER TABLE outbox RENAME TO outbox_old`)
	if _, err := st.Check(t.Context()); KindOf(err) != PublicationChanged || err == nil {
		t.Fatal(err)
	}
}

func TestRefusesToBeASynchronousStandby(t *testing.T) {
	b := newBench(t, "16")
	st := b.open()
	set := func(names string) {
		b.exec(`ALTER SYSTEM SET synchronous_standby_names = '` + names + `'`)
		b.exec(`SELECT pg_reload_conf()`)
		b.await("SHOW synchronous_standby_names", names)
	}
	set("*")
	if _, err := st.Check(t.Context()); KindOf(err) != SynchronousStandby || err == nil {
		t.Fatal(err)
	}
	_ = st.Close(0, time.Now())
	b.openFails(SynchronousStandby)
	set("another_standby")
	b.open()
}

func (b *bench) await(query, want string) {
	b.Helper()
	var got string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		// A new connection each time, because a backend reloads its configuration only between two commands.
		conn, err := pgx.Connect(b.Context(), b.server.SuperURL("postgres"))
		must(b, err)
		err = conn.QueryRow(b.Context(), query).Scan(&got)
		_ = conn.Close(b.Context())
		must(b, err)
		if got == want {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.Fatalf("%s is %s, want %s", query, got, want)
}

// TestPublicationDropped: up to 17 the stream ends with an error; since 18 the server only warns and skips the rows.
func TestPublicationDropped(t *testing.T) {
	for _, major := range []string{"17", "18"} {
		t.Run(major, func(t *testing.T) {
			b := newBench(t, major)
			st := b.open()
			b.exec(`DROP PUBLICATION pub`)
			b.exec(`INSERT INTO outbox VALUES (1)`)
			dec := newDecoder(t, st)
			_, err := b.next(st, dec)
			if KindOf(err) != PublicationMissing || err == nil {
				t.Fatalf("%v, want %s", err, PublicationMissing)
			}
		})
	}
}

// TestConfirmedIsWhatWasSent: the slot moves to the position of the status update, and no further.
func TestConfirmedIsWhatWasSent(t *testing.T) {
	b := newBench(t, "15")
	st := b.open()
	start := st.Start()
	b.exec(`INSERT INTO outbox VALUES (1), (2)`)
	dec := newDecoder(t, st)
	if _, err := b.next(st, dec); err != nil {
		t.Fatal(err)
	}
	slot := func() pglogrepl.LSN {
		s, err := st.Check(t.Context())
		must(t, err)
		return s.ConfirmedFlush
	}
	must(t, st.Status(start, true, time.Now()))
	if got := slot(); got != start {
		t.Fatalf("confirmed %s although nothing was acknowledged after %s", got, start)
	}
	must(t, st.Close(start+1, time.Now()))
	s, err := b.source.Look(t.Context())
	if err != nil || s.ConfirmedFlush != start+1 {
		t.Fatalf("%+v %v, want %s", s, err, start+1)
	}
}

// TestGuardWaitsForPendingAlteration: an alteration that is not visible yet may be in the WAL (its commit may wait
// for a synchronous standby), so the catalog check must not pass. After a rollback the check must pass.
func TestGuardWaitsForPendingAlteration(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			b := newBench(t, major)
			st := b.open()
			check := func(want error) {
				t.Helper()
				if _, err := st.Check(t.Context()); !errors.Is(err, want) {
					t.Fatalf("%s: got %v, want %v", b.last, err, want)
				}
			}
			for _, alter := range []string{
				`ALTER PUBLICATION pub SET (publish = 'delete')`,
				`ALTER PUBLICATION pub DROP TABLE outbox`,
				`ALTER PUBLICATION pub RENAME TO other`,
				`DROP PUBLICATION pub`,
				`ALTER TABLE outbox RENAME TO other`,
			} {
				check(nil)
				b.exec(`BEGIN`)
				b.exec(alter)
				check(ErrUndecided)
				b.exec(`ROLLBACK`)
				check(nil)
			}
			b.exec(`BEGIN`)
			b.exec(`ALTER TABLE outbox ADD COLUMN more int`)
			check(ErrUndecided)
			b.exec(`COMMIT`)
			check(nil)
			b.exec(`ALTER PUBLICATION pub DROP TABLE outbox`)
			if _, err := st.Check(t.Context()); KindOf(err) != PublicationChanged || err == nil {
				t.Fatal(err)
			}
		})
	}
}

// TestTypes: of the types of columns, those that users have created are looked up, domains over domains as well.
func TestTypes(t *testing.T) {
	b := newBench(t, "14")
	for _, sql := range []string{
		`CREATE DOMAIN utc AS timestamptz`, `CREATE DOMAIN later AS utc CHECK (VALUE > '2000-01-01')`, `CREATE TYPE "a mood" AS ENUM ('ok')`,
		`ALTER TABLE outbox ADD COLUMN u utc, ADD COLUMN l later, ADD COLUMN m "a mood"`,
	} {
		b.exec(sql)
	}
	st := b.open()
	now := st.Tables()[0]
	got := map[string]string{}
	for _, c := range now.Columns {
		if name, own := now.Types.Names[c.TypeOID]; own {
			got[c.Name] = fmt.Sprint(name, " ", now.Types.Bases[c.TypeOID] == 1184, now.Types.Bases[c.TypeOID] == c.TypeOID)
		}
	}
	if want := map[string]string{"u": "public.utc true false", "l": "public.later true false", "m": `public."a mood" false true`}; !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if types, err := st.Types(t.Context(), []uint32{25, 999_999}); err != nil || len(types.Names) != 0 {
		t.Errorf("%+v %v", types, err)
	}
}

// TestStandbyComparesPublications: an alteration while a standby instance waits for the slot stops the instance when
// it gets the slot.
func TestStandbyComparesPublications(t *testing.T) {
	b := newBench(t, "16")
	first := b.open()
	standby, err := NewSource(b.source.cfg)
	must(t, err)
	if _, err := standby.Open(t.Context()); KindOf(err) != SlotActive || err == nil {
		t.Fatal(err)
	}
	b.exec(`ALTER PUBLICATION pub SET TABLE outbox WHERE (id > 5)`)
	b.exec(`ALTER PUBLICATION pub SET TABLE outbox`)
	_ = first.Close(0, time.Now())
	b.source = standby
	b.openFails(PublicationChanged)
}

// TestTransactionDefaultsAreOurs: with the settings of role or database, each query would wait for the end of the
// application's serializable transaction.
func TestTransactionDefaultsAreOurs(t *testing.T) {
	b := newBench(t, "17")
	b.exec(`ALTER ROLE relay SET default_transaction_isolation = 'serializable'`)
	b.exec(`ALTER ROLE relay SET default_transaction_deferrable = on`)
	writer := pgtest.Connect(t, b.server.SuperURL("postgres"))
	tx, err := writer.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.Serializable})
	must(t, err)
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	st := b.open()
	b.exec(`INSERT INTO outbox VALUES (2)`)
	if ev, err := b.next(st, newDecoder(t, st)); err != nil || string(ev.Values[0].Data) != "2" {
		t.Errorf("%+v %v", ev, err)
	}
	if _, err := st.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUnfinishedRecovery: while a recovery has not finished, the daemon's slot is not read, whether it exists or not,
// and a running session ends. Copies of the slot can still be read.
func TestUnfinishedRecovery(t *testing.T) {
	b := newBench(t, "17")
	recovers := `SELECT pg_create_logical_replication_slot('` + RecoverySlot("slot") + `', 'pgoutput')`
	st := b.open()
	if _, err := st.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec(recovers)
	if _, err := st.Check(t.Context()); KindOf(err) != RecoveryUnfinished {
		t.Errorf("the catalog check returned %v during a recovery", err)
	}
	st.abandon()
	b.openFails(RecoveryUnfinished)
	b.openCopy().Abandon()
	if slot, err := b.source.Look(t.Context()); err != nil || slot.Unfinished == "" {
		t.Errorf("%+v %v", slot, err)
	}
	if err := b.source.WaitFree(t.Context(), func(*Slot) {}); err != nil {
		t.Error(err)
	}
	b.exec(`SELECT pg_drop_replication_slot('slot')`)
	b.openFails(RecoveryUnfinished)
	if err := b.source.WaitFree(t.Context(), func(*Slot) {}); KindOf(err) != RecoveryUnfinished {
		t.Errorf("the wait for a slot that does not exist ended with %v", err)
	}
	b.exec(`SELECT pg_copy_logical_replication_slot('` + RecoverySlot("slot") + `', 'slot')`)
	b.exec(`SELECT pg_drop_replication_slot('` + RecoverySlot("slot") + `')`)
	if slot, recovery, err := ReadSlots(t.Context(), b.sql, "slot"); err != nil || slot == nil || slot.Unfinished != "" || recovery != nil {
		t.Errorf("%+v %+v %v", slot, recovery, err)
	}
	_ = b.open()
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
