package inbox_test

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/inbox"
)

func eventOf(t *testing.T, value string, headers ...string) (inbox.Event, error) {
	t.Helper()
	return inbox.ReadEvent("orders", []byte("k"), []byte(value), func(name string) (string, bool) {
		for i := 0; i < len(headers); i += 2 {
			if headers[i] == name {
				return headers[i+1], true
			}
		}
		return "", false
	})
}

// TestOrigin: the origin is the database, whatever else changes between a record and its repeat.
func TestOrigin(t *testing.T) {
	for name, c := range map[string]struct {
		headers []string
		want    string
	}{
		"of the daemon":               {[]string{"outboxcdc-position", "2:7:5:s:1:3:0000000000000050:9"}, "7:5"},
		"of another slot":             {[]string{"outboxcdc-position", "2:7:5:t:1:3:0000000000000050:9"}, "7:5"},
		"after a failover":            {[]string{"outboxcdc-position", "2:7:5:s:2:4:0000000000000040:0"}, "7:5"},
		"after a restore":             {[]string{"outboxcdc-position", "2:7:5:s:3:2:0000000000000040:0"}, "7:5"},
		"recovered":                   {[]string{inbox.Recovered, "run", "outboxcdc-position", "2:7:5:s:1:3:0000000000000001:9"}, "7:5"},
		"replayed":                    {[]string{inbox.Replayed, "run", "outboxcdc-origin", "7:5"}, "7:5"},
		"retried":                     {[]string{inbox.Retried, "dead:0:1", "outboxcdc-origin", "7:5"}, "7:5"},
		"of another database":         {[]string{"outboxcdc-position", "2:7:6:s:1:3:0000000000000050:9"}, "7:6"},
		"of another server":           {[]string{"outboxcdc-position", "2:8:5:s:1:3:0000000000000050:9"}, "8:5"},
		"version 1 has no database":   {[]string{"outboxcdc-position", "1:7:3:0000000000000050:9"}, ""},
		"without a position":          {nil, ""},
		"of a random id: none needed": {[]string{"id", "0f8fad5b-d9cb-469f-a165-70867728950e", "outboxcdc-position", "2:7:5:s:1:3:0000000000000050:9"}, ""},
	} {
		e, err := eventOf(t, "v", append(c.headers, "id", "12")...)
		if err != nil || e.Origin != c.want {
			t.Errorf("%s: %q, %v; want %q", name, e.Origin, err, c.want)
		}
	}
}

func TestReadEvent(t *testing.T) {
	plain, err := eventOf(t, "v", "id", "12")
	if err != nil || plain.Topic != "orders" || plain.ID != "12" || plain.Command != "" || plain.Content == 0 {
		t.Errorf("%+v, %v", plain, err)
	}
	for _, command := range []string{inbox.Recovered, inbox.Replayed, inbox.Retried} {
		if e, err := eventOf(t, "v", "id", "12", command, "run"); err != nil || e.Command != command || e.Content != plain.Content {
			t.Errorf("%s: %+v, %v", command, e, err)
		}
	}
	if e, _ := eventOf(t, "w", "id", "12"); e.Content == plain.Content {
		t.Error("another value has the same content")
	}
	seen := map[int64]int{}
	for i, c := range [][2][]byte{{[]byte("k"), []byte("v")}, {[]byte("kv"), {}}, {[]byte("kv"), nil}, {nil, []byte("kv")}, {{}, []byte("kv")}} {
		e, err := inbox.ReadEvent("orders", c[0], c[1], func(name string) (string, bool) { return "12", name == "id" })
		if before, ok := seen[e.Content]; ok || err != nil {
			t.Errorf("record %d has the content of record %d; %v", i, before, err)
		}
		seen[e.Content] = i
	}
	for text, headers := range map[string][]string{
		"outbox.columns.id": {}, "no header id": {"id", ""},
		"update the module": {"id", "12", "outboxcdc-position", "3:x"}, "another version": {"id", "12", "outboxcdc-position", "2:x"},
	} {
		if _, err := eventOf(t, "v", headers...); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v; want an error with %q", headers, err, text)
		}
	}
}

// TestRandomIDs: only an id that nothing can generate again decides alone.
func TestRandomIDs(t *testing.T) {
	for id, want := range map[string]bool{
		"0f8fad5b-d9cb-469f-a165-70867728950e": true,
		"0F8FAD5B-D9CB-469F-A165-70867728950E": true,
		"0192f3c8-7b1a-7c3e-8d2f-0123456789ab": true,  // version 7
		"a6edc906-2f9f-5fb2-a373-efac406f0ef2": false, // version 5: a hash of a name
		"0f8fad5b-d9cb-869f-a165-70867728950e": false, // version 8: anything
		"0f8fad5bd9cb469fa16570867728950e":     false,
		"0f8fad5b-d9cb-469f-a165-70867728950g": false,
		"0f8fad5b-d9cb-469f-a165-7086772895-e": false,
		"12":                                   false,
	} {
		if e, err := eventOf(t, "v", "id", id); err != nil || (e.Content == 0) != want {
			t.Errorf("%s: %+v, %v; random: want %t", id, e, err, want)
		}
	}
}

func TestSchemaNames(t *testing.T) {
	s := inbox.Store{Marks: "billing.marks", Events: `odd"name`}
	for _, want := range []string{`CREATE TABLE "billing"."marks" (`, `CREATE TABLE "odd""name" (`, `CREATE INDEX ON "odd""name" (`} {
		if !strings.Contains(s.Schema(), want) {
			t.Errorf("want %s in:\n%s", want, s.Schema())
		}
	}
	if !strings.Contains(new(inbox.Store).Schema(), `CREATE TABLE "inbox_marks" (`) {
		t.Error("the default name is missing")
	}
}

// TestReusedIDError: the message says what differs, and names both settings.
func TestReusedIDError(t *testing.T) {
	stored := inbox.Event{Topic: "t", ID: "5", Origin: "7:5", Content: 1}
	for origin, contents := range map[string]map[int64]string{
		"7:5": {2: "this record has another key or value."},
		"8:5": {1: `this record has the origin "8:5" (system id and database OID), not "7:5".`, 2: `not "7:5", and another key or value.`},
	} {
		for content, want := range contents {
			text := (&inbox.ReusedIDError{Event: inbox.Event{Topic: "t", ID: "5", Origin: origin, Content: content}, Stored: stored}).Error()
			for _, want := range []string{want, `topic "t", id "5"`, "HandleReused", "DropReused"} {
				if !strings.Contains(text, want) {
					t.Errorf("%s\nwant %q in it", text, want)
				}
			}
		}
	}
}
