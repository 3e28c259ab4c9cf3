package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/replication"
)

// outboxes are the names of all tables.
func (e *examination) outboxes() (all []replication.Table) {
	for i := range e.Tables {
		all = append(all, replication.Table{Schema: e.Tables[i].Schema, Name: e.Tables[i].Name})
	}
	return all
}

// failMissing reports that the table does not exist. A table with a similar name may be the one that the application
// writes to: then a new table would be empty for ever.
func (e *examination) failMissing(ctx context.Context, f *tableFacts) {
	similar, err := replication.FindSimilar(ctx, e.conn, f.Schema, f.Table.Name, e.outboxes())
	if err != nil {
		e.cannot(tableExists, err)
	}
	if len(similar) == 0 {
		e.fail(tableExists, Lost, []Remedy{e.setup(), advicef("or set outbox.table to an existing table; or, if the table was renamed or moved, undo that, because its events in the slot have the former name")},
			"the database has no table %s; if it had one, events may be lost", f.Table)
		return
	}
	var remedies []Remedy
	for _, name := range similar {
		remedies = append(remedies, settingf("%s", replication.TableSetting(name)))
	}
	create := e.setup()
	create.Text += " --create-table"
	e.fail(tableExists, Lost, append(remedies, advicef("or, if the application writes to none of these, create the table:"), create),
		"the database has no table %s (similar names: %s); if it had one, events may be lost", f.Table, strings.Join(similar, ", "))
}

// checkUnsent reports a partition or a child of the table with rows that are not published.
func (e *examination) checkUnsent(f *tableFacts) {
	if f.unsent.Inherits() {
		e.fail(tableExists, Wrong, e.endInheritance(f), "%s", f.unsent)
		return
	}
	remedies := []Remedy{advicef("%s", f.unsent.Advice())}
	if statement := f.unsent.SQL(); statement != "" {
		remedies = e.andRecover(sqlf("%s", statement))
	}
	e.fail(tableExists, Lost, remedies, "the partition %s", f.unsent)
}

// timescaleSchema is where Timescale creates the children of its tables.
const timescaleSchema = "_timescaledb_internal."

// endInheritance copies the rows of the children into the table, from which the stream delivers them, and ends the
// inheritance. What redirects inserts into the children is dropped first: after the end of the inheritance nothing
// would find the redirected rows.
func (e *examination) endInheritance(f *tableFacts) []Remedy {
	if strings.HasPrefix(f.unsent.Name, timescaleSchema) {
		return []Remedy{
			advicef("a hypertable cannot be an outbox: let the application write to a plain or declaratively partitioned table, insert the rows that were not delivered into it, and name it:"),
			settingf("outbox: {table: <the table that the application writes>}"),
		}
	}
	var remedies []Remedy
	for _, r := range f.redirects {
		remedies = append(remedies, sqlf("%s", r.drop))
	}
	var columns []string
	for _, c := range f.columns {
		if !slices.Contains(f.generated, c.Name) {
			columns = append(columns, ident(c.Name))
		}
	}
	var others []string // children that are outboxes
	for i := range e.Tables {
		others = append(others, "to_regclass("+literal(e.Tables[i].quoted())+")")
	}
	list, table := strings.Join(columns, ", "), f.quoted()
	forEach := func(format string) string { // for the function format
		return literal(strings.NewReplacer("{columns}", strings.ReplaceAll(list, "%", "%%"), "{table}", strings.ReplaceAll(table, "%", "%%")).Replace(format))
	}
	return append(remedies,
		sqlf("DO $outboxcdc$ DECLARE total bigint; child regclass; BEGIN LOCK TABLE %[1]s; SELECT count(*) INTO total FROM ONLY %[1]s; "+
			"FOR child IN SELECT inhrelid FROM pg_inherits WHERE inhparent = %[2]s::regclass AND inhrelid <> ALL (array_remove(ARRAY[%[3]s]::oid[], NULL)) LOOP "+
			"EXECUTE format(%[4]s, child) INTO total USING total; EXECUTE format(%[5]s, child); EXECUTE format(%[6]s, child); END LOOP; "+
			"IF (SELECT count(*) FROM ONLY %[1]s) <> total THEN RAISE EXCEPTION 'a trigger or a rule has taken rows elsewhere: drop it first'; END IF; END $outboxcdc$",
			table, literal(table), strings.Join(others, ", "), forEach("SELECT $1 + count(*) FROM %s"),
			forEach("INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM %s"), forEach("ALTER TABLE %s NO INHERIT {table}")),
		advicef("this copies the rows into %s, whose stream delivers them (before, delete those that another client has delivered); the former children keep theirs. "+
			"It locks the table. To divide an outbox, use declarative partitions (docs/sources.md)", f.Table))
}

// redirect is a rule or a trigger through which inserted rows may not arrive in the table.
type redirect struct {
	what string // for people
	drop string // the statement that drops it
}

