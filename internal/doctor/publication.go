package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
)

func (e *examination) checkPublication(ctx context.Context) {
	e.because[groupPublication] = "the publication does not exist"
	defer func() { // also without a publication
		for i := range e.tables {
			if t := &e.tables[i]; t.usable {
				e.checkGenerated(t)
			}
		}
	}()
	var err error
	e.pub, err = replication.ReadPublication(ctx, e.conn, e.Publication)
	switch {
	case err != nil:
		e.cannot(pubExists, err)
		e.because[groupPublication] = "the publication could not be read"
		return
	case e.pub == nil:
		e.noPublication()
		return
	}
	e.ok(pubExists, "%s", e.Publication)
	if len(e.Tables) == 0 {
		e.because[groupPublication] = "logical messages are the only source, so the publication need only exist"
		return
	}
	e.because[groupPublication] = "no outbox exists"
	e.checkPublished()
	if e.published, err = replication.ReadPublishedTables(ctx, e.conn, e.Publication, nil); err != nil {
		e.cannot(pubTables, err)
		return
	}
	var partitions []uint32
	for _, p := range e.published {
		if p.Root != p.OID {
			partitions = append(partitions, p.OID)
		}
	}
	if e.unattached, err = replication.PublishesUnattached(ctx, e.conn, e.Publication, e.server.Major(), partitions); err != nil {
		e.cannot(pubViaRoot, err)
		return
	}
	for i := range e.tables {
		if t := &e.tables[i]; t.usable {
			e.checkCarried(t)
			e.checkIdentity(t)
		}
	}
	e.checkShards(ctx)
	e.checkOthers()
	e.checkSplit(ctx)
}

func (e *examination) noPublication() {
	e.because[groupOutbox] = "the publication does not exist" // for the checks of both
	remedy := []Remedy{e.setup()}
	// setup apply refuses to create a publication that an existing slot cannot decode with.
	if e.slots.exists() {
		remedy = e.dropAndRecover("the slot is older than the publication and cannot be read with it")
	}
	e.fail(pubExists, Lost, e.unlessElsewhere(remedy...), "the database has no publication %s; if it had one, events may be lost", e.Publication)
}

func (e *examination) checkPublished() {
	p := e.pub
	var more []string
	for name, on := range map[string]bool{"update": p.Updates, "delete": p.Deletes, "truncate": p.Truncates} {
		if on {
			more = append(more, name)
		}
	}
	slices.Sort(more)
	switch {
	case !p.Inserts:
		alter := sqlf("ALTER PUBLICATION %s SET (publish = '%s')", ident(e.Publication), strings.Join(append([]string{"insert"}, more...), ", "))
		e.fail(pubInserts, Lost, e.andRecover(alter), "it does not publish inserts: no event is delivered, and events written meanwhile are not in the stream")
	case len(more) > 0:
		e.warn(pubInserts, e.narrow(), "it also publishes %s, which are no events: they are sent, decoded and skipped (poison.causes: update)", strings.Join(more, ", "))
	default:
		e.ok(pubInserts, "inserts, and nothing else")
	}
}

func (e *examination) checkCarried(t *tableFacts) {
	pub := ident(e.Publication)
	var ours []replication.PublishedTable
	for _, p := range e.published {
		if p.OID == t.oid || p.Root == t.oid {
			ours = append(ours, p)
		}
	}
	if len(ours) == 0 {
		add := []Remedy{sqlf("ALTER PUBLICATION %s ADD TABLE %s", pub, t.quoted())}
		if e.pub.AllTables { // the server permits ADD TABLE only for a list of tables
			add = append([]Remedy{advicef("remove %s from the EXCEPT list of %s, or:", t.quoted(), e.Publication)}, e.narrow()...)
		}
		e.fail(pubTables, Lost, e.andRecover(add...),
			"%s does not carry %s: events written meanwhile are not in the stream", e.Publication, t.Table)
		e.skip(pubFilter, "it does not carry %s", t.Table)
		e.skip(pubColumns, "it does not carry %s", t.Table)
		return
	}
	e.ok(pubTables, "carries %s", t.Table)
	e.checkViaRoot(t)
	// SET TABLE would remove tables that other clients read with this publication.
	whole := []Remedy{sqlf("BEGIN; ALTER PUBLICATION %[1]s DROP TABLE %[2]s; ALTER PUBLICATION %[1]s ADD TABLE %[2]s; COMMIT", pub, t.quoted())}
	if e.pub.AllTables {
		whole = e.narrow()
	}
	var missing []string
	filter := ""
	for _, p := range ours {
		filter = p.Filter
		for _, name := range t.Needs {
			if !slices.Contains(p.Columns, name) && !slices.Contains(missing, name) && !slices.Contains(t.generated, name) && t.has(name) {
				missing = append(missing, name)
			}
		}
		if filter != "" {
			break
		}
	}
	if filter != "" {
		e.fail(pubFilter, Lost, e.andRecover(whole...), "rows of %s that do not match the filter are lost silently: WHERE %s", t.Table, filter)
	} else {
		e.ok(pubFilter, "none on %s", t.Table)
	}
	if len(missing) > 0 {
		e.fail(pubColumns, Wrong, append(e.andRecover(whole...), lackColumn), "the column list of %s omits %s", t.Table, strings.Join(missing, ", "))
	} else {
		e.ok(pubColumns, "all needed columns of %s are sent", t.Table)
	}
}

// lackColumn is about events that the slot has as they were written.
var lackColumn = advicef("events that were written meanwhile lack the column: if recover or the daemon stops at one of them, %s", advice.DropAndRecover)

