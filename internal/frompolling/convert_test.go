package frompolling

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// table is a table of the given columns: "name type", with ! for NOT NULL and + for a sequence.
func table(columns ...string) *Table {
	t := &Table{Schema: "public", Name: "outbox"}
	for _, c := range columns {
		name, typ, _ := strings.Cut(c, " ")
		base := strings.TrimRight(typ, "!+")
		t.Columns = append(t.Columns, Column{Name: name, Type: base, Base: base, NotNull: strings.Contains(typ, "!"), Sequence: strings.Contains(typ, "+")})
	}
	return t
}

// withValues gives the last column values.
func (t *Table) withValues(complete bool, from string, list ...string) *Table {
	t.Columns[len(t.Columns)-1].Values = Values{List: list, Known: complete || len(list) > 0, Complete: complete, From: from}
	return t
}

// load converts a table and loads what is printed.
func load(t *testing.T, table *Table, o Options) (*Result, *config.Config) {
	t.Helper()
	r, err := Convert(table, o)
	must(t, err)
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	must(t, os.WriteFile(file, []byte(r.YAML), 0o600))
	c, err := config.Load([]string{file}, nil)
	if err != nil {
		t.Fatalf("what it prints does not load: %v\n%s", err, r.YAML)
	}
	return r, c
}

