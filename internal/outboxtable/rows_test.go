package outboxtable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestRows runs what needs no stream on one server of the oldest and the newest version.
func TestRows(t *testing.T) {
	for _, major := range []string{"14", "18"} {
		t.Run(major, func(t *testing.T) {
			testRows(t, pgtest.ForTest(t, pgtest.Options{Major: major, Settings: serverSettings}))
		})
	}
}

func testRows(t *testing.T, server *pgtest.Server) {
	t.Helper()
	for i, c := range []struct {
		name string
		test func(*bench)
	}{
		{"ranges", testRanges},
		{"order", testOrder},
		{"times", testTimes},
		{"conditions", testConditions},
		{"refusals", testRefusals},
		{"hidden rows", testHiddenRows},
		{"errors of fn", testErrorsOfFn},
		{"context", testContext},
		{"consistent", testConsistent},
		{"existing", testExisting},
		{"indexed", testIndexed},
		{"large rows", testLargeRows},
		{"session", testSession},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(newBench(t, server, fmt.Sprintf("rows_%d", i), ""))
		})
	}
}

// outbox is a table that the role may read.
func (b *bench) outbox(columns string) Table {
	b.Helper()
	b.exec("CREATE TABLE public.outbox (" + columns + ")")
	b.exec("GRANT SELECT ON public.outbox TO " + b.name)
	return Table{Schema: "public", Name: "outbox", CreatedAt: "created_at"}
}

// ids are the first columns of the rows of a range.
func (b *bench) ids(s *Snapshot, r Range) (ids []string) {
	b.Helper()
	for _, row := range b.rows(s, 0, r) {
		ids = append(ids, string(row.Event.Values[0].Data))
	}
	return ids
}

func (b *bench) want(got, want []string) {
	b.Helper()
	if !slices.Equal(got, want) {
		b.Errorf("got %q, want %q", got, want)
	}
}

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t
}

func testRanges(b *bench) {
	table := b.outbox(`id int, created_at timestamptz, status text`)
	b.exec(`INSERT INTO outbox VALUES (1, '2026-11-21 10:00:00+00', 'SENT'), (2, '2026-11-21 10:00:00.000001+00', 'PENDING'), (3, '2026-11-21 13:00:00+01', 'PENDING'), (4, NULL, 'SENT')`)
	s := b.open(table)
	first, second, third := at("2026-11-21T10:00:00Z"), at("2026-11-21T10:00:00.000001Z"), at("2026-11-21T12:00:00Z")
	b.want(b.ids(s, Range{}), []string{"1", "2", "3", "4"})
	b.want(b.ids(s, Range{Since: first}), []string{"1", "2", "3"})
	b.want(b.ids(s, Range{Since: second.In(time.FixedZone("", 5*3600))}), []string{"2", "3"})
	b.want(b.ids(s, Range{Since: first.Add(1)}), []string{"2", "3"}) // a nanosecond, which Postgres does not have
	b.want(b.ids(s, Range{Until: first.Add(1)}), []string{"1"})
	b.want(b.ids(s, Range{Until: first}), nil)
	b.want(b.ids(s, Range{Until: third}), []string{"1", "2"})
	b.want(b.ids(s, Range{Since: second, Until: third}), []string{"2"})
	b.want(b.ids(s, Range{Where: "status = 'PENDING' -- not yet sent"}), []string{"2", "3"})
	b.want(b.ids(s, Range{Since: third, Where: "status = 'SENT' OR id = 3"}), []string{"3"})
	b.want(b.ids(s, Range{Until: third, Where: "outbox.status = 'SENT' OR id = 3"}), []string{"1"})
	s.Close(b.Context())
	for _, typ := range []string{"timestamp", "date"} {
		b.exec(`DROP TABLE outbox`)
		table = b.outbox(`id int, created_at ` + typ)
		b.exec(`INSERT INTO outbox VALUES (1, '2026-11-20 11:00:00'), (2, '2026-11-21 00:00:00')`)
		s := b.open(table)
		b.want(b.ids(s, Range{Since: at("2026-11-20T23:00:00-01:00")}), []string{"2"})
		b.want(b.ids(s, Range{Until: at("2026-11-21T00:00:00Z")}), []string{"1"})
		s.Close(b.Context())
	}
}