func (f *tableFacts) has(column string) bool {
	return slices.ContainsFunc(f.columns, func(c decoder.Column) bool { return c.Name == column })
}

// narrow suggests a second publication with the outboxes alone. The existing one is not altered: Debezium's default
// publication serves every connector of the database, and a running daemon treats an altered publication as a possible
// loss of events.
func (e *examination) narrow() []Remedy {
	name := "outboxcdc"
	if e.Publication == name {
		name = "outboxcdc_inserts"
	}
	return []Remedy{
		sqlf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)", name, e.allTables()),
		advicef("leave %s unchanged: other clients may use it. Once the slot has passed the new publication, set postgres.publication: %s and restart (docs/debezium.md)",
			e.Publication, name),
	}
}

// allTables lists all outboxes for SQL.
func (e *examination) allTables() string {
	var all []string
	for i := range e.Tables {
		all = append(all, e.Tables[i].quoted())
	}
	return strings.Join(all, ", ")
}

func (e *examination) checkViaRoot(t *tableFacts) {
	switch {
	case !t.partitioned:
		e.skip(pubViaRoot, "%s is not partitioned", t.Table)
	case e.pub.ViaRoot && e.pub.AllTables: // seen on PostgreSQL 17
		e.warn(pubViaRoot, e.narrow(),
			"it is FOR ALL TABLES and publishes via the root: if a transaction writes into a partition of %s during DETACH PARTITION … CONCURRENTLY, the walsender crashes, and the server with it", t.Table)
	case e.server.Major() == 14 && !e.unattached:
		e.warn(pubViaRoot, []Remedy{advicef("create partitions of %s with CREATE TABLE … PARTITION OF, or attach empty tables (docs/sources.md); PostgreSQL 15 does not need this", t.Table)},
			"PostgreSQL 14 does not send the rows of a partition of %s if a row was written into the table before it was attached, and the walsender has read that", t.Table)
	case e.pub.ViaRoot:
		e.ok(pubViaRoot, "rows of %s are sent under the table's own name", t.Table)
	case e.unattached:
		e.fail(pubViaRoot, Wrong, []Remedy{sqlf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", ident(e.Publication)), advicef("then %s", advice.AdoptRecord)},
			"rows of %s are sent under the names of its partitions, and so are rows that a table had before it was attached, or gets after it was detached: nothing tells them apart", t.Table)
	default:
		e.warn(pubViaRoot, e.narrow(),
			"rows of %s are sent under the names of its partitions: when a partition is attached or detached, the daemon stops", t.Table)
	}
}

// checkIdentity checks that the application can delete rows: if updates or deletes of a table without replica identity
// are published, the server refuses them.
func (e *examination) checkIdentity(t *tableFacts) {
	noIdentity := t.identity == "n" || t.identity == "d" && len(t.key) == 0
	switch {
	case (e.pub.Updates || e.pub.Deletes) && noIdentity:
		e.fail(tableIdentity, Wrong, []Remedy{sqlf("ALTER TABLE %s REPLICA IDENTITY FULL", t.quoted()), advicef("or add a primary key to it")},
			"the application cannot delete or update rows of %s: the publication publishes deletes or updates, and the table has no replica identity", t.Table)
	case noIdentity:
		e.ok(tableIdentity, "%s has none, which suffices while only inserts are published", t.Table)
	default:
		e.ok(tableIdentity, "%s has one", t.Table)
	}
}

func (e *examination) checkOthers() {
	var others []string
	for _, p := range e.published {
		if !slices.ContainsFunc(e.tables, func(t tableFacts) bool { return t.oid == p.OID || t.oid == p.Root }) {
			others = append(others, p.Schema+"."+p.Name)
		}
	}
	switch {
	case e.pub.AllTables:
		e.warn(pubOthers, e.narrow(), "it is FOR ALL TABLES: every other insert of the database is sent and discarded (%s)", listSome(others, "table"))
	case len(others) > 0:
		e.warn(pubOthers, e.narrow(), "inserts into %s are sent and discarded", listSome(others, "table"))
	default:
		e.ok(pubOthers, "none")
	}
}

// splitMajor is the first version with ALTER TABLE … SPLIT PARTITION and MERGE PARTITIONS.
const splitMajor = 19

// checkSplit warns if a partition is in the publication as soon as it is created. SPLIT PARTITION and MERGE
// PARTITIONS write the rows into such a partition before they attach it.
func (e *examination) checkSplit(ctx context.Context) {
	if e.server.Major() < splitMajor || !slices.ContainsFunc(e.tables, func(t tableFacts) bool { return t.partitioned }) {
		return
	}
	switch byItself, err := replication.PublishesUnattached(ctx, e.conn, e.Publication, e.server.Major(), nil); {
	case err != nil:
		e.cannot(pubOthers, err)
	case byItself:
		e.warn(pubOthers, e.narrow(),
			"it is FOR ALL TABLES or FOR TABLES IN SCHEMA: ALTER TABLE … SPLIT PARTITION and MERGE PARTITIONS of an outbox send the moved rows again, as new events")
	}
}

// listSome counts names and lists the first few.
func listSome(names []string, what string) string {
	const few = 5
	n := human.Count(len(names), what, what+"s")
	switch {
	case len(names) == 0:
		return n
	case len(names) <= few:
		return n + ": " + strings.Join(names, ", ")
	}
	return n + ": " + strings.Join(names[:few], ", ") + ", …"
}
