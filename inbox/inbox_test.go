package inbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/inbox"
)

func position(t *testing.T, text string) inbox.Position {
	t.Helper()
	p, err := inbox.ParsePosition(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPositionOrder(t *testing.T) {
	ordered := []string{
		"1:7:1:0000000000000050:9",
		"1:7:1:0000000000000050:10", // not compared as text
		"1:7:1:00000000000000b0:0",
		"1:7:2:00000000000000a8:0", // a failover goes back in LSNs
		"1:7:10:00000000000000a8:0",
		"1:7:10:00000001000000a7:0",       // the LSN's upper half
		"2:7:5:s:0:10:00000001000000a8:0", // the daemon was updated
		"2:7:5:s:1:9:0000000000000090:0",  // a restore goes back in timelines
		"2:7:5:s:1:9:0000000000000090:1",
		"2:7:5:s:2:9:0000000000000090:1", // the same position of a restored copy
		"2:7:5:s:3:1:0000000000000001:0",
	}
	for i, a := range ordered {
		if text := position(t, a).String(); text != a {
			t.Errorf("%s was printed as %s", a, text)
		}
		for j, b := range ordered {
			at, last := position(t, b), position(t, a)
			if at.Epoch == 0 && last.Epoch > 0 {
				continue // see TestUnknownEpoch
			}
			after, err := new(inbox.Store).IsNew(at, inbox.Mark{Position: last})
			if err != nil || after != (j > i) {
				t.Errorf("%s after %s: %v, %v", b, a, after, err)
			}
		}
	}
}

// TestUnknownEpoch: a daemon without a position record sends epoch 0 (or version 1) after other epochs. Its records
// are new if they are after the mark by timeline and LSN, and so are records with an epoch after them.
func TestUnknownEpoch(t *testing.T) {
	for _, c := range []struct {
		mark, record string
		isNew        bool
	}{
		{"2:7:5:s:3:2:0000000000000050:0", "2:7:5:s:0:2:0000000000000051:0", true},
		{"2:7:5:s:3:2:0000000000000050:0", "2:7:5:s:0:2:0000000000000050:0", false},
		{"2:7:5:s:3:2:0000000000000050:0", "1:7:2:0000000000000051:0", true},
		{"2:7:5:s:3:2:0000000000000050:0", "1:7:2:0000000000000050:0", false},
		{"2:7:5:s:0:2:0000000000000051:0", "2:7:5:s:3:2:0000000000000052:0", true},
		{"2:7:5:s:0:4:0000000000000051:0", "2:7:5:s:4:2:0000000000000010:0", true},
		{"1:7:4:0000000000000051:0", "2:7:5:s:1:2:0000000000000010:0", true},
	} {
		var mark inbox.Mark
		mark.Advance(position(t, c.mark))
		if isNew, err := new(inbox.Store).IsNew(position(t, c.record), mark); err != nil || isNew != c.isNew {
			t.Errorf("%s after %s: new %t, %v", c.record, c.mark, isNew, err)
		}
	}
}

// TestSlots: slots and databases of one server have no common order. The mark has the last position of each, and
// version 1 counts as any.
func TestSlots(t *testing.T) {
	var store inbox.Store
	var mark inbox.Mark
	take := func(text string, want bool) {
		t.Helper()
		p := position(t, text)
		isNew, err := store.IsNew(p, mark)
		if err != nil || isNew != want {
			t.Errorf("%s after %v and %v: new %t, %v", text, mark.Position, mark.Former, isNew, err)
		}
		if isNew {
			mark.Advance(p)
		}
	}
	take("1:7:1:0000000000000050:0", true)
	take("2:7:5:a:0:1:0000000000000050:0", false) // the same event
	take("2:7:5:a:0:1:0000000000000051:0", true)
	take("1:7:1:0000000000000050:0", false)
	take("2:7:6:a:0:1:0000000000000010:0", true) // another database
	take("2:7:5:b:0:1:0000000000000010:0", true) // another slot
	take("2:7:5:a:0:1:0000000000000051:0", false)
	take("2:7:6:a:0:1:0000000000000010:0", false)
	take("2:7:5:a:0:1:0000000000000052:0", true)
	take("2:7:5:b:0:1:0000000000000010:0", false)
	take("2:7:5:b:0:1:0000000000000011:0", true)
	if len(mark.Former) != 2 {
		t.Errorf("the last positions of other slots are %v", mark.Former)
	}
}

// TestDuplicateWithAnOrigin: a record of version 1 is repeated by an updated daemon.
func TestDuplicateWithAnOrigin(t *testing.T) {
	var store inbox.Store
	var mark inbox.Mark
	for _, text := range []string{"1:7:1:0000000000000050:0", "1:7:1:0000000000000051:0", "2:7:5:s:0:1:0000000000000052:0", "2:7:5:s:0:1:0000000000000053:0"} {
		mark.Advance(position(t, text))
	}
	for text, isError := range map[string]bool{
		"2:7:5:s:0:1:0000000000000051:0": false, "1:7:1:0000000000000052:0": false,
		"2:7:5:s:0:1:0000000000000051:1": true, "1:7:1:0000000000000052:1": true,
	} {
		if isNew, err := store.IsNew(position(t, text), mark); isNew || (err != nil) != isError {
			t.Errorf("%s: new %t, %v", text, isNew, err)
		}
	}
	mark.Accepted = []inbox.Position{position(t, "1:7:1:0000000000000051:1")}
	accepted := position(t, "2:7:5:s:0:1:0000000000000051:1")
	if isNew, err := store.IsNew(accepted, mark); err != nil || !isNew {
		t.Errorf("an accepted record: %t, %v", isNew, err)
	}
	if mark.Advance(accepted); len(mark.Accepted) != 0 {
		t.Errorf("it is still accepted: %v", mark.Accepted)
	}
}

func TestPositionRefused(t *testing.T) {
	for text, want := range map[string]string{
		"3:7:1:0000000000000050:9":                      "version 3",
		"3:new:format":                                  "update the module",
		"2:7:1:0000000000000050:9":                      "or 2:",
		"2:7:0:s:1:1:0000000000000050:9":                "no database",
		"2:7:5::1:1:0000000000000050:9":                 "no name of a slot",
		"2:7:5:a b:1:1:0000000000000050:9":              "no name of a slot",
		"2:7:5:s:-1:1:0000000000000050:9":               "invalid syntax",
		"2:0:5:s:1:1:0000000000000050:9":                "no system id",
		"":                                              "want 1:",
		"1:7:1:50:9":                                    "16 hex digits",
		"1:7:1:000000000000005g:9":                      "invalid syntax",
		"1:7:1:0000000000000050:4294967296":             "out of range",
		"1:0:1:0000000000000050:9":                      "no system id",
		"1:18446744073709551616:1:0000000000000050:9":   "out of range",
		"1:7:1:0000000000000050:9:another field at end": "want 1:",
	} {
		if _, err := inbox.ParsePosition(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", text, err, want)
		}
	}
}

func TestSystems(t *testing.T) {
	old, successor, other := position(t, "1:7:3:0000000000000050:9"), position(t, "1:8:1:0000000000000010:0"), position(t, "1:9:1:0000000000000010:0")
	store := inbox.Store{Systems: []uint64{7, 8}}
	if after, err := store.IsNew(successor, inbox.Mark{Position: old}); err != nil || !after {
		t.Errorf("the successor's position: %v, %v", after, err)
	}
	// The mark keeps the last position of each system.
	mark := inbox.Mark{Position: old}
	mark.Advance(successor)
	later := old
	later.Ordinal++
	for p, want := range map[inbox.Position]bool{old: false, later: true, successor: false} {
		if isNew, err := store.IsNew(p, mark); err != nil || isNew != want {
			t.Errorf("%v after the successor: %v, %v", p, isNew, err)
		}
	}
	if mark.Advance(later); len(mark.Former) != 1 || mark.Former[0] != successor {
		t.Errorf("the former positions are %v", mark.Former)
	}
	for name, c := range map[string]struct {
		store   inbox.Store
		p, mark inbox.Position
		has     []string
	}{
		"unlisted":                    {inbox.Store{}, successor, old, []string{"system 8", "system 7", "Store.Systems to {7, 8}"}},
		"a third one":                 {store, other, old, []string{"system 9"}},
		"listed, the mark's is not":   {store, old, other, []string{"system 9"}},
		"only the mark's is listed":   {inbox.Store{Systems: []uint64{7}}, successor, old, []string{"ByID"}},
		"only the record's is listed": {inbox.Store{Systems: []uint64{8}}, successor, old, []string{"ByID"}},
	} {
		_, err := c.store.IsNew(c.p, inbox.Mark{Position: c.mark})
		var other *inbox.OtherSystemError
		if !errors.As(err, &other) || other.Mark != c.mark || other.Record != c.p {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range c.has {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v; want %q in it", name, err, text)
			}
		}
	}
}

// A record that a command has sent has no place in the order, even if it has a position.
func TestReadHeaders(t *testing.T) {
	const text = "1:7:1:0000000000000050:9"
	for _, command := range []string{"", inbox.Recovered, inbox.Replayed, inbox.Retried} {
		headers := map[string]string{"id": "a", "outboxcdc-position": text, command: "run 1"}
		get := func(key string) (string, bool) { v, ok := headers[key]; return v, ok }
		want := inbox.Event{ID: "a", Command: command}
		if command == "" {
			want.Position = position(t, text)
		}
		if got, err := inbox.ReadHeaders(get); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", command, got, err, want)
		}
	}
	headers := map[string]string{"outboxcdc-position": "2:x"}
	if _, err := inbox.ReadHeaders(func(key string) (string, bool) { v, ok := headers[key]; return v, ok }); err == nil {
		t.Error("a position of another version was accepted")
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

// A duplicate has the position of a record that was handled. The mark remembers the last ones, so a record between
// them that was not handled is noticed: another slot writes to the topic, or its key was in another partition.
func TestOrderError(t *testing.T) {
	var store inbox.Store
	var mark inbox.Mark
	at := func(lsn int) inbox.Position { return inbox.Position{System: 7, Timeline: 1, CommitLSN: uint64(lsn)} }
	for lsn := 10; lsn <= 1000; lsn += 10 {
		mark.Advance(at(lsn))
	}
	for lsn, want := range map[int]string{1001: "new", 1000: "duplicate", 995: "error", 370: "duplicate", 371: "error", 369: "duplicate", 5: "duplicate"} {
		isNew, err := store.IsNew(at(lsn), mark)
		got := "duplicate"
		var order *inbox.OrderError
		switch {
		case errors.As(err, &order):
			got = "error"
		case err != nil:
			t.Error(err)
		case isNew:
			got = "new"
		}
		if got != want {
			t.Errorf("%d after 10, 20 … 1000: %s, want %s", lsn, got, want)
		}
	}
	// A record that was accepted is new once, and the mark stays.
	mark.Accepted = []inbox.Position{at(995)}
	if isNew, err := store.IsNew(at(995), mark); err != nil || !isNew {
		t.Errorf("an accepted record: %v, %v", isNew, err)
	}
	accepted := mark
	accepted.Advance(at(995))
	for lsn, want := range map[int]bool{995: false, 1000: false, 1001: true} {
		if isNew, err := store.IsNew(at(lsn), accepted); err != nil || isNew != want {
			t.Errorf("%d after an accepted record: %v, %v", lsn, isNew, err)
		}
	}
	if accepted.Position != at(1000) || len(accepted.Accepted) != 0 {
		t.Errorf("the mark is %v, with %v accepted", accepted.Position, accepted.Accepted)
	}
	mark.Accepted = nil
	if len(mark.Recent) != 64 {
		t.Errorf("%d positions are remembered, want 64", len(mark.Recent))
	}
	mark.Advance(inbox.Position{System: 8, Timeline: 1, CommitLSN: 1})
	if len(mark.Recent) != 1 {
		t.Errorf("%d positions are remembered after a change of the system, want 1", len(mark.Recent))
	}
}