func testOrder(b *bench) {
	table := b.outbox(`id int, created_at timestamptz, seq int`)
	b.exec(`INSERT INTO outbox VALUES (1, '2026-11-21', 9), (2, '2026-11-20', 8), (3, '2026-11-20', 8), (4, '2026-11-19', 9)`)
	none, bySeq := table, table
	none.CreatedAt, bySeq.Order = "", []string{"seq"}
	s := b.open(table, none, bySeq)
	b.want(b.ids(s, Range{}), []string{"4", "2", "3", "1"})
	for i, want := range [][]string{1: {"1", "2", "3", "4"}, 2: {"2", "3", "4", "1"}} {
		if want == nil {
			continue
		}
		var ids []string
		for _, row := range b.rows(s, i, Range{}) {
			ids = append(ids, string(row.Event.Values[0].Data))
			if row.Event.Relation.Source != i {
				b.Errorf("source %d, want %d", row.Event.Relation.Source, i)
			}
		}
		b.want(ids, want)
	}
}

func testTimes(b *bench) {
	b.exec(`CREATE DOMAIN public.moment AS timestamptz`)
	for typ, c := range map[string][2]string{
		"timestamptz":    {"'2026-11-21 11:12:13.456789+01'", "2026-11-21T10:12:13.456789Z"},
		"public.moment":  {"'2026-11-21 11:12:13+01'", "2026-11-21T10:12:13Z"},
		"timestamp":      {"'2026-11-21 11:12:13.4'", "2026-11-21T11:12:13.4Z"},
		"date":           {"'2026-11-21'", "2026-11-21T00:00:00Z"},
		"timestamptz(0)": {"'infinity'", ""},
		"timestamptz(1)": {"NULL", ""},
		"timestamptz(2)": {"'0044-03-15 BC'", ""},
		"timestamptz(3)": {"'1969-12-31 23:59:59.9Z'", ""},
		"timestamptz(4)": {"'2262-01-01 00:00:00Z'", ""},
		"timestamptz(5)": {"'2261-12-31 23:59:59.9Z'", "2261-12-31T23:59:59.9Z"},
		"timestamptz(6)": {"'12345-01-01'", ""},
		"bigint":         {"1795255933000", ""},
	} {
		b.exec(`DROP TABLE IF EXISTS outbox`)
		table := b.outbox(`id int, created_at ` + typ)
		b.exec(`INSERT INTO outbox VALUES (1, ` + c[0] + `)`)
		s := b.open(table)
		row := b.rows(s, 0, Range{})[0]
		s.Close(b.Context())
		if c[1] == "" {
			if !row.CreatedAt.IsZero() || time.Since(row.Event.Begin.CommitTime).Abs() > time.Minute {
				b.Errorf("%s %s: %s, committed at %s", typ, c[0], row.CreatedAt, row.Event.Begin.CommitTime)
			}
		} else if want := at(c[1]); !row.CreatedAt.Equal(want) || !row.Event.Begin.CommitTime.Equal(want) {
			b.Errorf("%s %s: %s, committed at %s", typ, c[0], row.CreatedAt, row.Event.Begin.CommitTime)
		}
	}
	// A generated column is no column of the event, and its time is known.
	b.exec(`DROP TABLE outbox`)
	table := b.outbox(`id int, seconds bigint, created_at timestamp GENERATED ALWAYS AS (timestamp '2026-11-21 00:00:00' + seconds * interval '1 s') STORED`)
	b.exec(`INSERT INTO outbox VALUES (1, 7)`)
	named := table
	named.Columns = []string{"created_at"}
	s := b.open(table, named)
	for i, columns := range []int{2, 3} {
		if row := b.rows(s, i, Range{Since: at("2026-11-21T00:00:07Z")})[0]; !row.CreatedAt.Equal(at("2026-11-21T00:00:07Z")) || len(row.Event.Values) != columns {
			b.Errorf("%+v", row)
		}
	}
}

