package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// bench is a database with a ring of four days and a slot.
type bench struct {
	*testing.T
	server *pgtest.Server
	name   string
	sql    *pgx.Conn
	p      *Postgres
	r      Retention
	table  Table
	texts  []string // of the leaves
}

const ring = `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, payload text, created_at timestamptz NOT NULL DEFAULT now(), lap smallint NOT NULL) PARTITION BY LIST (lap);
CREATE TABLE outbox_0 PARTITION OF outbox FOR VALUES IN (0); CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1);
CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2); CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)`

func newBench(t *testing.T, server *pgtest.Server, name, table string) *bench {
	t.Helper()
	if err := server.Exec(t.Context(), "postgres", "CREATE DATABASE "+name, "CREATE ROLE "+name+" LOGIN PASSWORD 'secret'", "ALTER DATABASE "+name+" OWNER TO "+name); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, server: server, name: name, sql: pgtest.Connect(t, server.SuperURL(name))}
	b.exec("SET ROLE " + name + "; CREATE SCHEMA shop; SET search_path = shop; " + table + "; RESET ROLE; CREATE PUBLICATION outboxcdc FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root)")
	b.exec("SELECT pg_create_logical_replication_slot('" + name + "', 'pgoutput')")
	var err error
	if b.p, err = Connect(t.Context(), server.URL(name, name, "secret"), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.p.Close)
	b.table = Table{Schema: "shop", Name: "outbox", CreatedAt: "created_at", Publication: "outboxcdc"}
	b.r = Retention{Keep: time.Hour, Slots: []string{name}, Chunk: 20, SlotWait: 100 * time.Millisecond, Beside: Beside, Pause: func(ctx context.Context, d time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(d, 20*time.Millisecond)):
			return true
		}
	}}
	return b
}

func (b *bench) exec(sql string) {
	b.Helper()
	if _, err := b.sql.PgConn().Exec(b.Context(), sql).ReadAll(); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// follow confirms again and again while a pass runs, as a daemon does.
func (b *bench) follow() (got string) {
	b.Helper()
	b.r.SlotWait = time.Minute
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan struct{})
	conn := pgtest.Connect(b, b.server.SuperURL(b.name))
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_, _ = conn.Exec(b.Context(), "SELECT pg_replication_slot_advance('"+b.name+"', pg_current_wal_flush_lsn())")
		}
	}()
	got = b.pass()
	stop()
	<-ended
	b.r.SlotWait = 100 * time.Millisecond
	return got
}

// pass runs a pass, and returns the outcomes as text: "outbox_0 emptied; outbox_1 kept".
func (b *bench) pass() string {
	b.Helper()
	res, err := Pass(b.Context(), b.p, &b.table, nil, b.r, false, func() {})
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, l := range res.Leaves {
		if l.Outcome == Empty {
			continue
		}
		s := strings.TrimPrefix(l.Leaf, "shop.") + " " + string(l.Outcome)
		if l.Reason != "" {
			s += " " + string(l.Reason)
		}
		if l.Rows > 0 {
			s += fmt.Sprintf(" %d", l.Rows)
		}
		out = append(out, s)
		if l.Text != "" {
			b.texts = append(b.texts, l.Text)
		}
	}
	return strings.Join(out, "; ")
}

func (b *bench) want(what, got, want string) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %q; want %q", what, got, want)
	}
}

func (b *bench) count(sql string) (n int) {
	b.Helper()
	if err := b.sql.QueryRow(b.Context(), sql).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// old inserts rows that are two hours old into a leaf.
func old(lap, n int) string {
	return fmt.Sprintf("INSERT INTO shop.outbox (payload, created_at, lap) SELECT repeat('x', 100), now() - interval '2 hours', %d FROM generate_series(1, %d)", lap, n)
}

func TestPostgres(t *testing.T) {
	majors := pgtest.Majors()
	for _, major := range []string{majors[0], majors[len(majors)-1]} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			server := pgtest.ForTest(t, pgtest.Options{Major: major, Settings: map[string]string{"wal_level": "logical", "fsync": "off", "max_replication_slots": "20"}})
			for name, test := range map[string]func(*testing.T, *pgtest.Server){
				"empty": testEmpty, "archive": testArchive, "delete": testDelete, "refused": testRefused, "range": testRange, "tree": testTree, "two": testTwo, "timeouts": testTimeouts, "readers": testReaders, "meanwhile": testMeanwhile,
				"times": testTimes, "moved": testMoved, "ddl": testDDL, "detached": testDetached,
			} {
				t.Run(name, func(t *testing.T) { test(t, server) })
			}
		})
	}
}