// The four shapes, and what authors vary in them. The comments name what was inferred.
func TestShapes(t *testing.T) {
	bundled := config.Columns{ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type", Payload: "payload", CreatedAt: "created_at"}
	with := func(change func(*config.Columns)) config.Columns {
		c := bundled
		change(&c)
		return c
	}
	const defaultTopic = "outbox.event.{aggregate_type}"
	for _, test := range []struct {
		name       string
		table      *Table
		columns    config.Columns
		order      []string
		topic, key string
		where      string
		comments   []string
	}{
		{
			name: "time mark",
			table: table("id uuid!", "aggregate_type text!", "aggregate_id text!", "event_type text!", "payload jsonb!", "headers jsonb", "created_at timestamptz!",
				"published_at timestamptz"),
			columns: with(func(c *config.Columns) { c.Headers = "headers" }), topic: defaultTopic, key: "{aggregate_id}", where: "published_at IS NULL",
			comments: []string{
				"id: id # uuid, by its name", "No column orders the rows", "the table does not say to which topics the poller writes",
				`outboxcdc backfill --dry-run --where "published_at IS NULL"`, "#   none", "published_at IS NULL: the column is taken for the time",
			},
		},
		{
			name: "status with retries",
			table: table("id int8!+", "aggregatetype varchar!", "aggregateid varchar!", "type varchar!", "payload text!", "occurred_at timestamp!", "retry_count int4!", "next_retry_at timestamptz",
				"last_error text", "trace_id text", "status varchar!").withValues(false, "all rows, by an index", "DEAD", "FAILED", "PENDING", "SENT"),
			columns: config.Columns{ID: "id", AggregateType: "aggregatetype", AggregateID: "aggregateid", EventType: "type", Payload: "payload", CreatedAt: "occurred_at"},
			order:   []string{"id"}, topic: defaultTopic, key: "{aggregate_id}", where: "status IN ('FAILED', 'PENDING')",
			comments: []string{
				"because a sequence gives its values", "not chosen, because the poller would not send these rows either: 'DEAD'", "a row that failed was not sent: 'FAILED'",
				"#   retry_count (int4): only the poller needs it", "#   next_retry_at (timestamptz): only the poller needs it", "#   trace_id (text): unknown; to send it as a header",
			},
		},
		{
			name: "status of an enumeration, and a time",
			table: table("id uuid!", "aggregate_type text!", "aggregate_id text!", "event_type text!", "payload jsonb!", "created_at timestamptz!", "sent_at timestamptz",
				"status enum").withValues(true, "the labels of its type", "PENDING", "IN_PROGRESS", "HELD", "DONE", "CANCELLED"),
			columns: bundled, topic: defaultTopic, key: "{aggregate_id}",
			where:    "(status IN ('PENDING', 'IN_PROGRESS', …) OR status IS NULL AND sent_at IS NULL)",
			comments: []string{"unknown: 'HELD'; add them", "not chosen, because the poller would not send these rows either: 'CANCELLED'", "status may be NULL; then the next column decides"},
		},
		{
			name: "flag",
			table: table("event_id uuid!", "entity_type text!", "entity_id int8!", "event_name text!", "data json!", "metadata hstore", "inserted_at timestamptz!", "is_processed bool!",
				"priority int4", "available_at timestamptz"),
			columns: config.Columns{ID: "event_id", AggregateType: "entity_type", AggregateID: "entity_id", EventType: "event_name", Payload: "data", CreatedAt: "inserted_at"},
			topic:   defaultTopic, key: "{aggregate_id}", where: "is_processed IS NOT TRUE",
			comments: []string{
				"#   metadata (hstore): its name would fit a setting, but its type does not", "outboxcdc sends each event at once", "in the order of their commits",
				`headers: "" # no such column was found`,
			},
		},
		{
			name:    "message with a position, deleted after sending",
			table:   table("position int8!+", "message_id uuid!", "topic text!", "key text", "body bytea!", "headers jsonb", "enqueued_at timestamptz!"),
			columns: config.Columns{ID: "message_id", AggregateType: "topic", AggregateID: "key", Payload: "body", Headers: "headers", CreatedAt: "enqueued_at"},
			order:   []string{"position"}, topic: "{aggregate_type}", key: "{aggregate_id}", where: "position > …",
			comments: []string{"No column marks the rows that were sent", "leave --where out", "column topic is taken for the whole name of the topic", `event_type: ""`},
		},
		{
			name: "topic and key beside the aggregate",
			table: table("id uuid!", "aggregate_type text!", "aggregate_id uuid!", "event_type text!", "payload text!", "topic text", "partition_key text", "created_at timestamptz!", "seq int8!+",
				"processed_at timestamptz"),
			columns: bundled, order: []string{"seq"}, topic: "{topic}", key: "{partition_key}", where: "processed_at IS NULL",
			comments: []string{"Column topic may be NULL: such an event is poison (no_route)", "Column partition_key may be NULL", "remove this line if the key is aggregate_id"},
		},
		{
			name: "names of .NET",
			table: table("Id uuid!", "AggregateType text!", "AggregateId text!", "EventType text!", "Payload text!", "CreatedAt timestamptz!", "ProcessedOn timestamptz", `Say"s text`,
				"no\nevil:\x1b text"),
			columns: config.Columns{ID: "Id", AggregateType: "AggregateType", AggregateID: "AggregateId", EventType: "EventType", Payload: "Payload", CreatedAt: "CreatedAt"},
			topic:   defaultTopic, key: "{aggregate_id}", where: `"ProcessedOn" IS NULL`,
			comments: []string{`backfill --where '"ProcessedOn" IS NULL'`},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, c := load(t, test.table, Options{})
			if c.Outbox.Columns != test.columns {
				t.Errorf("columns %+v\nwant    %+v", c.Outbox.Columns, test.columns)
			}
			if !slices.Equal(c.Outbox.Order, test.order) || c.Route.Topic != test.topic || c.Route.Key != test.key || c.Outbox.Table != "public.outbox" {
				t.Errorf("order %q, topic %q, key %q, table %q", c.Outbox.Order, c.Route.Topic, c.Route.Key, c.Outbox.Table)
			}
			if r.Where != test.where {
				t.Errorf("where %q, want %q", r.Where, test.where)
			}
			for _, text := range test.comments {
				if !strings.Contains(r.YAML, text) {
					t.Errorf("%q is missing", text)
				}
			}
			if t.Failed() {
				t.Log(r.YAML)
			}
		})
	}
}

