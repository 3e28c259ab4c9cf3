package golden

import (
	"slices"

	"github.com/outboxcdc/outboxcdc/test/debezium"
)

// texts are values of every kind of text.
var texts = []string{
	"NULL", "''", "' '", `E' \t\r\n'`, "'plain'", "' spaces around  '", "'ünïcödé ß €'", "'日本語 🎉 𝄞'", `'"quoted" ''and'' \backslash\n'`,
	`E'\x01\x02\x7f control'`, `E'line\nfeed\r\n'`, `U&'\00A0\3000'`, `'<a href="x">&amp;</a>'`, "'hex:00'",
	"repeat('0123456789', 90000)",
}

// jsons are values of JSON, as json stores and jsonb prints them.
var jsons = []string{
	"NULL", "'null'", `'""'`, "'{}'", "'[]'", "'true'", `'" "'`, `'{"b":1,   "a" : [1,2 , {"c":null}]}'`, `'{"a": 1, "a": 2}'`,
	`'{"n": 9007199254740993, "i": 123456789012345678901234567890}'`, `'{"n": 1e400, "m": 1E-7, "d": 1.0, "z": -0, "x": 0.10}'`,
	`'{"u": "ünïcödé 🎉 𝄞", "k 🎉": 1}'`, `'{"e": "\u00e9\ud83c\udf89 \/ \" \\ \b\f\n\r\t"}'`, `'{"html": "<a>&''"}'`, `'"just text"'`, "'42'",
	`('{"big": "' || repeat('0123456789', 90000) || '"}')::json`,
}

// ordinary has the cases of every outbox.
func ordinary() []*builder {
	// Only what a connector needs; the publication is for all tables, as the connector creates it.
	b := newSet("defaults", "")
	delete(b.Connector, "extended.headers.enabled")
	b.Setup = append(b.Setup, "CREATE TABLE other (id uuid PRIMARY KEY, aggregatetype text)")
	b.row("one row", "", "").row("another key", "aggregateid", "'ü 7'")
	first, a := b.insert("aggregateid", "'1'")
	second, c := b.insert("aggregateid", "'2'")
	third, d := b.insert("aggregateid, payload", "'1', '[3]'")
	b.tx("several rows in a transaction", []string{a, c, d}, first, second, third)
	first, a = b.insert("payload", `'{"version": 1}'`)
	b.tx("updated and deleted in the same transaction", []string{a}, first, "UPDATE outbox SET payload = '2' WHERE id = '"+a+"'", "DELETE FROM outbox WHERE id = '"+a+"'")
	b.tx("updated later", nil, "UPDATE outbox SET payload = '3', aggregateid = '43' WHERE id = '"+uuid(1)+"'")
	b.tx("deleted later", nil, "DELETE FROM outbox WHERE id = '"+uuid(2)+"'")
	b.tx("rolled back to a savepoint", nil, "SAVEPOINT s", b.insertID("'"+uuid(900)+"'", "", ""), "ROLLBACK TO s")
	b.tx("another table", nil, "INSERT INTO other VALUES ('"+uuid(901)+"', 'defaults')")
	b.rows++
	b.tx("the primary key is updated", []string{uuid(902)}, "UPDATE outbox SET id = '"+uuid(902)+"' WHERE id = '"+uuid(3)+"'")
	b.row("a key of NULL", "aggregateid", "NULL").row("the last", "", "")

	warned := newSet("op_error", "", optionPrefix+"table.op.invalid.behavior", "error")
	warned.row("one row", "", "").tx("updated", nil, "UPDATE outbox SET payload = '3'").row("the last", "", "")

	renamed := newSet("renamed", "", "table.include.list", `sales\.outbox_event`,
		optionPrefix+"table.field.event.id", "event_id", optionPrefix+"table.field.event.key", "customer", optionPrefix+"table.field.event.payload", "body",
		optionPrefix+"table.field.event.type", "kind", optionPrefix+"route.by.field", "aggregate", optionPrefix+"route.topic.replacement", "shop.${routedByValue}.v1").
		topics(5, "shop.renamed.v1")
	renamed.Setup = []string{
		allTables,
		"CREATE SCHEMA sales",
		"CREATE TABLE sales.outbox_event (event_id uuid PRIMARY KEY, aggregate text, customer text, kind text, body text)",
	}
	for i, key := range []string{"a", "b", "c", "d"} {
		id := uuid(i + 1)
		renamed.tx("key "+key, []string{id}, "INSERT INTO sales.outbox_event VALUES ('"+id+"', 'renamed', '"+key+"', 'x', 'body of "+key+"')")
	}

	partitioned := newSet("partitioned", "", "publish.via.partition.root", "true")
	partitioned.usual = append(partitioned.usual, [2]string{"day", "'2026-11-21'"})
	partitioned.Setup = []string{
		"CREATE TABLE outbox (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
		"CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')",
		"CREATE TABLE outbox_2 (payload jsonb, day date NOT NULL, type text, id uuid NOT NULL, aggregateid text, aggregatetype text)",
		"ALTER TABLE outbox ATTACH PARTITION outbox_2 FOR VALUES FROM ('2026-12-01') TO ('2027-01-01')",
		"CREATE PUBLICATION dbz_publication FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)",
	}
	partitioned.row("first leaf", "", "").row("second leaf, other order of columns", "day", "'2026-12-24'").row("first again", "aggregateid", "'7'")

	filled := newSet("column_default", "tenant text DEFAULT 'eu'", optionPrefix+"table.fields.additional.placement", "tenant:header")
	filled.Setup = append(filled.Setup, `ALTER TABLE outbox ALTER aggregateid SET DEFAULT '42', ALTER payload SET DEFAULT '{"default": 1}'`)
	filled.row("values", "tenant", "'us'").row("a key of NULL", "aggregateid", "NULL").row("a payload of NULL", "payload", "NULL").row("a header of NULL", "tenant", "NULL")
	return []*builder{b, warned, renamed, partitioned, filled}
}

