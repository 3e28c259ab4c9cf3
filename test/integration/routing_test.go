package integration

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// routed is one row, by the columns that are not at their defaults, and the record that it has to become.
type routed struct {
	columns, values string

	topic     string        // aggregate type of its topic, see [outbox.topic], or one of the group's topics; default: "order"
	key       string        // default: 42
	noKey     bool          // Kafka's null
	value     string        // SQL for the bytes, of the row itself; default: the column payload as Postgres prints it
	id        string        // header id, if it is not the column
	headers   []string      // all of them as name=value, name alone for null; $id and $position stand for themselves
	partition func(int) int // of the number of partitions; default: by Java's partitioner from the key, or the id without one
	time      string        // produce (default), commit, or RFC 3339
}

// routingGroup is a run of the binary with its settings.
type routingGroup struct {
	name   string
	env    []string
	rows   []routed
	topics []string // further topics, by name
}

// usualHeaders are the headers of a row without headers of its own.
var usualHeaders = []string{"id=$id", "type=placed", "outboxcdc-position=$position"}

// Sizes near a topic's default limit, of bytes that do not compress.
const (
	largeBytes = `(SELECT string_agg(sha256(g::text::bytea), ''::bytea) FROM generate_series(1, 28800) g)`
	largeText  = `(SELECT string_agg(encode(sha256(g::text::bytea), 'hex'), '') FROM generate_series(1, 14400) g)`
)