func testEmpty(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "empty", ring)
	b.exec(old(0, 100) + ";" + old(1, 100) + "; INSERT INTO shop.outbox (lap) VALUES (1), (2)")
	b.want("the slot has not confirmed", b.pass(), "outbox_0 postponed slot; outbox_1 kept; outbox_2 kept")
	writer := pgtest.Connect(t, server.SuperURL(b.name))
	tx, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), old(0, 1)); err != nil {
		t.Fatal(err)
	}
	b.want("a writer is at work", b.follow(), "outbox_0 postponed lock; outbox_1 kept; outbox_2 kept")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want("its commit is not confirmed", b.pass(), "outbox_0 postponed slot; outbox_1 kept; outbox_2 kept")
	reader, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), "SELECT count(*) FROM shop.outbox"); err != nil {
		t.Fatal(err)
	}
	b.want("a reader is at work", b.follow(), "outbox_0 postponed lock; outbox_1 kept; outbox_2 kept")
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want("everything holds", b.follow(), "outbox_0 emptied; outbox_1 kept; outbox_2 kept")
	if n := b.count("SELECT pg_relation_size('shop.outbox_0')"); n != 0 {
		t.Errorf("the emptied leaf has %d bytes", n)
	}
	if n := b.count("SELECT count(*) FROM shop.outbox"); n != 102 {
		t.Errorf("%d rows are left, want 102", n)
	}
	if n := b.count("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' OR mode = 'ShareLock' AND locktype = 'relation'"); n != 0 {
		t.Errorf("%d locks are left", n)
	}

	// While the slot is waited for, a writer gets its lock at once: the leaf is left for another run.
	b.exec(old(3, 1))
	b.r.SlotWait = time.Hour
	inserted := make(chan error, 1)
	looks := 0
	b.r.Pause = func(ctx context.Context, _ time.Duration) bool {
		if inserted != nil {
			done := inserted
			inserted = nil
			go func() {
				_, err := writer.Exec(context.WithoutCancel(ctx), old(3, 1))
				done <- err
			}()
			t.Cleanup(func() {
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
		looks++
		return looks < 300
	}
	b.want("a writer comes while the slot is waited for", b.pass(), "outbox_1 kept; outbox_2 kept; outbox_3 postponed lock")
}

func testArchive(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "archive", ring)
	b.exec(old(0, 2000))
	file := filepath.Join(t.TempDir(), "rows")
	kills := 0
	kill := func(group int, s syscall.Signal) error {
		kills++
		if err := syscall.Kill(-group, 0); err != nil {
			t.Errorf("%s is sent to group %d, whose id may be another's by now: %v", s, -group, err)
		}
		return syscall.Kill(group, s)
	}
	for script, want := range map[string]string{
		"cat > /dev/null; exit 3":   "exit status 3",
		"head -c 10 > /dev/null":    "ended before it had read all rows",
		"true":                      "ended before it had read all rows",
		"kill -9 $$":                "signal: killed",
		"cat > /dev/null; sleep 60": "has not read anything",
		"sleep 60":                  "has not read anything",
		"cat > /no/such/folder/x":   "no/such/folder",
		// A process that it has started reads on.
		"exec 3<&0; cat <&3 > /dev/null & exit 4": "exit status 4",
		"cat > /dev/null; sleep 60 &":             "ran on, and was stopped",
	} {
		b.r.Archive = &Command{Args: []string{"sh", "-c", script}, Output: io.Discard, Idle: 2 * time.Second, kill: kill}
		b.texts = nil
		b.want(script, b.follow(), "outbox_0 postponed archive")
		if got := strings.Join(b.texts, "; "); !strings.Contains(got, want) {
			t.Errorf("%s: %q; want %q", script, got, want)
		}
	}
	if n := b.count("SELECT count(*) FROM shop.outbox_0"); n != 2000 {
		t.Fatalf("%d rows are left", n)
	}
	// An archive that ignores SIGTERM does not see the end of rows that were cut off.
	kept := filepath.Join(t.TempDir(), "part")
	cut := &Command{Args: []string{"sh", "-c", `trap "" TERM; (cat > "$0.new"; mv "$0.new" "$0")`, kept}, Output: io.Discard, Idle: time.Minute, kill: kill}
	err := cut.Store(t.Context(), &Leaf{}, Age{}, func(w io.Writer) error {
		if _, err := io.WriteString(w, "1\tx\n"); err != nil {
			return err
		}
		for t.Context().Err() == nil { // until it ignores the signal
			if _, err := os.Stat(kept + ".new"); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return errors.New("the server has gone")
	})
	if _, stat := os.Stat(kept); err == nil || !strings.Contains(err.Error(), "the server has gone") || stat == nil {
		t.Errorf("a part was stored as the whole, or: %v", err)
	}
	if kills == 0 {
		t.Error("nothing was stopped")
	}
	b.r.Archive = &Command{Args: []string{"sh", "-c", "cat > " + file + `; echo "$OUTBOXCDC_SCHEMA.$OUTBOXCDC_TABLE $OUTBOXCDC_OLDEST" > ` + file + ".name"}, Output: io.Discard, Idle: time.Minute}
	b.want("the archive takes the rows", b.follow(), "outbox_0 emptied")
	text, err := os.ReadFile(file)
	if n := strings.Count(string(text), "\n"); err != nil || n != 2000 {
		t.Errorf("the archive has %d rows, %v", n, err)
	}
	if name, err := os.ReadFile(file + ".name"); err != nil || !strings.HasPrefix(string(name), "shop.outbox_0 20") {
		t.Errorf("the archive has the name %q, %v", name, err)
	}
}

func testDelete(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "chunks", "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, payload text, created_at timestamp DEFAULT (now() AT TIME ZONE 'UTC'), lap int)")
	b.table.Delete = true
	old := func(lap, n int) string { // a column without a time zone may have local time
		return strings.ReplaceAll(old(lap, n), "2 hours", "14 hours")
	}
	b.exec(old(0, 1203) + "; INSERT INTO shop.outbox (payload) VALUES ('young')")
	b.want("the slot has not confirmed", b.pass(), "outbox postponed slot")
	locker := pgtest.Connect(t, server.SuperURL(b.name))
	tx, err := locker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM shop.outbox WHERE id = 3 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	b.want("one row is locked", b.follow(), "outbox postponed lock 1202")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	// What was read is a version: a row that was updated, or another one at its place, is another version.
	b.exec(old(0, 2) + "; DELETE FROM shop.outbox WHERE id = 3")
	ctx, leaf := t.Context(), Leaf{Schema: "shop", Name: "outbox", OID: uint32(b.count("SELECT 'shop.outbox'::regclass::oid::int"))}
	rows, err := b.p.OldRows(ctx, &leaf, time.Time{}, time.Now().Add(-time.Hour), 10)
	if err != nil || len(rows.Places) != 2 {
		t.Fatalf("%+v, %v", rows, err)
	}
	b.exec("DELETE FROM shop.outbox WHERE ctid = '" + rows.Places[0] + "'")
	b.exec("VACUUM shop.outbox")
	other := leaf
	other.OID++ // as after the table was replaced by another one of its name
	if n, err := b.p.Delete(ctx, &other, rows); n != 0 || !errors.Is(err, errMoved) {
		t.Errorf("%d rows of another table were deleted, %v", n, err)
	}
	b.exec("UPDATE shop.outbox SET payload = 'sent' WHERE ctid = '" + rows.Places[1] + "'; " + old(0, 3000))
	n, err := b.p.Delete(ctx, &leaf, rows)
	if err != nil || n != 0 {
		t.Errorf("%d other versions were deleted, %v", n, err)
	}
	b.want("the next run", b.follow(), "outbox emptied 3001")
	if n := b.count("SELECT count(*) FROM shop.outbox WHERE payload = 'young'"); n != 1 {
		t.Errorf("%d young rows", n)
	}
}

// remedies are the statements that an error advises, one of which is enough.
func remedies(err error) (out []string) {
	_, advice, _ := strings.Cut(err.Error(), "remedy: ")
	for _, way := range regexp.MustCompile(`,? or:? `).Split(advice, -1) {
		if regexp.MustCompile(`^(ALTER|GRANT|UPDATE) `).MatchString(way) {
			statement, _, _ := strings.Cut(way, " (rows ")
			out = append(out, statement)
		}
	}
	return out
}

// testRefused has what is refused. Each statement that an error advises is executed: then the table is accepted, and no
// row is missing.
func testRefused(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "refused", ring)
	b.exec(old(3, 5)) // they stay, because the slot has not confirmed them
	followed := 0
	for _, c := range []struct {
		before, after string
		code          int
		want          string
	}{
		{"ALTER TABLE shop.outbox OWNER TO postgres", "ALTER TABLE shop.outbox OWNER TO refused; REVOKE postgres FROM refused", exit.NoPermission, "does not own it"},
		{"CREATE FUNCTION shop.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER g BEFORE TRUNCATE ON shop.outbox_1 EXECUTE FUNCTION shop.f()", "DROP TRIGGER g ON shop.outbox_1", exit.Config, "trigger g of table shop.outbox_1"},
		{"ALTER TABLE shop.outbox_2 ADD UNIQUE (id); CREATE TABLE shop.child (id bigint CONSTRAINT fk REFERENCES shop.outbox_2 (id))", "DROP TABLE shop.child", exit.Config, "foreign key fk of table shop.child"},
		{"ALTER TABLE shop.outbox_3 OWNER TO postgres", "ALTER TABLE shop.outbox_3 OWNER TO refused; REVOKE postgres FROM refused", exit.NoPermission, "table shop.outbox_3: role"},
		{"ALTER TABLE shop.outbox_2 ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "ALTER TABLE shop.outbox_2 DISABLE ROW LEVEL SECURITY; ALTER ROLE refused NOBYPASSRLS", exit.Config, "row-level security hides rows of table shop.outbox_2"},
		{"ALTER TABLE shop.outbox ALTER created_at DROP NOT NULL; INSERT INTO shop.outbox (created_at, lap) VALUES (NULL, 1)", "", exit.Config, "rows have no time"},
		{"DROP PUBLICATION outboxcdc", "CREATE PUBLICATION outboxcdc FOR TABLE shop.outbox WITH (publish = 'delete')", exit.Config, "there is no publication"},
		{"", "ALTER PUBLICATION outboxcdc SET (publish = 'insert')", exit.Config, "does not publish inserts"},
		{"ALTER PUBLICATION outboxcdc SET TABLE shop.outbox_0, shop.outbox_1, shop.outbox_2", "ALTER PUBLICATION outboxcdc SET TABLE shop.outbox", exit.Config, "does not publish all rows of table shop.outbox_3"},
		{`ALTER TABLE shop.outbox RENAME created_at TO "when"`, "ALTER TABLE shop.outbox DROP COLUMN IF EXISTS created_at", exit.Config, `has no column "created_at"`},
	} {
		for n := 0; ; n++ {
			b.exec(c.before)
			rows := b.count("SELECT count(*) FROM shop.outbox")
			_, err := Pass(t.Context(), b.p, &b.table, nil, b.r, false, func() {})
			if err == nil || exit.Code(err) != c.code || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "remedy: ") {
				t.Fatalf("%s: %v (%d); want %q (%d) with a remedy", c.before, err, exit.Code(err), c.want, c.code)
			}
			statements := remedies(err)
			if n < len(statements) {
				b.exec(statements[n])
				followed++
				if got := b.pass(); !strings.Contains(got, "outbox_3 postponed slot") && !strings.Contains(got, "outbox_3 kept") {
					t.Errorf("after %s: %s", statements[n], got)
				}
			}
			b.exec(c.after)
			if now := b.count("SELECT count(*) FROM shop.outbox"); now != rows {
				t.Errorf("%s: %d of %d rows are left", c.before, now, rows)
			}
			if n+1 >= len(statements) {
				break
			}
		}
	}
	if followed != 6 {
		t.Errorf("%d statements were executed, want 6", followed)
	}
	b.table.Delete = true
	for _, c := range []struct{ before, after, want string }{
		{"CREATE RULE r AS ON DELETE TO shop.outbox_1 DO INSTEAD NOTHING", "DROP RULE r ON shop.outbox_1", "rule r of table shop.outbox_1"},
		{"CREATE TRIGGER d AFTER DELETE ON shop.outbox FOR EACH ROW EXECUTE FUNCTION shop.f()", "DROP TRIGGER d ON shop.outbox", "trigger d of table shop.outbox"},
	} {
		b.exec(`ALTER TABLE shop.outbox RENAME "when" TO created_at; ` + c.before)
		_, err := Pass(t.Context(), b.p, &b.table, nil, b.r, false, func() {})
		if exit.Code(err) != exit.Config || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v; want %q", c.before, err, c.want)
		}
		b.exec(c.after + `; ALTER TABLE shop.outbox RENAME created_at TO "when"`)
	}
	var coded *exit.Error
	b.table.Name = "nothing"
	if _, err := Pass(t.Context(), b.p, &b.table, nil, b.r, false, func() {}); !errors.As(err, &coded) || coded.ExitCode() != exit.Config {
		t.Errorf("a table that does not exist: %v", err)
	}
}

