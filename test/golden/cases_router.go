package golden

import "github.com/outboxcdc/outboxcdc/test/debezium"

// columns has each type, with a value that shows how it is printed.
var columns = []struct{ name, typ, value string }{
	{"c_smallint", "smallint", "-7"},
	{"c_int", "int", "2147483647"},
	{"c_bigint", "bigint", "9223372036854775807"},
	{"c_numeric", "numeric", "12.3000"},
	{"c_numeric2", "numeric(10,2)", "12.3"},
	{"c_real", "real", "1.5"},
	{"c_real2", "real", "1e20"},
	{"c_double", "double precision", "0.1"},
	{"c_double2", "double precision", "1e300"},
	{"c_bool", "boolean", "true"},
	{"c_text", "text", "' ünï \" 🎉 '"},
	{"c_empty", "text", "''"},
	{"c_varchar", "varchar(9)", "'x'"},
	{"c_char", "char(4)", "'ab'"},
	{"c_uuid", "uuid", "'1B4E28BA-2fa1-11d2-883f-0016d3cca427'"},
	{"c_date", "date", "'2026-11-21'"},
	{"c_time", "time", "'11:12:13.5'"},
	{"c_timetz", "timetz", "'11:12:13.5+01'"},
	{"c_timestamp", "timestamp", "'2026-11-21 11:12:13.123456'"},
	{"c_timestamp3", "timestamp(3)", "'2026-11-21 11:12:13.123'"},
	{"c_timestamptz", "timestamptz", "'2026-11-21 11:12:13.5+01'"},
	{"c_interval", "interval", "'1 day 02:03:04'"},
	{"c_jsonb", "jsonb", `'{"b":1,  "a":null}'`},
	{"c_json", "json", `'{"b":1,  "a":null}'`},
	{"c_bytea", "bytea", `'\x00ff'`},
	{"c_ints", "int[]", "'{1,2,3}'"},
	{"c_texts", "text[]", `'{a,"b c",NULL}'`},
	{"c_inet", "inet", "'10.0.0.1/8'"},
	{"c_xml", "xml", "'<a/>'"},
	{"c_enum", "mood", "'happy'"},
	{"c_bit", "bit(3)", "B'101'"},
}

// placements has further columns, and the time.
func placements() []*builder {
	headers := newSet("headers", "")
	headers.Setup = append(headers.Setup, "CREATE TYPE mood AS ENUM ('sad', 'happy')")
	var list, names, values string
	for i, c := range columns {
		headers.Setup = append(headers.Setup, "ALTER TABLE outbox ADD "+c.name+" "+c.typ)
		if i > 0 {
			list, names, values = list+", ", names+", ", values+", "
		}
		list, names, values = list+c.name+":header", names+c.name, values+c.value
		if i%2 == 1 {
			list += ":alias" + c.name[1:]
		}
	}
	headers.Connector[optionPrefix+"table.fields.additional.placement"] = list
	headers.row("a value of each type", names, values).row("NULL in each column", "", "")

	few := newSet("headers_text", "tenant text, version int, doc jsonb, ref uuid, n bigint",
		optionPrefix+"table.fields.additional.placement", "type:header:eventType,tenant:HEADER, version:header:v , doc:header,ref:header,n:header")
	few.row("all", "tenant, version, doc, ref, n", `'e u', 3, '{"b":1}', '1b4e28ba-2fa1-11d2-883f-0016d3cca427', -1`).row("NULL", "type", "NULL").row("empty", "type, tenant", "'', ''")

	partition := newSet("partition", "shard int", optionPrefix+"table.fields.additional.placement", "shard:partition,type:header")
	partition.each("shard", "0", "1", "2", "NULL")

	micros := newSet("timestamp", "at timestamp(6), at3 timestamp(3)", optionPrefix+"table.field.event.timestamp", "at")
	micros.each("at", "'2026-11-21 11:12:13.123456'", "'2026-11-21 11:12:13.9999'", "'2001-02-03 04:05:06'", "'1970-01-01 00:00:00'", "NULL")
	millis := newSet("timestamp3", "at3 timestamp(3)", optionPrefix+"table.field.event.timestamp", "at3")
	millis.each("at3", "'2026-11-21 11:12:13.123'", "'2026-11-21 11:12:13'", "NULL")

	return []*builder{headers, few, partition, micros, millis}
}