// The effect of each route setting on a row, with the built binary: topic, key, value, headers in their order,
// partition and time of the record.
func TestRoutingSettings(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"order", "eu.order", "mapped", "orders.v2", "kept", "users", "rest", "outbox"}, partitions: 5, configs: keepsOldRecords})
	o.exec(`ALTER TABLE outbox ALTER id SET DEFAULT gen_random_uuid(), ALTER aggregate_type SET DEFAULT 'order', ALTER aggregate_type DROP NOT NULL,
		ALTER aggregate_id SET DEFAULT '42', ALTER aggregate_id DROP NOT NULL, ALTER event_type SET DEFAULT 'placed', ALTER headers DROP NOT NULL,
		ALTER payload SET DEFAULT '{"total": 9.50}',
		ADD tenant text DEFAULT 'eu', ADD note text, ADD flag boolean DEFAULT true, ADD part int, ADD part8 bigint, ADD k_uuid uuid DEFAULT '1b4e28ba-2fa1-11d2-883f-0016d3cca427',
		ADD k_int int DEFAULT -7, ADD k_bytea bytea DEFAULT '\x00ff7b', ADD p_json json, ADD p_text text, ADD p_bytea bytea,
		ADD at_tz timestamptz, ADD at_plain timestamp, ADD at_int int, ADD at_big bigint, ADD at_num numeric`)
	replace := []string{`OUTBOXCDC_ROUTE_REPLACE_REGEX=(.*)_v(?P<version>\d)`, "OUTBOXCDC_ROUTE_REPLACE_WITH=${1}s.v$version"}
	const nine = "2026-11-21T09:00:00.123Z"
	for _, g := range []routingGroup{
		{"template and map", []string{
			"OUTBOXCDC_ROUTE_TOPIC=" + o.name + ".{tenant}.{aggregate_type}", "OUTBOXCDC_ROUTE_TOPICS=vip=" + o.topic("mapped"),
			"OUTBOXCDC_ROUTE_KEY={k_int}:{aggregate_id}", "OUTBOXCDC_ROUTE_HEADERS=tenant:region,note,flag:on", "OUTBOXCDC_ROUTE_PARTITION=part", stopAtPoison,
		}, []routed{
			{topic: "eu.order", key: "-7:42", headers: []string{"id=$id", "type=placed", "region=eu", "note", "on=t", "outboxcdc-position=$position"}},
			{
				columns: "aggregate_type, tenant, part", values: "'vip', NULL, 4", topic: "mapped", key: "-7:42", partition: func(int) int { return 4 },
				headers: []string{"id=$id", "type=placed", "region", "note", "on=t", "outboxcdc-position=$position"},
			},
			{
				columns: "headers, note, flag, part", values: `'{"trace": "ü \"x\"\n", "n": 1.50, "big": 12345678901234567890.1234567890, "nul": null, "o": {"a": [1, 2]}, "region": "loses"}', '', false, 0`,
				topic: "eu.order", key: "-7:42", partition: func(int) int { return 0 },
				headers: []string{"id=$id", "type=placed", "n=1.50", `o={"a":[1,2]}`, "big=12345678901234567890.1234567890", "nul", "trace=ü \"x\"\n", "region=eu", "note=", "on=f", "outboxcdc-position=$position"},
			},
			{
				columns: "headers, payload", values: `NULL, '{"b":1e400,   "a":[12345678901234567890.1234567890,true,"é\u20ac"]}'`, topic: "eu.order", key: "-7:42",
				headers: []string{"id=$id", "type=placed", "region=eu", "note", "on=t", "outboxcdc-position=$position"},
			},
		}, nil},
		{"regex, keep, json, uuid key, timestamptz", slices.Concat(replace, []string{
			"OUTBOXCDC_ROUTE_UNMATCHED=keep", "OUTBOXCDC_ROUTE_TOPICS=vip=" + o.topic("mapped"),
			"OUTBOXCDC_ROUTE_KEY={k_uuid}", "OUTBOXCDC_ROUTE_TIMESTAMP=at_tz", "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=p_json",
		}), []routed{
			{
				columns: "aggregate_type, p_json, at_tz", values: `'order_v2', '{"b":1e400,   "b" : 12345678901234567890.1234567890 ,"a":[ ]}', '2026-11-21 10:00:00.123456+01'`,
				topic: "orders.v2", key: "1b4e28ba-2fa1-11d2-883f-0016d3cca427", time: nine,
				value: `convert_to('{"b":1e400,   "b" : 12345678901234567890.1234567890 ,"a":[ ]}', 'UTF8')`,
			},
			{
				columns: "aggregate_type, p_json", values: `'` + o.topic("kept") + `', (to_json(` + largeText + `)::text || E'\n\t ')::json`,
				topic: "kept", key: "1b4e28ba-2fa1-11d2-883f-0016d3cca427", value: `convert_to(p_json::text, 'UTF8')`,
			},
			{columns: "aggregate_type", values: "'vip'", topic: "mapped", key: "1b4e28ba-2fa1-11d2-883f-0016d3cca427", value: "NULL"},
		}, nil},
		{"map alone, a topic for the rest, bytea, numeric time", []string{
			"OUTBOXCDC_ROUTE_TOPIC=", "OUTBOXCDC_ROUTE_TOPICS=user=" + o.topic("users"), "OUTBOXCDC_ROUTE_UNMATCHED=" + o.topic("rest"),
			"OUTBOXCDC_ROUTE_KEY={k_bytea}", "OUTBOXCDC_ROUTE_TIMESTAMP=at_num", "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=p_bytea", "OUTBOXCDC_ROUTE_PARTITION=part8", stopAtPoison,
		}, []routed{
			{columns: "aggregate_type, p_bytea, at_num", values: `'user', ` + largeBytes + `, 1795251600.123999`, topic: "users", key: "\x00\xff\x7b", value: "p_bytea", time: nine},
			{columns: "p_bytea, at_num", values: `'', 1795251600123.999`, topic: "rest", key: "\x00\xff\x7b", value: "''::bytea", time: nine},
			{
				columns: "p_bytea, part8, at_num", values: `'\x00ff0a5c27', 3, 1795251600123999.9`, topic: "rest", key: "\x00\xff\x7b", value: "'\\x00ff0a5c27'::bytea",
				partition: func(int) int { return 3 }, time: nine,
			},
			{columns: "k_bytea, p_bytea", values: `'', '\x5c78'`, topic: "rest", key: "", value: `'\x5c78'::bytea`},
		}, nil},
		{"empty for null, blank kept, id of its own, number of partitions, integer time", []string{
			"OUTBOXCDC_ROUTE_NULL_PAYLOAD=empty", "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=p_text", "OUTBOXCDC_ROUTE_ID={table}:{id}", "OUTBOXCDC_ROUTE_KEY={k_int}",
			"OUTBOXCDC_ROUTE_PARTITIONS=" + o.topic("order") + "=2", "OUTBOXCDC_ROUTE_TIMESTAMP=at_int",
		}, []routed{
			{key: "-7", value: "''::bytea", id: "outbox:$id", partition: javaPartition("-7", 2)},
			{columns: "p_text, at_int, k_int", values: `' ', 1795251600, 2147483647`, key: "2147483647", value: "convert_to(' ', 'UTF8')", id: "outbox:$id", time: "2026-11-21T09:00:00Z", partition: javaPartition("2147483647", 2)},
			{columns: "k_int", values: `3`, key: "3", value: "''::bytea", id: "outbox:$id", partition: javaPartition("3", 2)},
		}, nil},
		{"bigint time", []string{"OUTBOXCDC_ROUTE_TIMESTAMP=at_big"}, []routed{
			{columns: "at_big", values: "1795251600", time: "2026-11-21T09:00:00Z"},
			{columns: "at_big", values: "1795251600123", time: nine},
			{columns: "at_big", values: "1795251600123999", time: nine},
			{columns: "at_big", values: "NULL"},
			{columns: "at_big", values: "0"},
		}, nil},
		{"envelope", []string{"OUTBOXCDC_ROUTE_FORMAT=envelope", "OUTBOXCDC_ROUTE_FIELDS=occurredAt={at_tz},tenant={tenant},part={part}"}, []routed{
			{
				columns: "at_tz, headers", values: `'2026-11-21 10:00:00+01', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'`,
				headers: []string{"id=$id", "type=placed", "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "outboxcdc-position=$position"},
				value: `convert_to('{"aggregateId":"42","aggregateType":"order","eventId":"' || id || '","eventType":"placed","occurredAt":"2026-11-21T09:00:00Z","part":null,' ||
					'"schemaVersion":1,"tenant":"eu","traceId":"4bf92f3577b34da6a3ce929d0e0e4736","data":{"total": 9.50}}', 'UTF8')`,
			},
		}, nil},
		{"CloudEvents, structured", []string{
			"OUTBOXCDC_ROUTE_FORMAT=cloudevents_structured", "OUTBOXCDC_ROUTE_FIELDS=source=//shop.example/orders,time={at_tz}",
		}, []routed{{
			columns: "at_tz", values: `'2026-11-21 10:00:00+01'`,
			headers: []string{"id=$id", "type=placed", "outboxcdc-position=$position", "content-type=application/cloudevents+json; charset=UTF-8"},
			value: `convert_to('{"specversion":"1.0","id":"' || id || '","datacontenttype":"application/json","source":"//shop.example/orders","subject":"42",' ||
				'"time":"2026-11-21T09:00:00Z","type":"placed","data":{"total": 9.50}}', 'UTF8')`,
		}}, nil},
		{"CloudEvents, binary", []string{
			"OUTBOXCDC_ROUTE_FORMAT=cloudevents_binary", "OUTBOXCDC_ROUTE_FIELDS=source=//shop.example/orders,time={at_tz},tenant={tenant}",
		}, []routed{{
			columns: "at_tz", values: `'2026-11-21 10:00:00+01'`,
			headers: []string{
				"id=$id", "type=placed", "outboxcdc-position=$position", "ce_specversion=1.0", "ce_id=$id", "content-type=application/json",
				"ce_source=//shop.example/orders", "ce_subject=42", "ce_tenant=eu", "ce_time=2026-11-21T09:00:00Z", "ce_type=placed",
			},
		}}, nil},
		{"plain timestamp, topic of the table", []string{"OUTBOXCDC_ROUTE_TIMESTAMP=at_plain", "OUTBOXCDC_ROUTE_TOPIC=" + o.name + ".{table}"}, []routed{
			{columns: "at_plain", values: "'2026-11-21 09:00:00.123999'", topic: "outbox", time: nine},
		}, nil},
		// Last: the slot moves without a position record, and a deduplicating daemon would refuse to continue.
		{"null key, blank payload, commit time, no headers of ours", []string{
			"OUTBOXCDC_ROUTE_NULL_KEY=allow", "OUTBOXCDC_ROUTE_BLANK_PAYLOAD=null", "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=p_text", "OUTBOXCDC_ROUTE_TIMESTAMP=commit",
			"OUTBOXCDC_OUTBOX_COLUMNS_HEADERS=", "OUTBOXCDC_OUTBOX_COLUMNS_EVENT_TYPE=", "OUTBOXCDC_ROUTE_POSITION_HEADER=false", atLeastOnce, stopAtPoison,
		}, []routed{
			{columns: "aggregate_id, p_text", values: "NULL, " + largeText, noKey: true, value: "convert_to(p_text, 'UTF8')", headers: []string{"id=$id"}, time: "commit"},
			{columns: "aggregate_id, p_text", values: "NULL, 'x'", noKey: true, value: "convert_to('x', 'UTF8')", headers: []string{"id=$id"}, time: "commit"},
			{columns: "aggregate_id, p_text", values: "NULL, 'x'", noKey: true, value: "convert_to('x', 'UTF8')", headers: []string{"id=$id"}, time: "commit"},
			{columns: "aggregate_id, p_text", values: "NULL, 'x'", noKey: true, value: "convert_to('x', 'UTF8')", headers: []string{"id=$id"}, time: "commit"},
			{columns: "p_text", values: `E' \t\r\n'`, value: "NULL", headers: []string{"id=$id"}, time: "commit"},
			{columns: "p_text", values: `''`, value: "NULL", headers: []string{"id=$id"}, time: "commit"},
			{columns: "p_text", values: `' x '`, value: "convert_to(' x ', 'UTF8')", headers: []string{"id=$id"}, time: "commit"},
		}, nil},
	} {
		t.Run(g.name, func(t *testing.T) { o.testRoutes(t, g) })
	}
}

