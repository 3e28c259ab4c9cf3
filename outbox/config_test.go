package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
)

func TestInvalidConfigs(t *testing.T) {
	for want, c := range map[string]outbox.Config{
		`the table "outbox" is not schema.table`:          {Table: "outbox"},
		`the table "public.out box" is not`:               {Table: "public.out box"},
		`the table "public.outbox; DROP" is not`:          {Table: "public.outbox; DROP"},
		`the table "\"a.b" is not`:                        {Table: `"a.b`},
		"Columns.AggregateID is required":                 {Columns: outbox.Columns{Payload: "p"}},
		"Columns.Payload is required":                     {Columns: outbox.Columns{AggregateID: "a"}},
		`the name "a" is used twice`:                      {Columns: outbox.Columns{AggregateID: "a", Payload: "a"}},
		`the name "a\x00" has a NUL`:                      {Columns: outbox.Columns{AggregateID: "a\x00", Payload: "p"}},
		"DeleteRows requires Columns.ID":                  {Columns: outbox.Columns{AggregateID: "a", Payload: "p"}, DeleteRows: true},
		"PayloadType is 4":                                {PayloadType: 4},
		"MaxBytes is -1":                                  {MaxBytes: -1},
		"with MessagePrefix there is no table":            {MessagePrefix: "p", DeleteRows: true},
		`MessagePrefix "p\x00" has a NUL`:                 {MessagePrefix: "p\x00"},
		"Table, Columns, PayloadType and DeleteRows must": {MessagePrefix: "p", Table: "public.outbox"},
		"PayloadType and DeleteRows must not be set":      {MessagePrefix: "p", PayloadType: outbox.Text},
		"Columns, PayloadType and DeleteRows must not":    {MessagePrefix: "p", Columns: outbox.BundledColumns()},
	} {
		if _, err := outbox.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want %q", c, err, want)
		}
	}
}

func TestStatements(t *testing.T) {
	e := outbox.Event{AggregateType: "a", AggregateID: "1", Type: "t"}
	for want, c := range map[string]outbox.Config{
		`INSERT INTO "public"."outbox" ("id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers") SELECT e."id", e."aggregate_type", e."aggregate_id", e."event_type", e."payload", e."headers" FROM json_populate_recordset(NULL::"public"."outbox", $1::json) AS e`: {},
		`INSERT INTO "My ""Schema"."outbox" ("A", "p") SELECT e."A", e."p" FROM json_populate_recordset(NULL::"My ""Schema"."outbox", $1::json) AS e`: {
			Table: `"My ""Schema".OutBox`, Columns: outbox.Columns{AggregateID: "A", Payload: "p"},
		},
	} {
		s, err := newWriter(t, c).Statements(context.Background(), e)
		if err != nil || len(s) != 1 || s[0].SQL != want || len(s[0].Args) != 1 {
			t.Errorf("%v, %+v\nwant %s", err, s, want)
		}
	}
	s, err := newWriter(t, outbox.Config{DeleteRows: true}).Statements(context.Background(), e, e)
	const want = `DELETE FROM "public"."outbox" WHERE "id" = ANY (ARRAY(SELECT e."id" FROM json_populate_recordset(NULL::"public"."outbox", $1::json) AS e))`
	if err != nil || len(s) != 2 || s[1].SQL != want || strings.Count(s[1].Args[0].(string), `{"id":"`) != 2 {
		t.Errorf("%v, %+v", err, s)
	}
	if s, err := newWriter(t, outbox.Config{}).Statements(context.Background()); err != nil || s != nil {
		t.Errorf("without events: %v, %v; want no statement", s, err)
	}
}