// routes has routes to topics.
func routes() []*builder {
	odd := newSet("types", "").topics(3, "outbox.event.Types", "outbox.event.types-v2.x-", "outbox.event.TYPES", "outbox.event.types_9")
	odd.each("aggregatetype", "'Types'", "'types-v2.x-'", "'TYPES'", "'types_9'")

	field := newSet("by_field", "tenant text", optionPrefix+"route.by.field", "tenant").topics(2, "outbox.event.by_field_eu", "outbox.event.by_field_us")
	field.each("tenant", "'by_field_eu'", "'by_field_us'")

	by := newSet("by_uuid", "tenant uuid", optionPrefix+"route.by.field", "tenant").topics(2, "outbox.event.1b4e28ba-2fa1-11d2-883f-0016d3cca427")
	by.each("tenant", "'1B4E28BA-2fa1-11d2-883f-0016d3cca427'")

	regex := newSet("regex", "", optionPrefix+"route.topic.regex", `(?<kind>\w+)_v(\d+)`, optionPrefix+"route.topic.replacement", "regex.$2.${kind}s")
	regex.topics(3, "regex.1.orders", "regex.22.a_bs", "regex-unmatched", "xregex_v1x-")
	regex.each("aggregatetype", "'order_v1'", "'a_b_v22'", "'regex-unmatched'", "'xregex_v1x-'")

	literal := newSet("regex_literal", "", optionPrefix+"route.topic.replacement", `all\.events`).topics(3, "all.events")
	literal.row("one", "", "").row("two", "aggregatetype", "'whatever: ü!'")

	plain := newSet("replacement", "", optionPrefix+"route.topic.replacement", "${routedByValue}").topics(3, "replacement")
	plain.row("one", "", "")
	return []*builder{odd, field, by, regex, literal, plain}
}

// tombstones has empty payloads that become tombstones.
func tombstones() []*builder {
	on := []string{optionPrefix + "route.tombstone.on.empty.payload", "true"}
	binary := newSet("tombstone_bytea", "", append(on, "value.converter", debezium.ByteArrayConverter)...).column("payload", "bytea", "''")
	return []*builder{
		newSet("tombstone_text", "", on...).column("payload", "text", "''").each("payload", texts[:14]...),
		newSet("tombstone_jsonb", "", on...).each("payload", jsons[:7]...),
		newSet("tombstone_json", "", on...).column("payload", "json", "'{}'").each("payload", append(jsons[:7:7], "'  {} '")...),
		binary.each("payload", "NULL", "''", `'\x20'`, "'x'"),
	}
}