// Which rows are pending, in tables of which less is known. What is not known is left to a person: a condition that
// is wrong loses rows, or sends them again.
func TestPending(t *testing.T) {
	const all = "all rows"
	for _, test := range []struct {
		columns  []string
		values   Values // of the last column
		preset   string // default of the last column
		where    string
		comments []string
	}{
		{columns: []string{"status int2!"}, values: Values{List: []string{"0", "1", "2"}}, where: "…", comments: []string{"the value with which a row begins is not among them"}},
		{columns: []string{"status int2!"}, values: Values{List: []string{"0", "1"}}, preset: "0", where: "status IN ('0', …)", comments: []string{"a row begins with the default of the column: '0'", "unknown: '1'"}},
		{columns: []string{"status text!"}, values: Values{List: []string{"PENDING"}}, where: "status IN ('PENDING')", comments: []string{"run config from-polling again: the condition below names the values of status"}},
		{columns: []string{"status text!"}, values: Values{From: "they could not be read: permission denied"}, where: "…", comments: []string{"its values are not known: they could not be read: permission denied"}},
		{columns: []string{"status text!"}, values: Values{}, where: "…", comments: []string{"status has no values (from all rows)"}},
		{columns: []string{"status text!"}, values: Values{}, preset: "'NEW'::text", where: "status IN ('NEW')"},
		{columns: []string{"status text!"}, values: Values{List: []string{"SENT"}}, preset: "'it''s new'::text", where: "status IN ('it''s new')"},
		{columns: []string{"status text!"}, values: Values{List: []string{"SENT"}}, preset: "upper('new'::text)", where: "…"},
		{columns: []string{"status text!"}, values: Values{List: []string{"SENT", "DEAD"}, Complete: true}, where: "…", comments: []string{"with which a row begins is not among them"}},
		{columns: []string{"status text!"}, values: Values{List: []string{"NEW", "PUBLISHED", "DONE"}}, where: "status IN ('NEW', …)", comments: []string{"more than one of them may mean that a row was sent"}},
		{columns: []string{"status text!"}, values: Values{List: []string{"NEW", "PUBLISHED", "published"}}, where: "status IN ('NEW')"},
		{columns: []string{"status text"}, values: Values{List: []string{"NEW", "SENT"}}, where: "(status IS NULL OR status IN ('NEW'))", comments: []string{"status may be NULL, which is no mark"}},
		{columns: []string{"status text!"}, values: Values{List: []string{"SENDING", "SENT"}}, where: "status IN ('SENDING', …)", comments: []string{"with which a row begins is not among them"}},
		{columns: []string{"status text!"}, values: Values{List: []string{"NEW", "SENDING", "SENT"}}, where: "status IN ('NEW', 'SENDING')"},
		{columns: []string{"sent_at timestamptz", "status text"}, values: Values{List: []string{"NEW", "SENT"}}, where: "(status IN ('NEW') OR status IS NULL AND sent_at IS NULL)"},
		{columns: []string{"state text!", "status text!"}, values: Values{List: []string{"NEW", "SENT"}}, where: "…", comments: []string{"state, status: each of them may be the mark"}},
		{columns: []string{"status text!"}, values: Values{List: []string{"NEW", "FAILED", "SENT", "DELIVERED"}}, where: "status IN ('NEW', 'FAILED', …)"},
		// A time counts only without a status, also if the status is not understood.
		{columns: []string{"published_at timestamptz", "status int2!"}, values: Values{List: []string{"1"}}, where: "…"},
		{columns: []string{"published_at timestamptz!", "status text!"}, values: Values{List: []string{"new", "sent"}}, where: "status IN ('new')", comments: []string{"They do not count: published_at"}},
		{columns: []string{"published_at timestamptz!", "status text"}, values: Values{List: []string{"new", "sent"}}, where: "(status IS NULL OR status IN ('new'))"},
		{columns: []string{"sent_at timestamptz", "delivered_at timestamptz", "status text!"}, values: Values{List: []string{"new", "sent"}}, where: "status IN ('new')"},
		{columns: []string{"abandoned_at timestamptz", "status text!"}, values: Values{List: []string{"new", "sent"}}, where: "status IN ('new')", comments: []string{"They do not count: abandoned_at"}},
		// Names.
		{columns: []string{"published_at timestamptz!"}, where: "…", comments: []string{"published_at is NOT NULL, so that rows that were not sent have another value"}},
		{columns: []string{"sent_ts int8"}, where: "sent_ts IS NULL"},
		{columns: []string{"DateProcessedUtc timestamp"}, where: `"DateProcessedUtc" IS NULL`},
		{columns: []string{"is_sent bool!"}, where: "is_sent IS NOT TRUE"},
		{columns: []string{"publication_date timestamptz"}, where: "…"},
		{columns: []string{"created timestamptz!", "publication_date timestamptz!"}, where: ""},
		// What the poller has given up is not pending; what failed is.
		{columns: []string{"sent_at timestamp", "is_dead bool!", "cancelled_on timestamp"}, where: "sent_at IS NULL AND is_dead IS NOT TRUE AND cancelled_on IS NULL"},
		{columns: []string{"sent_at timestamp", "failed bool!"}, where: "sent_at IS NULL", comments: []string{"failed does not count, because a row that failed was not sent"}},
		{columns: []string{"sent_at timestamp", "deleted_at timestamp!"}, where: "…"},
		{columns: []string{"deleted_at timestamp"}, where: "deleted_at IS NULL"},
		// Columns that could be marks leave the condition to a person, and others do not.
		{columns: []string{"gone bool"}, where: "…", comments: []string{"these columns could: gone"}},
		{columns: []string{"kafka_offset int8"}, where: "…"},
		{columns: []string{"published_by uuid"}, where: "…"},
		{columns: []string{"sent_at timestamp", "gone bool"}, where: "sent_at IS NULL", comments: []string{"Do these columns mark rows as well? They do not count: gone"}},
		{columns: []string{"tenant text!", "trace_id text", "locked_at_utc timestamp", "next_attempt_date timestamp", "is_locked bool", "attempts int4", "updated_on timestamp!", "priority int2"}, where: ""},
		{columns: []string{"seq int8!+"}, where: "seq > …", comments: []string{"leave --where out"}},
	} {
		table := table(append([]string{"id uuid!", "aggregate_type text!", "aggregate_id text!", "payload jsonb!"}, test.columns...)...)
		last := &table.Columns[len(table.Columns)-1]
		last.Values, last.Default = test.values, test.preset
		if last.Values.From == "" {
			last.Values.From, last.Values.Known = all, true
		}
		r, _ := load(t, table, Options{})
		if r.Where != test.where || r.Open != strings.Contains(test.where, "…") {
			t.Errorf("%v %+v: where %q, want %q:\n%s", test.columns, test.values, r.Where, test.where, r.YAML)
		}
		if want := "#   outboxcdc backfill\n"; strings.Contains(r.YAML, want) != (test.where == "") {
			t.Errorf("%v: a command without --where, or none:\n%s", test.columns, r.YAML)
		}
		for _, text := range test.comments {
			if !strings.Contains(r.YAML, text) {
				t.Errorf("%v: %q is missing in:\n%s", test.columns, text, r.YAML)
			}
		}
	}
}