// A partitioned outbox is routed by its root's name and the root's columns, for any leaf.
func TestRoutingOfPartitions(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{types: []string{"outbox"}})
	o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	o.leaf("leaf_2", 100, 200)
	o.exec(`ALTER TABLE outbox ALTER aggregate_type SET DEFAULT 'order', ALTER aggregate_id SET DEFAULT '42', ALTER event_type SET DEFAULT 'placed',
		ALTER payload SET DEFAULT '{}', ADD tenant text`)
	o.testRoutes(t, routingGroup{"leaves", []string{
		"OUTBOXCDC_ROUTE_TOPIC=" + o.name + ".{table}", "OUTBOXCDC_ROUTE_ID={table}:{id}", "OUTBOXCDC_ROUTE_KEY={tenant}/{n}", "OUTBOXCDC_ROUTE_PARTITION=n", stopAtPoison,
	}, []routed{
		{columns: "n, tenant", values: "1, 'a'", topic: "outbox", id: "outbox:$id", key: "a/1", partition: func(int) int { return 1 }},
	}, nil})
	o.testRoutes(t, routingGroup{"leaves", []string{
		"OUTBOXCDC_ROUTE_TOPIC=" + o.name + ".{table}", "OUTBOXCDC_ROUTE_ID={table}:{id}", "OUTBOXCDC_ROUTE_KEY={tenant}/{n}",
	}, []routed{
		{columns: "n, tenant", values: "2, 'a'", topic: "outbox", id: "outbox:$id", key: "a/2"},
		{columns: "n, tenant", values: "102, 'b'", topic: "outbox", id: "outbox:$id", key: "b/102"},
	}, nil})
}