func testRange(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "ranges", `CREATE TABLE outbox (id bigint, payload text, created_at timestamptz NOT NULL, lap int) PARTITION BY RANGE (created_at);
CREATE TABLE old PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01'); CREATE TABLE past PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE newest PARTITION OF outbox FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
CREATE TABLE now PARTITION OF outbox FOR VALUES FROM ('2022-01-01') TO (MAXVALUE); CREATE TABLE other PARTITION OF outbox DEFAULT`)
	b.exec("INSERT INTO shop.outbox SELECT n, 'x', timestamptz '2020-02-02', 0 FROM generate_series(1, 10) n")
	b.want("without drop_empty", b.follow(), "past emptied")
	b.r.DropEmpty = true
	b.want("with drop_empty, and the slot has not confirmed", b.pass(), "old postponed slot; past postponed slot")
	b.want("with drop_empty", b.follow(), "old dropped; past dropped")
	if n := b.count("SELECT count(*) FROM pg_inherits WHERE inhparent = 'shop.outbox'::regclass"); n != 3 {
		t.Errorf("%d partitions are left, want 3", n)
	}
}

// testTree has what operators do to tables, and what they have done.
func testTree(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "tree", ring+`;
CREATE TABLE parent (payload text, created_at timestamptz NOT NULL); CREATE TABLE child () INHERITS (parent);
CREATE TABLE short (id bigint, created_at timestamptz NOT NULL) PARTITION BY RANGE (id); CREATE TABLE short_1 PARTITION OF short DEFAULT;
CREATE TABLE endless (payload text, created_at timestamptz NOT NULL) PARTITION BY RANGE (created_at);
CREATE TABLE "odd ""na'me" PARTITION OF endless FOR VALUES FROM ('-infinity') TO ('infinity'); CREATE INDEX ON endless (created_at)`)
	b.exec(old(0, 10) + ";" + old(1, 10) + "; INSERT INTO shop.short VALUES (1, '2020-01-01'); INSERT INTO shop.endless VALUES ('x', '-infinity'), ('x', '2020-01-01')")
	b.r.Slots = nil
	pass := func(table string, del bool) string {
		b.table.Name, b.table.Delete = table, del
		_, err := Pass(t.Context(), b.p, &b.table, nil, b.r, false, func() {})
		if code := exit.Code(err); err != nil && code != exit.Config {
			t.Errorf("table %s: exit code %d", table, code)
		}
		return fmt.Sprint(err)
	}
	if got := pass("parent", true); !strings.Contains(got, "shop.child inherits from") {
		t.Errorf("a table with a child: %s", got)
	}
	if got := pass("short", false); !strings.Contains(got, "shop.short_1 has no TOAST table") {
		t.Errorf("a partition without a TOAST table: %s", got)
	}
	b.table.Name, b.table.Delete = "endless", false
	b.r.DropEmpty = true
	b.want("times without an end", b.pass(), "odd \"na'me emptied")
	b.want("a range without an end", b.pass(), "")

	// A leaf that an operator has taken away is no longer the outbox's.
	b.table.Name, b.r.Server, b.r.Database = "outbox", b.p, b.name
	leaves, err := b.p.Open(t.Context(), &b.table, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.exec("ALTER TABLE shop.outbox DETACH PARTITION shop.outbox_0; DROP TABLE shop.outbox_1; SET ROLE tree; CREATE TABLE shop.outbox_1 PARTITION OF shop.outbox FOR VALUES IN (1); RESET ROLE; " + old(1, 5))
	for i, want := range []string{"is no longer a partition", "was replaced", "", ""} {
		got := b.r.Empty(t.Context(), &leaves[i])
		if !strings.Contains(got.Text, want) || want != "" && got.Reason != ByLock {
			t.Errorf("leaf %s: %+v; want %q", leaves[i].Name, got, want)
		}
	}
	if n := b.count("SELECT count(*) FROM shop.outbox_0") + b.count("SELECT count(*) FROM shop.outbox_1"); n != 15 {
		t.Errorf("%d rows are left, want 15", n)
	}
}