func testConditions(b *bench) {
	table := b.outbox(`id int, status text, created_at timestamptz`)
	b.exec(`INSERT INTO outbox VALUES (1, 'x', now())`)
	b.exec(`CREATE TABLE private (id int); CREATE FUNCTION public.is_due(int) RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	s := b.open(table)
	since := at("2026-11-01T00:00:00Z")
	for _, c := range []struct{ where, want string }{
		{"statu = 'PENDING'", "read table public.outbox: wrong condition: column \"statu\" does not exist (SQLSTATE 42703)\n    statu = 'PENDING'\n    ^\nHint: "},
		{"id > 0\n\tAND 'Grüße' = statu\nAND true", "\n    \tAND 'Grüße' = statu\n    \t              ^\n"},
		{"id = ", "syntax error at or near \")\" (SQLSTATE 42601)\n    id = \n         ^"},
		{"id", "argument of AND must be type boolean, not type integer (SQLSTATE 42804)\n    id\n    ^"},
		{"true) OR (true", "it is not a single expression: check its parentheses"},
		{"true); SELECT 1 WHERE (true", "cannot insert multiple commands into a prepared statement"},
		{"true ORDER BY id", `syntax error at or near "ORDER"`},
		{"is_due(id)", "Hint: names outside pg_catalog need their schema, as in public.name"},
		{"id = $1", "it cannot have parameters such as $1"},
		{"id IN (SELECT id FROM public.private)", "permission denied for table private"},
		{"1 / 0 = id", "division by zero"},
		{"count(*) > 1", "aggregate functions are not allowed in WHERE"},
	} {
		for _, r := range []Range{{Where: c.where}, {Since: since, Where: c.where}} {
			err := s.Check(b.Context(), 0, r)
			if _, ok := errors.AsType[*ConditionError](err); !ok || !strings.Contains(err.Error(), c.want) {
				b.Errorf("%s:\n%v\nwant\n%s", c.where, err, c.want)
			}
		}
	}
	for _, good := range []string{"", "public.is_due(id) -- today", "id IN (1, 2) OR (status IS NULL)", "id = 1 /* one */"} {
		if err := s.Check(b.Context(), 0, Range{Since: since, Where: good}); err != nil {
			b.Errorf("%s: %v", good, err)
		}
	}
	// Rows shows the same; what fails at a row has no position.
	for _, c := range []struct {
		r  Range
		at int
	}{{Range{Since: since, Where: "id = 1 AND statu = 'x'"}, 11}, {Range{Where: "1 / (id - 1) = 0"}, -1}} {
		err := s.Rows(b.Context(), 0, c.r, func(*Row) error { return nil })
		if e, ok := errors.AsType[*ConditionError](err); !ok || e.At != c.at {
			b.Errorf("%v", err)
		}
		s.Close(b.Context())
		s = b.open(table)
	}
}

func testRefusals(b *bench) {
	good := b.outbox(`id int, created_at text, seq int`)
	b.exec(`CREATE TABLE public.parent (id int, created_at text, seq int); CREATE TABLE public."a child" () INHERITS (public.parent); GRANT SELECT ON public.parent, public."a child" TO ` + b.name)
	b.exec(`CREATE TABLE private (id int); CREATE VIEW public.shown AS SELECT 1 AS id; GRANT SELECT ON public.shown TO ` + b.name)
	with := func(change func(*Table)) Table {
		t := good
		change(&t)
		return t
	}
	for _, c := range []struct {
		table Table
		want  string
	}{
		{with(func(t *Table) { t.Name = "other" }), "read table public.other: ERROR: relation \"public.other\" does not exist (SQLSTATE 42P01); remedy: set outbox.table, or restore the table"},
		{with(func(t *Table) { t.Schema = "other" }), "remedy: set outbox.table"},
		{with(func(t *Table) { t.Name = "private" }), "remedy: grant USAGE on the schema and SELECT on the table to the role"},
		{with(func(t *Table) { t.Name = "parent" }), `look for tables that inherit from public.parent: public."a child" inherits from the outbox`},
		{with(func(t *Table) { t.Name = "shown" }), "read the columns of table public.shown: it is not a table; remedy: set outbox.table"},
		{with(func(t *Table) { t.Columns = []string{"id", "gone"} }), `read the columns of table public.outbox: it has no column "gone", only id, created_at, seq; remedy: set outbox.columns`},
		{with(func(t *Table) { t.Order = []string{"gone"} }), "remedy: set outbox.order"},
	} {
		conn := pgtest.Connect(b, b.url())
		s, err := Open(b.Context(), conn, []Table{good, c.table})
		if err == nil || s != nil || !strings.Contains(err.Error(), c.want) {
			b.Errorf("%v, want %s", err, c.want)
		}
		if _, err := conn.Exec(b.Context(), "SELECT 1"); err != nil || conn.PgConn().TxStatus() != 'I' {
			b.Errorf("the connection is in transaction status %c: %v", conn.PgConn().TxStatus(), err)
		}
	}
	if _, err := Open(b.Context(), pgtest.Connect(b, b.url()), []Table{with(func(t *Table) { t.Name = "parent" })}); exit.Code(err) != exit.Config {
		b.Errorf("of a table with a child the exit code is %d", exit.Code(err))
	}
	b.open(with(func(t *Table) { t.Name = "parent" }), with(func(t *Table) { t.Name = "a child" })).Close(b.Context())
	const remedy = "remedy: set outbox.columns.created_at, or leave out --since and --until"
	s := b.open(good, with(func(t *Table) { t.CreatedAt = "" }), with(func(t *Table) { t.CreatedAt = "gone" }))
	for i, want := range []string{`column "created_at" is not of type timestamptz, timestamp or date; `, "no column has the time of a row; ", `it has no column "gone"; `} {
		for _, r := range []Range{{Since: at("2026-11-01T00:00:00Z")}, {Until: at("2026-11-01T00:00:00Z")}} {
			for _, err := range []error{s.Check(b.Context(), i, r), s.Rows(b.Context(), i, r, nil)} {
				if err == nil || err.Error() != "read table public.outbox: "+want+remedy {
					b.Errorf("%v, want %s", err, want)
				}
			}
		}
		if err := s.Check(b.Context(), i, Range{}); err != nil {
			b.Error(err)
		}
	}
}

// testHiddenRows: a policy hides rows from the role. It must not read the rest as if that were all.
func testHiddenRows(b *bench) {
	table := b.outbox(`id int, created_at timestamptz`)
	b.exec(`INSERT INTO outbox VALUES (1), (2)`)
	b.exec(`ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON outbox USING (id > 1)`)
	b.exec(`CREATE TABLE sent (id int); GRANT SELECT ON sent TO ` + b.name)
	if _, err := Open(b.Context(), pgtest.Connect(b, b.url()), []Table{table}); err == nil || !strings.Contains(err.Error(), `hides rows from role "`+b.name+`"; remedy: ALTER ROLE`) || exit.Code(err) != exit.NoPermission {
		b.Errorf("opened with %v", err)
	}
	b.exec(`ALTER ROLE ` + b.name + ` BYPASSRLS`)
	s := b.open(table)
	b.want(b.ids(s, Range{}), []string{"1", "2"})
	s.Close(b.Context())
	b.exec(`ALTER ROLE ` + b.name + ` NOBYPASSRLS; ALTER TABLE outbox DISABLE ROW LEVEL SECURITY; ALTER TABLE sent ENABLE ROW LEVEL SECURITY`)
	s = b.open(table)
	if err := s.Check(b.Context(), 0, Range{Where: "id NOT IN (SELECT id FROM public.sent)"}); err == nil || !strings.Contains(err.Error(), "row-level security") {
		b.Errorf("rows of another table are hidden: %v", err)
	}
}

func testErrorsOfFn(b *bench) {
	table := b.outbox(`id int, created_at timestamptz`)
	b.exec(`INSERT INTO outbox SELECT i, now() FROM generate_series(1, 100000) i`)
	s := b.open(table)
	stop := errors.New("stop")
	for _, after := range []int{1, firstFetch, 50000} {
		n := 0
		if err := s.Rows(b.Context(), 0, Range{}, func(*Row) error {
			if n++; n == after {
				return stop
			}
			return nil
		}); err != stop { //nolint:errorlint // the very same
			b.Fatalf("after %d: %v", after, err)
		}
		if n != after {
			b.Errorf("called %d times, want %d", n, after)
		}
	}
	if n := len(b.rows(s, 0, Range{})); n != 100000 {
		b.Errorf("%d rows after that", n)
	}
}

func testContext(b *bench) {
	table := b.outbox(`id int, created_at timestamptz`)
	b.exec(`INSERT INTO outbox SELECT i, now() FROM generate_series(1, 100000) i`)
	reason := errors.New("Ctrl-C")
	quick := func(what string, s *Snapshot, f func(context.Context, func()) error) {
		b.Helper()
		ctx, cancel := context.WithCancelCause(b.Context())
		start := time.Now()
		err := f(ctx, func() { start = time.Now(); cancel(reason) })
		if !errors.Is(err, reason) || !strings.Contains(err.Error(), "table public.outbox") || time.Since(start) > 20*time.Second {
			b.Errorf("%s: %v after %s", what, err, time.Since(start))
		}
		if !s.conn.IsClosed() {
			b.Errorf("%s: the connection is open", what)
		}
		select {
		case <-s.conn.PgConn().CleanupDone():
		case <-time.After(30 * time.Second):
			b.Errorf("%s: the connection is not closed after 30 s", what)
		}
		s.Close(b.Context())
	}
	s := b.open(table)
	quick("while fn runs", s, func(ctx context.Context, cancel func()) error {
		n := 0
		return s.Rows(ctx, 0, Range{}, func(*Row) error {
			if n++; n == 1000 {
				cancel()
			} else if n > 1000 {
				b.Error("a row after the end")
			}
			return nil
		})
	})
	s = b.open(table)
	quick("before", s, func(ctx context.Context, cancel func()) error {
		cancel()
		return s.Rows(ctx, 0, Range{}, nil)
	})
	s = b.open(table)
	quick("while the server works", s, func(ctx context.Context, cancel func()) error {
		time.AfterFunc(300*time.Millisecond, cancel)
		return s.Rows(ctx, 0, Range{Where: "pg_sleep(60) IS NOT NULL"}, func(*Row) error { return nil })
	})
	b.exec(`CREATE TABLE locked (); GRANT SELECT ON locked TO ` + b.name)
	b.exec(`BEGIN; LOCK TABLE locked`)
	s = b.open(table)
	quick("while it checks", s, func(ctx context.Context, cancel func()) error {
		time.AfterFunc(300*time.Millisecond, cancel)
		return s.Check(ctx, 0, Range{Where: "EXISTS (SELECT FROM public.locked)"})
	})
	b.exec(`ROLLBACK`)
	b.await(`SELECT count(*)::text FROM pg_stat_activity WHERE usename = '`+b.name+`'`, "0")
	// A table that another transaction has locked.
	b.exec(`BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithTimeout(b.Context(), 300*time.Millisecond)
	defer cancel()
	conn := pgtest.Connect(b, b.url())
	if _, err := Open(ctx, conn, []Table{table}); !errors.Is(err, context.DeadlineExceeded) || !conn.IsClosed() {
		b.Errorf("%v, closed: %t", err, conn.IsClosed())
	}
	b.exec(`ROLLBACK`)
}

func (b *bench) await(query, want string) {
	b.Helper()
	var got string
	for range 200 {
		must(b, b.sql.QueryRow(b.Context(), query).Scan(&got))
		if got == want {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.Fatalf("%s: %s, want %s", query, got, want)
}

// testConsistent: all methods see the rows of one moment, and nothing can take them away.
func testConsistent(b *bench) {
	table := b.outbox(`id int, created_at timestamptz`)
	b.exec(`CREATE TABLE second (id int) PARTITION BY RANGE (id); CREATE TABLE second_1 PARTITION OF second FOR VALUES FROM (0) TO (10)`)
	b.exec(`GRANT SELECT ON second TO ` + b.name)
	b.exec(`INSERT INTO outbox VALUES (1), (2); INSERT INTO second VALUES (1)`)
	s := b.open(table, Table{Schema: "public", Name: "second"})
	// Before anything is read: the snapshot itself is no lock.
	b.exec(`SET lock_timeout = '100ms'`)
	for _, sql := range []string{`TRUNCATE outbox`, `ALTER TABLE outbox ALTER id TYPE bigint`, `TRUNCATE second_1`} {
		var pg *pgconn.PgError
		if _, err := b.sql.Exec(b.Context(), sql); !errors.As(err, &pg) || pg.Code != "55P03" {
			b.Errorf("%s: %v", sql, err)
		}
	}
	b.exec(`INSERT INTO outbox VALUES (3); DELETE FROM outbox WHERE id = 1; INSERT INTO second VALUES (2)`)
	b.want(b.ids(s, Range{}), []string{"1", "2"})
	if n := len(b.rows(s, 1, Range{})); n != 1 {
		b.Errorf("%d rows in the second table", n)
	}
	found, err := s.Existing(b.Context(), 0, "id", []string{"1", "2", "3"})
	if err != nil || len(found) != 2 || found["3"] {
		b.Errorf("%v %v", found, err)
	}
	s.Close(b.Context())
	b.exec(`TRUNCATE outbox`)
	if s.conn.IsClosed() {
		b.Error("Close has closed the connection")
	}
}

func testExisting(b *bench) {
	b.exec(`CREATE DOMAIN public.order_id AS uuid`)
	uuid := "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	odd := `{"a\",b}` + "\n ü"
	for typ, c := range map[string]struct {
		has, others []string
		slow        bool
	}{
		"text":            {[]string{"a", "", odd, "NULL", strings.Repeat("x", 1000)}, []string{"A", "a ", "a\x00", "\xff", "x"}, false},
		"varchar(9)":      {[]string{"a", " b "}, []string{"b"}, false},
		"uuid":            {[]string{uuid}, []string{strings.ToUpper(uuid), "{" + uuid + "}", "x", "", strings.ReplaceAll(uuid, "-", ""), uuid[:35] + "8"}, false},
		"public.order_id": {[]string{uuid}, []string{"x"}, false},
		"smallint":        {[]string{"-7"}, []string{"70000", "7", "+7", "x"}, false},
		"int":             {[]string{"42", "0"}, []string{"042", "42.0", "-0", "9223372036854775808", ""}, false},
		"bigint":          {[]string{"9223372036854775807"}, []string{"9223372036854775808"}, false},
		"numeric":         {[]string{"1.50"}, []string{"1.5", "x"}, true},
		"boolean":         {[]string{"t"}, []string{"true", "f"}, true},
		"char(4)":         {[]string{"ab  "}, []string{"ab"}, true},
		"bytea":           {[]string{`\x00ff`}, []string{`\x00FF`, "x"}, true},
		"timestamptz":     {[]string{"2026-11-21 10:00:00+00"}, []string{"2026-11-21 11:00:00+01"}, true},
	} {
		b.exec(`DROP TABLE IF EXISTS outbox`)
		table := b.outbox(`id ` + typ + ` UNIQUE, created_at timestamptz`)
		for _, id := range c.has {
			if _, err := b.sql.Exec(b.Context(), `INSERT INTO outbox VALUES (`+literal(id)+`)`, pgx.QueryExecModeSimpleProtocol); err != nil {
				b.Fatal(err)
			}
		}
		b.exec(`INSERT INTO outbox VALUES (NULL)`)
		s := b.open(table)
		found, err := s.Existing(b.Context(), 0, "id", append(slices.Clone(c.has), c.others...))
		if err != nil || len(found) != len(c.has) {
			b.Errorf("%s: %v %v, want %q", typ, found, err, c.has)
		}
		for _, id := range c.has {
			if !found[id] {
				b.Errorf("%s: %q was not found", typ, id)
			}
		}
		s.Close(b.Context())
	}
	b.exec(`DROP TABLE outbox`)
	table := b.outbox(`id text PRIMARY KEY, created_at timestamptz`)
	b.exec(`INSERT INTO outbox SELECT i FROM generate_series(1, 25000) i; ANALYZE outbox`)
	var ids []string
	for i := range 30000 {
		ids = append(ids, fmt.Sprint(i+1))
	}
	s := b.open(table)
	if found, err := s.Existing(b.Context(), 0, "id", ids); err != nil || len(found) != 25000 || !found["25000"] {
		b.Errorf("%d ids, %v", len(found), err)
	}
	if found, err := s.Existing(b.Context(), 0, "id", nil); err != nil || len(found) != 0 {
		b.Errorf("%d ids, %v", len(found), err)
	}
	if _, err := s.Existing(b.Context(), 0, "gone", ids); err == nil || !strings.Contains(err.Error(), `has no column "gone"; remedy: set outbox.columns.id`) {
		b.Error(err)
	}
}

func testIndexed(b *bench) {
	table := b.outbox(`id int, created_at timestamptz`)
	for _, c := range []struct {
		sql  string
		want bool
	}{
		{`SELECT 1`, false},
		{`CREATE INDEX ON outbox (id, created_at)`, false},
		{`CREATE INDEX ON outbox (created_at) WHERE id > 5`, false},
		{`CREATE INDEX ON outbox ((id + 1), created_at)`, false},
		{`CREATE INDEX ON outbox USING hash (created_at)`, false},
		{`CREATE INDEX i ON outbox (created_at, id)`, true},
		{`DROP INDEX i; CREATE INDEX i ON outbox USING brin (created_at)`, true},
		{`DROP INDEX i`, false},
	} {
		b.exec(c.sql)
		s := b.open(table)
		if got, err := s.Indexed(b.Context(), 0); err != nil || got != c.want {
			b.Errorf("%s: %t %v", c.sql, got, err)
		}
		s.Close(b.Context())
	}
	// A range of times uses it, whatever the type of the column.
	for _, typ := range []string{"timestamptz", "timestamp", "date"} {
		b.exec(`DROP TABLE outbox`)
		table := b.outbox(`id int, created_at ` + typ)
		b.exec(`INSERT INTO outbox SELECT i, '2026-01-01'::date + i FROM generate_series(1, 10000) i; CREATE INDEX ON outbox (created_at); ANALYZE outbox`)
		s := b.open(table)
		q, err := s.tables[0].statement(s.tables[0].selectList(), Range{Since: at("2053-05-01T00:00:00Z")}, s.tables[0].orderBy())
		must(b, err)
		res := s.conn.PgConn().ExecParams(b.Context(), "EXPLAIN "+q.String(), nil, nil, nil, nil).Read()
		if plan := fmt.Sprintf("%s", res.Rows); res.Err != nil || !strings.Contains(plan, "Index Cond: (created_at >=") {
			b.Errorf("%s: %s %v", typ, plan, res.Err)
		}
		s.Close(b.Context())
	}
}

// testLargeRows: a FETCH asks for few of them, and for many small ones after that.
func testLargeRows(b *bench) {
	table := b.outbox(`id int, payload text, created_at timestamptz`)
	b.exec(`ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL`)
	b.exec(`INSERT INTO outbox SELECT i, repeat('x', CASE WHEN i <= 20 THEN 1000000 ELSE 1 END), '2026-11-21 00:00:00Z'::timestamptz + i * interval '1 s' FROM generate_series(1, 20000) i`)
	s := b.open(table)
	size, n := 0, 0
	if err := s.Rows(b.Context(), 0, Range{}, func(row *Row) error {
		n++
		size += len(row.Event.Values[1].Data)
		return nil
	}); err != nil || n != 20000 || size != 20*1000000+19980 {
		b.Errorf("%d rows of %d bytes, %v", n, size, err)
	}
}

// testSession: time-outs of role and database do not end the transaction, and the connection has its own settings
// back after Close.
func testSession(b *bench) {
	table := b.outbox(`id int, created_at timestamptz`)
	b.exec(`INSERT INTO outbox VALUES (1)`)
	b.exec(`ALTER ROLE ` + b.name + ` SET statement_timeout = '200ms'; ALTER ROLE ` + b.name + ` SET idle_in_transaction_session_timeout = '200ms'`)
	if b.server.Major >= "17" {
		b.exec(`ALTER ROLE ` + b.name + ` SET transaction_timeout = '400ms'`)
	}
	s := b.open(table)
	time.Sleep(500 * time.Millisecond)
	b.want(b.ids(s, Range{Where: "pg_sleep(0.5) IS NOT NULL"}), []string{"1"})
	if _, err := s.conn.Exec(b.Context(), `CREATE TABLE x (id int)`); err == nil {
		b.Error("the transaction is not read-only")
	}
	s.Close(b.Context())
	var path, timeout string
	if err := s.conn.QueryRow(b.Context(), `SELECT current_setting('search_path'), current_setting('statement_timeout')`).Scan(&path, &timeout); err != nil || path == "pg_catalog" || timeout != "200ms" {
		b.Errorf("%s %s %v", path, timeout, err)
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