// javaPartition returns the partition of a key by another client's implementation of Java's partitioner.
func javaPartition(key string, of int) func(int) int {
	return func(int) int {
		return kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: []byte(key)}, of)
	}
}

// testRoutes writes the rows of a group, each in a transaction, runs the binary over them, and compares every record
// completely.
func (o *outbox) testRoutes(t *testing.T, g routingGroup) {
	t.Helper()
	ids := make([]string, len(g.rows))
	// Written before the daemon starts: the time of a commit and that of sending differ.
	written := o.now()
	for i, row := range g.rows {
		sql := "INSERT INTO outbox (" + row.columns + ") VALUES (" + row.values + ")"
		if row.columns == "" {
			sql = "INSERT INTO outbox DEFAULT VALUES"
		}
		must(t, o.admin.scan(sql+" RETURNING id::text", &ids[i]))
	}
	started := o.now()
	r := o.startStreaming(g.env...)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	got := map[string][]kafkatest.Record{}
	records, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), slices.Concat(o.follow.topics, g.topics)...)
	must(t, err)
	for _, rec := range records {
		id, _ := headerOf(rec, "id")
		id = id[strings.LastIndexByte(id, ':')+1:]
		got[id] = append(got[id], rec)
	}
	for i, row := range g.rows {
		if len(got[ids[i]]) != 1 {
			t.Errorf("row %d (%s: %.100s): %d records, want 1", i, row.columns, row.values, len(got[ids[i]]))
			continue
		}
		for _, what := range o.differences(g, row, ids[i], got[ids[i]][0], written, started) {
			t.Errorf("row %d (%s: %.100s): %s", i, row.columns, row.values, what)
		}
	}
}