// payloads has payloads of every type.
func payloads() []*builder {
	binary := func(name, converter string) *builder {
		b := newSet(name, "", "value.converter", converter).column("payload", "bytea", `'\x00'`)
		return b.each("payload", "NULL", "''", `'\x00ff80'`, "'text'", `'\x20'`, "decode(repeat('00ff', 450000), 'hex')")
	}
	return []*builder{
		newSet("payload_jsonb", "").each("payload", jsons...),
		newSet("payload_json", "").column("payload", "json", "'{}'").each("payload", jsons...),
		newSet("payload_text", "").column("payload", "text", "''").each("payload", texts...),
		newSet("payload_varchar", "").column("payload", "varchar", "''").each("payload", texts[:8]...),
		newSet("payload_char", "").column("payload", "char(6)", "''").each("payload", "NULL", "''", "'abc'", "'abc  '", "'ß€'"),
		newSet("payload_xml", "").column("payload", "xml", "NULL").each("payload", "NULL", "'<a  b=\"1\">&amp;ü</a>'"),
		binary("payload_bytea", debezium.ByteArrayConverter),
		binary("payload_binary", debezium.BinaryConverter),
		newSet("payload_bytea_text", "").column("payload", "bytea", "''").each("payload", "NULL", `'\x00ff'`),
	}
}

// keys has keys of every type, and ids.
func keys() []*builder {
	key := func(name, typ string, values ...string) *builder {
		return newSet("key_"+name, "").column("aggregateid", typ, "NULL").each("aggregateid", slices.Concat(values, []string{"NULL"})...)
	}
	few := texts[1:14]
	id := func(name, typ string, text func(int) string) *builder {
		return newSet("id_"+name, "").ids(typ, text).row("one", "", "").row("two", "", "").row("three", "", "")
	}
	number := func(n int) string { return []string{"", "-7", "0", "9223372036854775807", "42"}[n] }
	nullID := newSet("id_null", "").ids("text", func(n int) string { return []string{"", "first", "", "last"}[n] })
	nullID.row("first", "", "")
	nullID.rows++
	nullID.tx("id NULL", []string{""}, nullID.insertID("NULL", "", "")).row("last", "", "")
	return []*builder{
		key("text", "text", few...), key("varchar", "varchar(40)", few[:9]...), key("char", "char(5)", "'abc'", "'ab  '"),
		key("uuid", "uuid", "'1b4e28ba-2fa1-11d2-883f-0016d3cca427'", "'1B4E28BA-2FA1-11D2-883F-0016D3CCA428'"),
		key("bigint", "bigint", "0", "-7", "9223372036854775807", "-9223372036854775808", "42"),
		key("int", "int", "0", "-7", "2147483647", "42"), key("smallint", "smallint", "0", "-7", "32767"),
		key("numeric", "numeric(20,3)", "0", "-7.5", "12345678901234567.891"), key("bool", "boolean", "true", "false"),
		func() *builder {
			b := key("bytea", "bytea", `'\x00ff80'`, "''", "'text'")
			b.Connector["key.converter"] = debezium.ByteArrayConverter
			return b
		}(),
		id("bigint", "bigint", number), id("int", "int", func(n int) string { return []string{"", "-7", "0", "42"}[n] }),
		id("text", "text", func(n int) string { return []string{"", "plain", "ü 🎉 日本", " spaces "}[n] }), nullID,
	}
}