// converters has converters that frame or change what they write.
func converters() []*builder {
	plain := []string{"key.converter", debezium.JSONConverter, "key.converter.schemas.enable", "false", "value.converter", debezium.JSONConverter, "value.converter.schemas.enable", "false"}
	over := func(pairs ...string) []string { return append(plain[:len(plain):len(plain)], pairs...) }
	keepKey := func(b *builder) *builder { b.Connector["key.converter"] = debezium.StringConverter; return b }
	place := optionPrefix + "table.fields.additional.placement"
	fields := "type:envelope:eventType,version:envelope,aggregateid:envelope:key,flag:envelope,tenant:header"
	rows := func(b *builder) *builder {
		return b.row("all", "version, flag, tenant", "3, true, 'eu'").row("NULL", "type", "NULL").
			row("unicode", "type, payload", `'ü "🎉"', '{"k": "ü 🎉", "n": 1.50}'`).row("payload NULL", "payload", "NULL").
			row("scalar", "payload", "'7'").row("empty object", "payload", "'{}'").
			row("null and empty members", "payload", `'{"a": null, "b": [], "c": {}, "d": ""}'`)
	}
	const more = "version int, flag boolean, tenant text"
	expand := []string{optionPrefix + "table.expand.json.payload", "true"}
	return []*builder{
		newSet("json_jsonb", "", plain...).each("payload", jsons...),
		newSet("json_text", "", plain...).column("payload", "text", "''").each("payload", texts...),
		newSet("json_bytea", "", plain...).column("payload", "bytea", "''").each("payload", "NULL", `'\x00ff'`),
		keepKey(newSet("expand", "", over(expand...)...).each("payload", append(jsons[:9:9], expandable...)...)),
		keepKey(newSet("expand_text", "", expand...).each("payload", jsons[:14]...)),
		rows(keepKey(newSet("envelope", more, over(place, fields)...))),
		rows(keepKey(newSet("envelope_expand", more, over(append(expand, place, fields)...)...))),
		rows(newSet("envelope_text", more, place, fields)),
	}
}

// expandable is JSON that expansion changes, or might.
var expandable = []string{
	`'{"n": 9007199254740993, "d": 1.0, "x": 0.10, "m": 1E-7}'`, `'{"dec": 12345678901234567.891}'`, `'{"u": "ü 🎉", "k 🎉": 1}'`,
	`'{"a": [1, "x"], "b": []}'`, `'{"a": null, "b": {"c": null}}'`, `'{"list": [{"a": 1}, {"b": 2}]}'`, "'42'", `'"text"'`,
}

// broken has cases that stop Debezium.
func broken() []*builder {
	one := func(name, columns string, pairs ...string) *builder { return newSet(name, columns, pairs...).broken() }
	expanded := func(name string) *builder {
		return one(name, "", optionPrefix+"table.expand.json.payload", "true", "value.converter", debezium.JSONConverter, "value.converter.schemas.enable", "false")
	}
	updated := one("stop_update", "", optionPrefix+"table.op.invalid.behavior", "fatal")
	sql, id := updated.insert("", "")
	updated.tx("an update", []string{id}, sql, "UPDATE outbox SET payload = '2'")
	return []*builder{
		one("stop_topic", "").row("an illegal topic", "aggregatetype", "'no topic!'"),
		one("stop_type_null", "").row("a type of NULL", "aggregatetype", "NULL"),
		one("stop_large", "").column("payload", "text", "''").row("too large", "payload", "repeat('0123456789', 200000)"),
		one("stop_time", "at timestamp", optionPrefix+"table.field.event.timestamp", "at").row("before 1970", "at", "'1969-12-31 23:59:59'"),
		one("stop_timestamptz", "at timestamptz", optionPrefix+"table.field.event.timestamp", "at").row("another type of time", "at", "'2026-11-21 11:12:13+00'"),
		one("stop_partition", "shard int", optionPrefix+"table.fields.additional.placement", "shard:partition").row("a partition that is not there", "shard", "7"),
		one("stop_partition_negative", "shard int", optionPrefix+"table.fields.additional.placement", "shard:partition").row("a negative partition", "shard", "-1"),
		one("stop_partition_bigint", "shard bigint", optionPrefix+"table.fields.additional.placement", "shard:partition").row("a bigint", "shard", "1"),
		updated,
		one("stop_column", "", optionPrefix+"table.fields.additional.placement", "nosuch:header").row("a column that is not there", "", ""),
		one("stop_bytes", "", "value.converter", debezium.ByteArrayConverter).row("jsonb by ByteArrayConverter", "", ""),
		expanded("stop_expand_array").row("an array", "payload", "'[1, 2]'"),
		expanded("stop_expand_large").row("an integer beyond 64 bits", "payload", `'{"n": 123456789012345678901234567890}'`),
		one("stop_missing_topic", "").topics(1, "unused").row("no such topic", "", ""),
	}
}