// testTwo has two processes for one table: the second waits for the first.
func testTwo(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "two", ring)
	b.exec(old(0, 1))
	other, err := Connect(t.Context(), server.URL("two", "two", "secret"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	if err := other.Lock(t.Context(), &b.table, func() { t.Error("the first one waits") }); err != nil {
		t.Fatal(err)
	}
	waits, done := make(chan struct{}), make(chan struct{})
	var res TableResult
	go func() {
		defer close(done)
		r := b.r
		r.Slots = nil
		res, err = Pass(t.Context(), b.p, &b.table, nil, r, false, func() { close(waits) })
	}()
	<-waits
	if n := b.count("SELECT count(*) FROM shop.outbox"); n != 1 {
		t.Errorf("%d rows are left while the first one works", n)
	}
	if err := other.Unlock(t.Context(), &b.table); err != nil {
		t.Fatal(err)
	}
	<-done
	if err != nil || res.Removed() != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

// testTimeouts has the role's time-outs, which end neither a transaction that waits for its slots and its archive, nor
// the connection.
func testTimeouts(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "timeouts", ring)
	timeouts := []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"}
	if server.Major >= "17" {
		timeouts = append(timeouts, "transaction_timeout")
	}
	for _, name := range timeouts {
		b.exec("ALTER ROLE timeouts SET " + name + " = '1s'")
	}
	p, err := Connect(t.Context(), server.URL("timeouts", "timeouts", "secret"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	b.exec(old(0, 1))
	if err := p.reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []*pgx.Conn{p.control, p.work} {
		for _, name := range timeouts {
			var value string
			if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil || value == "1s" {
				t.Errorf("%s is %s, %v", name, value, err)
			}
		}
	}
}

// slowArchive takes rows, and has another session do something meanwhile.
type slowArchive struct {
	meanwhile func()
	stored    int
}

func (a *slowArchive) Store(_ context.Context, _ *Leaf, _ Age, write func(io.Writer) error) error {
	a.stored++
	err := write(io.Discard)
	a.meanwhile()
	return err
}

// testReaders has sessions that read a leaf which is to be archived: the archive is not asked while TRUNCATE could not
// follow, and TRUNCATE waits for a session that has come meanwhile. The leaf says when it was emptied.
func testReaders(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "readers", ring)
	b.exec(old(0, 10) + "; COMMENT ON TABLE shop.outbox_0 IS E'of the shop\n" + Mark + "2026-01-01T00:00:00Z'")
	b.r.Slots = nil
	archive := &slowArchive{}
	b.r.Archive = archive
	reader := pgtest.Connect(t, server.SuperURL(b.name))
	read := func() { // until the transaction ends
		if _, err := reader.Exec(t.Context(), "BEGIN; SELECT count(*) FROM shop.outbox_0", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	}
	end := func() {
		if _, err := reader.Exec(t.Context(), "COMMIT"); err != nil {
			t.Error(err)
		}
	}
	read()
	b.want("a reader is at work", b.pass(), "outbox_0 postponed lock")
	if archive.stored != 0 {
		t.Error("the archive got rows that could not be removed")
	}
	end()
	archive.meanwhile = read
	b.r.SlotWait = 0
	b.want("a reader comes and stays", b.pass(), "outbox_0 postponed lock")
	end()
	b.r.SlotWait = time.Hour
	pauses := 0
	b.r.Pause = func(context.Context, time.Duration) bool {
		if pauses++; pauses == 3 {
			end()
		}
		return pauses < 10
	}
	b.exec("CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no DDL'; END $$; CREATE EVENT TRIGGER no ON ddl_command_end EXECUTE FUNCTION no()")
	b.want("a reader comes and goes", b.pass(), "outbox_0 emptied")
	if archive.stored != 2 || pauses < 3 {
		t.Errorf("the archive got the rows %d times, and %d pauses", archive.stored, pauses)
	}
	comment := func(want string) {
		t.Helper()
		var got string
		if err := b.sql.QueryRow(t.Context(), "SELECT obj_description('shop.outbox_0'::regclass, 'pg_class')").Scan(&got); err != nil || !strings.HasPrefix(got, want) || strings.Count(got, Mark) != 1 {
			t.Errorf("the comment is %q, %v; want %q", got, err, want)
		}
	}
	comment("of the shop\n" + Mark + "2026-01-01")
	b.exec("DROP EVENT TRIGGER no; " + old(0, 1))
	archive.meanwhile = func() {}
	b.want("without the event trigger", b.pass(), "outbox_0 emptied")
	comment("of the shop\n" + Mark + time.Now().UTC().Format("2006-"))
}

// testMeanwhile has what happens between the look at the table and the removal of its rows.
func testMeanwhile(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "meanwhile", ring+"; CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TABLE plain (id int PRIMARY KEY, created_at timestamptz NOT NULL)")
	b.exec(old(0, 10) + "; INSERT INTO shop.plain VALUES (1, '2020-01-01')")
	b.r.Server, b.r.Slots, b.r.Database = b.p, nil, b.name
	open := func(table string, del bool) *Leaf {
		b.table.Name, b.table.Delete = table, del
		leaves, err := b.p.Open(t.Context(), &b.table, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &leaves[0]
	}
	leaf := open("outbox", false)
	b.r.Archive = &slowArchive{meanwhile: func() {
		b.exec("ALTER SCHEMA shop RENAME TO former; CREATE SCHEMA shop AUTHORIZATION meanwhile; SET ROLE meanwhile; CREATE TABLE shop.outbox_0 (payload text); RESET ROLE; INSERT INTO shop.outbox_0 VALUES ('x')")
	}}
	if got := b.r.Empty(t.Context(), leaf); got.Reason != ByError || !strings.Contains(got.Text, "that of another table") || b.count("SELECT count(*) FROM shop.outbox_0") != 1 {
		t.Errorf("another schema has the name: %+v", got)
	}
	b.exec("DROP SCHEMA shop CASCADE; ALTER SCHEMA former RENAME TO shop")
	b.r.Archive = nil
	b.exec("CREATE TRIGGER g BEFORE TRUNCATE ON shop.outbox_0 EXECUTE FUNCTION shop.f()")
	if got := b.r.Empty(t.Context(), leaf); got.Reason != ByError || !strings.Contains(got.Text, "trigger g") {
		t.Errorf("a trigger: %+v", got)
	}
	b.exec("DROP TRIGGER g ON shop.outbox_0; ALTER TABLE shop.outbox ALTER created_at DROP NOT NULL; UPDATE shop.outbox SET created_at = NULL WHERE id = 3")
	if got := b.r.Empty(t.Context(), leaf); got.Outcome != Kept {
		t.Errorf("a row without a time: %+v", got)
	}
	leaf = open("plain", true)
	b.exec("CREATE TABLE shop.child (id int REFERENCES shop.plain ON DELETE CASCADE); INSERT INTO shop.child VALUES (1)")
	if got := b.r.Delete(t.Context(), leaf); got.Reason != ByError || !strings.Contains(got.Text, "foreign key") {
		t.Errorf("a foreign key: %+v", got)
	}

	// A name can lead to another server after a failover.
	b.exec("DROP TABLE shop.child; UPDATE shop.outbox SET created_at = '2020-01-01' WHERE id = 3")
	other := pgtest.ForTest(t, pgtest.Options{Major: server.Major, Settings: map[string]string{"wal_level": "logical", "fsync": "off"}})
	elsewhere := newBench(t, other, "meanwhile", ring)
	elsewhere.exec(old(0, 10))
	leaf = open("outbox", false)
	b.p.work.Close(t.Context()) //nolint:errcheck // it is replaced
	b.p.config = elsewhere.p.config
	if got := b.r.Empty(t.Context(), leaf); got.Reason != ByError || !strings.Contains(got.Text, "another server") {
		t.Errorf("another server: %+v", got)
	}
	if n := elsewhere.count("SELECT count(*) FROM shop.outbox"); n != 10 {
		t.Errorf("%d rows are left on the other server, want 10", n)
	}
}

// testTimes has clocks and columns from which the age of a row is not known.
func testTimes(t *testing.T, server *pgtest.Server) {
	b := newBench(t, server, "times", `CREATE TABLE outbox (payload text, created_at timestamp NOT NULL) PARTITION BY RANGE (created_at); CREATE TABLE outbox_0 PARTITION OF outbox DEFAULT`)
	b.r.Slots = nil
	b.exec("SET timezone = 'Etc/GMT+12'; INSERT INTO shop.outbox VALUES ('x', now() - interval '30 minutes'); RESET timezone")
	b.want("local time", b.pass(), "outbox_0 kept")
	b.exec("UPDATE shop.outbox SET created_at = created_at - interval '1 hour'")
	b.p.clock = func() time.Time { return time.Now().Add(-time.Hour) }
	b.want("the clock of the server is ahead", b.pass(), "outbox_0 kept")
	b.p.clock = func() time.Time { return time.Now().Add(time.Hour) }
	if now, err := b.p.Now(t.Context()); err != nil || now.After(time.Now()) {
		t.Errorf("the clock of this machine is ahead: %s, %v", now, err)
	}
	b.want("old enough", b.pass(), "outbox_0 emptied")
	if server.Major < "18" {
		return
	}
	b.exec("ALTER TABLE shop.outbox ALTER created_at DROP NOT NULL; INSERT INTO shop.outbox VALUES ('x', NULL), ('x', '2020-01-01'); ALTER TABLE shop.outbox ADD CONSTRAINT later NOT NULL created_at NOT VALID")
	if _, err := Pass(t.Context(), b.p, &b.table, nil, b.r, false, func() {}); exit.Code(err) != exit.Config || !strings.Contains(err.Error(), "rows have no time") {
		t.Errorf("a constraint that is not valid: %v", err)
	}
}