// now returns the server's time in whole milliseconds, as records have it.
func (o *outbox) now() (now time.Time) {
	o.t.Helper()
	must(o.t, o.admin.scan("SELECT date_trunc('milliseconds', clock_timestamp())", &now))
	return now
}

// differences returns everything that is wrong in the record of a row.
func (o *outbox) differences(g routingGroup, row routed, id string, rec kafkatest.Record, written, started time.Time) (all []string) {
	differs := func(what string, got, want any) {
		all = append(all, fmt.Sprintf("%s is %.500s, want %.500s", what, fmt.Sprint(got), fmt.Sprint(want)))
	}
	orElse := func(s, other string) string {
		if s == "" {
			return other
		}
		return s
	}
	want := o.topic(orElse(row.topic, "order"))
	if slices.Contains(g.topics, row.topic) {
		want = row.topic
	}
	if rec.Topic != want {
		differs("topic", rec.Topic, want)
	}
	key := []byte(row.key)
	switch {
	case row.noKey:
		key = nil
	case row.key == "" && !strings.Contains(row.columns, "k_bytea"):
		key = []byte("42")
	}
	if !bytes.Equal(rec.Key, key) || (rec.Key == nil) != (key == nil) {
		differs("key", fmt.Sprintf("%q (null: %v)", rec.Key, rec.Key == nil), fmt.Sprintf("%q (null: %v)", key, key == nil))
	}
	var value []byte
	must(o.t, o.admin.scan("SELECT "+orElse(row.value, "convert_to(payload::text, 'UTF8')")+" FROM outbox WHERE id = '"+id+"'", &value))
	if !bytes.Equal(rec.Value, value) || (rec.Value == nil) != (value == nil) {
		differs("value", fmt.Sprintf("%d bytes %.200q (null: %v)", len(rec.Value), rec.Value, rec.Value == nil), fmt.Sprintf("%d bytes %.200q (null: %v)", len(value), value, value == nil))
	}
	header := strings.ReplaceAll(orElse(row.id, "$id"), "$id", id)
	if want, got := expectedHeaders(row.headers, header), headersOf(rec); !slices.Equal(got, want) {
		differs("list of headers", got, want)
	}
	partition := row.partition
	if partition == nil {
		by := rec.Key
		if by == nil {
			by = []byte(header)
		}
		partition = javaPartition(string(by), o.partitions(rec.Topic))
	}
	if want := partition(0); int(rec.Partition) != want {
		differs("partition", rec.Partition, want)
	}
	got := rec.Timestamp
	switch orElse(row.time, "produce") {
	case "produce":
		if got.Before(started) || time.Since(got) < 0 {
			differs("time", got, fmt.Sprint("that of sending, after ", started))
		}
	case "commit":
		if got.Before(written) || got.After(started) {
			differs("time", got, fmt.Sprint("that of the commit, from ", written, " to ", started))
		}
	default:
		if want, err := time.Parse(time.RFC3339, row.time); err != nil || !got.Equal(want) {
			differs("time", got.UTC(), row.time)
		}
	}
	return all
}

// headersOf returns the headers as name=value, or name alone for null; a valid position is $position.
func headersOf(rec kafkatest.Record) (list []string) {
	for _, h := range rec.Headers {
		_, err := parsePosition(string(h.Value))
		switch {
		case h.Value == nil:
			list = append(list, h.Key)
		case h.Key == "outboxcdc-position" && err == nil:
			list = append(list, h.Key+"=$position")
		default:
			list = append(list, h.Key+"="+string(h.Value))
		}
	}
	return list
}

func expectedHeaders(list []string, id string) []string {
	if list == nil {
		list = usualHeaders
	}
	list = slices.Clone(list)
	for i := range list {
		list[i] = strings.ReplaceAll(list[i], "$id", id)
	}
	return list
}

// partitions returns the number of a topic's partitions.
func (o *outbox) partitions(topic string) int {
	o.t.Helper()
	ends, err := kafkatest.OpenLogEnds(o.kafka.Brokers())
	must(o.t, err)
	defer ends.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := ends.Read(ctx, topic)
	must(o.t, err)
	return len(all)
}