// A table that is partitioned by what its poller updates.
func TestPartitionKeyWarning(t *testing.T) {
	for key, want := range map[string]bool{"status": true, "published_at": true, "is_processed": true, "next_retry_at": true, "id": false, "created_at": false, "aggregate_type": false, "day": false} {
		table := table("id uuid!", "aggregate_type text!", "aggregate_id text!", "payload jsonb!")
		table.PartitionKey = []string{"id", key}
		if r, _ := load(t, table, Options{}); strings.Contains(r.YAML, "WARNING: the table is partitioned by "+key+".") != want {
			t.Errorf("%s: want %v\n%s", key, want, r.YAML)
		}
	}
}

func TestColumnsThatAreMissing(t *testing.T) {
	odd := table("nr int8!+", "kind text!", "ref text!", "blob bytea!", "payload int4", "created_at date", "extra text")
	odd.Columns = append(odd.Columns, Column{Name: "event_id", Type: "uuid", Base: "uuid", Generated: true})
	_, err := Convert(odd, Options{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"outbox.columns.id could name (looked for id, eventid", "--column id=COLUMN", "--column aggregate_type=COLUMN", "--column aggregate_id=COLUMN", "--column payload=COLUMN", "the table has nr, kind, ref",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
	given := map[string]string{"id": "nr", "aggregate_type": "kind", "aggregate_id": "ref", "payload": "blob", "headers": ""}
	r, c := load(t, odd, Options{Columns: given, Topic: "shop.{aggregate_type}"})
	if want := (config.Columns{ID: "nr", AggregateType: "kind", AggregateID: "ref", Payload: "blob"}); c.Outbox.Columns != want || c.Route.Topic != "shop.{aggregate_type}" {
		t.Errorf("%+v", c.Outbox.Columns)
	}
	for _, text := range []string{"id: nr # int8, given by --column", "event_id (uuid): it is a generated column", "created_at (date): its name would fit a setting"} {
		if !strings.Contains(r.YAML, text) {
			t.Errorf("%q is missing in:\n%s", text, r.YAML)
		}
	}
	for _, test := range []struct{ setting, column, want string }{
		{"body", "blob", "--column body=blob: write one of id, aggregate_type"},
		{"payload", "Blob", "table public.outbox has no such column, only nr, kind"},
		{"payload", "", "outbox.columns.payload is required"},
	} {
		if _, err := Convert(odd, Options{Columns: map[string]string{test.setting: test.column}}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("--column %s=%s: %v", test.setting, test.column, err)
		}
	}
}

// With --topic, a table needs no aggregate type, unless the topic has it.
func TestOneTopic(t *testing.T) {
	plainTable := table("id uuid!", "aggregate_id text!", "payload json!")
	withTopic := table("id uuid!", "aggregate_id text!", "payload json!", "topic text!")
	for _, test := range []struct {
		table          *Table
		topic          string
		columns        map[string]string
		typ, wantTopic string
		err            string
	}{
		{table: plainTable, err: "or, if all events go to one topic, name the topic with --topic"},
		{table: plainTable, topic: "orders", wantTopic: "orders"},
		{table: plainTable, topic: "orders.{aggregate_id}", wantTopic: "orders.{aggregate_id}"},
		{table: plainTable, topic: "x.{aggregate_type}", err: "or leave {aggregate_type} out of --topic"},
		{table: plainTable, topic: "x.{aggregate_type}", columns: map[string]string{"aggregate_type": ""}, err: "outbox.columns.aggregate_type is required, or leave"},
		{table: plainTable, columns: map[string]string{"aggregate_type": ""}, err: "outbox.columns.aggregate_type is required; or"},
		{table: plainTable, topic: "orders", columns: map[string]string{"aggregate_type": "aggregate_id"}, typ: "aggregate_id", wantTopic: "orders"},
		{table: withTopic, typ: "topic", wantTopic: "{aggregate_type}"},
		{table: withTopic, columns: map[string]string{"aggregate_type": ""}, wantTopic: "{topic}"},
		{table: withTopic, topic: "orders", wantTopic: "orders"},
	} {
		o := Options{Topic: test.topic, Columns: test.columns}
		if test.err != "" {
			if _, err := Convert(test.table, o); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v: %v", o, err)
			}
			continue
		}
		if r, c := load(t, test.table, o); c.Outbox.Columns.AggregateType != test.typ || c.Route.Topic != test.wantTopic {
			t.Errorf("%+v: type %q, topic %q\n%s", o, c.Outbox.Columns.AggregateType, c.Route.Topic, r.YAML)
		}
	}
}

// Names that would end a comment or be read as something else stay names.
func TestNamesAreQuoted(t *testing.T) {
	odd := table("id uuid!", "null text!", "key\n# text!", "payload json!")
	odd.Schema, odd.Name = "My Schema", `Out"box`
	_, c := load(t, odd, Options{Columns: map[string]string{"aggregate_type": "null", "aggregate_id": "key\n#"}})
	s := c.Sources()[0]
	if schema, name := s.Name(); schema != "My Schema" || name != `Out"box` || s.Columns.AggregateType != "null" || s.Columns.AggregateID != "key\n#" {
		t.Errorf("%+v", s)
	}
}

func TestCheckedValues(t *testing.T) {
	for def, want := range map[string][]string{
		`CHECK ((status = ANY (ARRAY['A'::text, 'it''s'::text])))`:                                               {"A", "it's"},
		`CHECK (((status)::text = ANY ((ARRAY['A'::character varying, 'B'::character varying])::text[])))`:       {"A", "B"},
		`CHECK (((status)::text = ANY (ARRAY[('A'::character varying)::text, ('B'::character varying)::text])))`: {"A", "B"},
		`CHECK ((("Sta""tus")::text = ANY ((ARRAY['A'::character varying])::text[])))`:                           {"A"},
		`CHECK ((status <> ALL (ARRAY['A'::text, 'B'::text])))`:                                                  nil,
		`CHECK (((status = ANY (ARRAY['A'::text])) OR (status = 'B'::text)))`:                                    nil,
		`CHECK ((length(status) = 3))`:                                                                           nil,
		`CHECK (((status = ANY (ARRAY['A'::text, 'B'::text])) OR (length(status) = ANY (ARRAY[1, 2]))))`:         nil,
		`CHECK ((lower(status) = ANY (ARRAY['a'::text, 'b'::text])))`:                                            nil,
	} {
		if got := checkedValues(def); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, want %q", def, got, want)
		}
	}
}

// An id whose values come from the application orders nothing.
func TestOrderByID(t *testing.T) {
	for typ, want := range map[string][]string{"int8!": nil, "int8!+": {"id"}, "uuid!": nil} {
		r, c := load(t, table("id "+typ, "aggregate_type text!", "aggregate_id text!", "payload jsonb!"), Options{})
		if !slices.Equal(c.Outbox.Order, want) || strings.Contains(r.YAML, "No column orders the rows") != (want == nil) {
			t.Errorf("%s: %q\n%s", typ, c.Outbox.Order, r.YAML)
		}
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
