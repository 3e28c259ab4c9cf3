package golden

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/debezium"
)

// optionPrefix is the prefix of the event router's options.
const optionPrefix = "transforms.outbox."

// connector returns the configuration common to all sets, with more added.
func connector(more map[string]string) map[string]string {
	all := map[string]string{
		"plugin.name": "pgoutput", "table.include.list": "public.outbox", "snapshot.mode": "no_data",
		"publication.name": "dbz_publication", "publication.autocreate.mode": "disabled", "extended.headers.enabled": "false",
		"key.converter": debezium.StringConverter, "value.converter": debezium.StringConverter,
		"transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
	}
	maps.Copy(all, more)
	return all
}

// options turns pairs of name and value into a map.
func options(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

// allTables creates the publication as a connector does.
const allTables = "CREATE PUBLICATION dbz_publication FOR ALL TABLES"

// builder builds the cases of a set and numbers their rows.
type builder struct {
	Set
	rows  int
	id    func(int) string // text of the n-th id
	usual [][2]string      // columns and their default values
}

// uuid returns the id of the n-th row.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// newSet starts a set with Debezium's table, more columns, and options over connector's. No column has a default:
// Debezium uses it for a value of NULL (see column_default).
func newSet(name, columns string, pairs ...string) *builder {
	if columns != "" {
		columns = ", " + columns
	}
	all := connector(options(pairs...))
	all["topic.prefix"] = "shop_" + name // two connectors with the same prefix disturb each other in one process
	return &builder{
		id: uuid,
		usual: [][2]string{
			{"aggregatetype", "'" + name + "'"}, {"aggregateid", "'42'"}, {"type", "'OrderPlaced'"}, {"payload", `'{"total":  9.50}'`},
		},
		Set: Set{
			Name: name,
			Setup: []string{allTables, "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255), aggregateid varchar(255), type varchar(255), payload jsonb" +
				columns + ")"},
			Connector: all,
			Topics:    map[string]int{"outbox.event." + name: 3},
		},
	}
}

// column changes the type of a column and sets its default value.
func (b *builder) column(name, typ, usual string) *builder {
	b.Setup = append(b.Setup, "ALTER TABLE outbox DROP COLUMN "+name, "ALTER TABLE outbox ADD COLUMN "+name+" "+typ)
	for i := range b.usual {
		if b.usual[i][0] == name {
			b.usual[i][1] = usual
		}
	}
	return b
}

// ids changes the type of ids; text returns the n-th one.
func (b *builder) ids(typ string, text func(int) string) *builder {
	b.id = text
	b.Setup = append(b.Setup, "ALTER TABLE outbox DROP COLUMN id", "ALTER TABLE outbox ADD COLUMN id "+typ)
	return b
}

// insert returns the statement for one more row; columns and values override the defaults.
func (b *builder) insert(columns, values string) (sql, id string) {
	b.rows++
	id = b.id(b.rows)
	return b.insertID("'"+id+"'", columns, values), id
}

func (b *builder) insertID(id, columns, values string) string {
	names, all := []string{"id"}, []string{id}
	given := strings.Split(columns, ", ")
	for _, u := range b.usual {
		if !slices.Contains(given, u[0]) {
			names, all = append(names, u[0]), append(all, u[1])
		}
	}
	if columns != "" {
		names, all = append(names, columns), append(all, values)
	}
	return fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s)", strings.Join(names, ", "), strings.Join(all, ", "))
}

// row adds a case of one row.
func (b *builder) row(name, columns, values string) *builder {
	sql, id := b.insert(columns, values)
	return b.tx(name, []string{id}, sql)
}

// each adds a row for each value of a column.
func (b *builder) each(column string, values ...string) *builder {
	for _, v := range values {
		name := v
		if len(name) > 60 {
			name = name[:60] + "…"
		}
		b.row(name, column, v)
	}
	return b
}

// tx adds a case of several statements.
func (b *builder) tx(name string, ids []string, sql ...string) *builder {
	b.Cases = append(b.Cases, Case{Name: name, SQL: sql, IDs: ids})
	return b
}

// topics replaces the default topic.
func (b *builder) topics(partitions int, names ...string) *builder {
	b.Topics = map[string]int{}
	for _, n := range names {
		b.Topics[n] = partitions
	}
	return b
}

// broken marks the set: Debezium does not get past the last case.
func (b *builder) broken() *builder {
	b.Broken = true
	return b
}

// Sets returns all sets that are recorded.
func Sets() []Set {
	var all []Set
	for _, part := range [][]*builder{ordinary(), payloads(), keys(), placements(), routes(), tombstones(), converters(), broken()} {
		for _, b := range part {
			all = append(all, b.Set)
		}
	}
	return all
}