// redirectsSQL finds rules ON INSERT DO INSTEAD, and BEFORE INSERT triggers for each row whose function contains
// RETURN NULL.
const redirectsSQL = `
SELECT 'rule', r.rulename::text, '' FROM pg_rewrite r WHERE r.ev_class = $1 AND r.ev_type = '3' AND r.is_instead AND r.ev_enabled IN ('O', 'A')
UNION ALL
SELECT 'trigger', t.tgname::text, p.proname::text FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
 WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 7 = 7 AND p.prosrc ~* '\mreturn\s+null\M'
 ORDER BY 1, 2`

func (e *examination) readRedirects(ctx context.Context, f *tableFacts) error {
	rows, _ := e.conn.Query(ctx, redirectsSQL, f.oid) // ForEachRow returns the error
	var kind, name, function string
	_, err := pgx.ForEachRow(rows, []any{&kind, &name, &function}, func() error {
		r := redirect{what: fmt.Sprintf("rule %s (ON INSERT DO INSTEAD)", name), drop: fmt.Sprintf("DROP RULE %s ON %s", ident(name), f.quoted())}
		if kind == "trigger" {
			r = redirect{what: fmt.Sprintf("trigger %s (its function %s contains RETURN NULL)", name, function), drop: fmt.Sprintf("DROP TRIGGER %s ON %s", ident(name), f.quoted())}
		}
		f.redirects = append(f.redirects, r)
		return nil
	})
	return err
}

// checkInserts warns of what may take inserted rows elsewhere. What a trigger does cannot be known, and may be meant.
func (e *examination) checkInserts(f *tableFacts) {
	if len(f.redirects) == 0 {
		e.ok(tableInserts, "no rule or trigger that is known to take rows elsewhere on %s", f.Table)
		return
	}
	var what []string
	var remedies []Remedy
	for _, r := range f.redirects {
		what, remedies = append(what, r.what), append(remedies, sqlf("%s", r.drop))
	}
	e.warn(tableInserts, append(remedies, advicef("unless this is meant: a row that another table gets, or none, is not an event")),
		"inserts into %s may not become rows of it: %s", f.Table, strings.Join(what, ", "))
}

// uniqueSQL reports whether a unique index of the table, or of each of its partitions, has only columns of the id and
// of the partition keys, and returns the partition keys. An index with more columns, expressions or a condition
// allows an id twice.
const uniqueSQL = `
WITH RECURSIVE tree AS (
  SELECT $1::oid AS oid
  UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relispartition
),
keys AS (
  SELECT DISTINCT a.attname::text AS name, t.oid = $1 AS root FROM tree t JOIN pg_partitioned_table p ON p.partrelid = t.oid CROSS JOIN LATERAL unnest(p.partattrs::int2[]) k(num)
    LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.num AND k.num > 0
),
leaves AS (
  SELECT t.oid FROM tree t JOIN pg_class c ON c.oid = t.oid
   WHERE c.relkind <> 'p' OR t.oid = $1 AND NOT EXISTS (SELECT FROM tree o JOIN pg_class x ON x.oid = o.oid WHERE x.relkind <> 'p')
)
SELECT NOT EXISTS (SELECT FROM leaves l WHERE NOT EXISTS (
         SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
            AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(num, at) JOIN pg_attribute a ON a.attrelid = l.oid AND a.attnum = k.num
                             WHERE k.at <= i.indnkeyatts AND a.attname <> ALL ($2) AND NOT EXISTS (SELECT FROM keys WHERE name = a.attname)))),
       ARRAY(SELECT name FROM keys WHERE name IS NOT NULL ORDER BY 1), EXISTS (SELECT FROM keys WHERE name IS NULL)`

// checkUnique warns if two rows can have one id: consumers take the second for a duplicate of the first.
func (e *examination) checkUnique(ctx context.Context, f *tableFacts) {
	if len(f.ID) == 0 || slices.ContainsFunc(f.ID, func(name string) bool { return !f.has(name) }) {
		e.skip(tableUnique, "%s does not have the columns of the id", f.Table)
		return
	}
	var unique, expression bool
	var keys []string
	if err := e.conn.QueryRow(ctx, uniqueSQL, f.oid, f.ID).Scan(&unique, &keys, &expression); err != nil {
		e.cannot(tableUnique, err)
		return
	}
	id := strings.Join(f.ID, ", ")
	if unique {
		e.ok(tableUnique, "a unique index has %s of %s%s", id, f.Table, map[bool]string{true: " (ids are unique in a partition, or with the partition key)"}[f.partitioned])
		return
	}
	var columns []string
	for _, name := range f.ID {
		columns = append(columns, ident(name))
	}
	for _, name := range keys {
		if !slices.Contains(f.ID, name) {
			columns = append(columns, ident(name))
		}
	}
	remedies := []Remedy{sqlf("CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s)", f.quoted(), strings.Join(columns, ", "))}
	switch {
	case expression:
		remedies = []Remedy{advicef("create a unique index on %s of each partition", id)}
	case f.partitioned:
		remedies = []Remedy{sqlf("CREATE UNIQUE INDEX ON %s (%s)", f.quoted(), strings.Join(columns, ", ")), advicef("inserts wait until it is built")}
	}
	e.warn(tableUnique, append(remedies, advicef("if this fails, an id was used twice already: let outbox.columns.id or route.id name columns that identify an event")),
		"no unique index has %s of %s: if two rows have the same id, consumers drop the second as a duplicate", id, f.Table)
}
