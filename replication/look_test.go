package replication

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// aLook is a look at a publication with two outboxes: one with partitions, and one without that has no row of its own.
func aLook() *Look {
	return &Look{
		Horizon:     1 << 33,
		Publication: Part{OID: 1, Rows: "p1/700", Youngest: 700},
		Outboxes:    []Part{{OID: 10, Name: "public.outbox", Rows: "r2/701;pf", Youngest: 701}, {OID: 20, Name: "sales.events", Rows: ";pf"}},
		Members: []Member{
			{OID: 11, Checks: 1, File: 12, Attached: 705},
			{OID: 13, Checks: noTrace, File: 14, Attached: 4294967290},
			{OID: 15, Attached: 706},
			{OID: 20, Checks: isOutbox, File: 21},
		},
		seesAll: 1 << 32,
		all:     "0123456789abcdef",
	}
}

// What happens between two looks is found, whether it is the look or its text that is compared, and nothing else is.
func TestWhatHasHappened(t *testing.T) {
	detach := func(l *Look, i int, checks int16) {
		l.Detached = append(l.Detached, Member{OID: l.Members[i].OID, Checks: checks})
		l.Members = append(l.Members[:i:i], l.Members[i+1:]...)
	}
	for name, c := range map[string]struct {
		before, now func(*Look)
		want        string // reason, and table
	}{
		"nothing":                       {},
		"a transaction":                 {now: func(l *Look) { l.Horizon++; l.all = "fedcba9876543210" }},
		"the publication was altered":   {now: func(l *Look) { l.Publication.Rows = "p1/900" }, want: "altered 0"},
		"a table was removed and added": {now: func(l *Look) { l.Outboxes[0].Rows = "r3/900;pf" }, want: "altered 0"},
		"unlogged, for all tables":      {now: func(l *Look) { l.Outboxes[1].Rows = ";uf" }, want: "altered 0"},
		"a table was replaced":          {now: func(l *Look) { l.Outboxes[0].OID = 30 }, want: "altered 0"},
		"a table was renamed":           {now: func(l *Look) { l.Outboxes[0].Name = "public.box" }},
		"renamed, and altered":          {now: func(l *Look) { l.Outboxes[0].Name, l.Outboxes[0].Rows = "public.box", "r3/900;pf" }, want: "altered 0"},
		"an outbox more": {now: func(l *Look) {
			l.Outboxes = append(l.Outboxes, Part{OID: 30, Name: "n", Rows: "r9/900", Youngest: 1 << 34})
		}},
		"an outbox less": {now: func(l *Look) { l.Outboxes, l.Members = l.Outboxes[1:], l.Members[3:] }},
		"other outboxes": {now: func(l *Look) { l.Outboxes, l.Members = []Part{{OID: 30, Name: "n", Rows: "r9/900"}}, nil }},
		"another, older publication": {now: func(l *Look) {
			l.Publication = Part{OID: 2, Rows: "p2/600", Youngest: 600}
			l.Outboxes[0].Rows = "r4/600;pf"
		}},
		"another, altered before the look": {now: func(l *Look) { l.Publication = Part{OID: 2, Rows: "p2/600", Youngest: 1 << 32} }, want: "altered 0"},
		"another, one was added before it": {now: func(l *Look) { l.Publication = Part{OID: 2, Youngest: 600}; l.Outboxes[1].Youngest = 1 << 32 }, want: "altered 0"},
		"another, altered publication":     {now: func(l *Look) { l.Publication = Part{OID: 2, Rows: "p2/900", Youngest: 1 << 33} }, want: "altered 0"},
		"another, to which one was added":  {now: func(l *Look) { l.Publication = Part{OID: 2, Youngest: 600}; l.Outboxes[1].Youngest = 1 << 33 }, want: "altered 0"},
		"another, without a common outbox": {now: func(l *Look) {
			l.Publication, l.Outboxes, l.Members = Part{OID: 2, Youngest: 1 << 33}, []Part{{OID: 30, Name: "n"}}, nil
		}},
		"another table had its name": {now: func(l *Look) { l.Namesake = 50 }, want: "namesake 50"},
		"messages, another publication": {
			before: func(l *Look) { l.Outboxes, l.Members = nil, nil },
			now:    func(l *Look) { l.Publication, l.Outboxes, l.Members = Part{OID: 2, Youngest: 1 << 33}, nil, nil }, want: "altered 0",
		},
		"a partition was rewritten":             {now: func(l *Look) { l.Members[0].File++ }, want: "rewritten 11"},
		"a partition by hash was rewritten":     {now: func(l *Look) { l.Members[1].File++ }, want: "rewritten 13"},
		"an outbox was rewritten":               {now: func(l *Look) { l.Members[3].File++ }, want: "rewritten 20"},
		"it has had a row of its own for long":  {now: func(l *Look) { l.Members[0].File = 0 }},
		"it has a row of its own no longer":     {before: func(l *Look) { l.Members[0].File = 0 }},
		"a partition is new":                    {now: func(l *Look) { l.Members = append(l.Members, Member{OID: 40, File: 41, Attached: 900}) }},
		"a partition is new and rewritten":      {now: func(l *Look) { l.Members = append(l.Members, Member{OID: 40, File: 41, Rewritten: true}) }, want: "rewritten 40"},
		"a known partition counts by its file":  {now: func(l *Look) { l.Members[0].Rewritten = true }},
		"a CHECK constraint more":               {now: func(l *Look) { l.Members[0].Checks++ }},
		"detached":                              {now: func(l *Look) { detach(l, 0, 1) }},
		"detached, a CHECK constraint less":     {now: func(l *Look) { detach(l, 0, 0) }},
		"detached concurrently":                 {now: func(l *Look) { detach(l, 0, 2) }, want: "detached 11"},
		"detached without a trace":              {now: func(l *Look) { detach(l, 1, 0) }, want: "untraced 13"},
		"detached and dropped":                  {now: func(l *Look) { detach(l, 1, 0); l.Detached = nil }},
		"an outbox less, which has constraints": {now: func(l *Look) { detach(l, 3, 7); l.Outboxes = l.Outboxes[:1] }},
		"detached, attached":                    {now: func(l *Look) { l.Members[0].Attached++ }},
		"detached concurrently, attached":       {now: func(l *Look) { l.Members[0].Attached++; l.Members[0].Checks++ }, want: "reattached 11"},
		"detached without a trace, attached":    {now: func(l *Look) { l.Members[1].Attached = 5 }, want: "reattached 13"},
		"it was not known when it was attached": {before: func(l *Look) { l.Members[1].Attached = 0 }},
		"found before": {
			before: func(l *Look) { l.found = &change{reason: detached, oid: 9, table: `s."a b/c"`} }, want: "detached 9",
		},
		"found under way":        {before: func(l *Look) { l.found = &change{reason: detaching, oid: 9} }, want: "detached 9"},
		"found before, attached": {before: func(l *Look) { l.found = &change{reason: untraced, oid: 11} }, want: "reattached 11"},
		"found before, still a partition": {
			before: func(l *Look) { l.found = &change{reason: rewritten, oid: 11, table: "t"} }, want: "rewritten 11",
		},
	} {
		before, now := aLook(), aLook()
		for l, f := range map[*Look]func(*Look){before: c.before, now: c.now} {
			if f != nil {
				f(l)
			}
		}
		for _, b := range []*Look{before, ParseLook(before.String()), ParseLook(ParseLook(before.String()).String())} {
			got := ""
			if ch := now.since(b); ch != nil {
				got = fmt.Sprintf("%s %d", ch.reason, ch.oid)
				if b.found != nil && ch.table != b.found.table {
					t.Errorf("%s: the table is called %q, not %q", name, ch.table, b.found.table)
				}
				if noted := ParseLook(now.with(ch).String()); now.since(noted) == nil {
					t.Errorf("%s: it is not found again", name)
				}
			}
			if got != c.want {
				t.Errorf("%s: %q, want %q, with the text %s", name, got, c.want, b)
			}
		}
	}
	if aLook().since(nil) != nil {
		t.Error("there was no look before")
	}
}

// The text has everything that is compared, except what is only known of the present. It has no more members than a
// position record can hold.
func TestLookText(t *testing.T) {
	l := aLook()
	got := ParseLook(l.String())
	if got.Horizon != l.Horizon || got.all != l.all || !reflect.DeepEqual(got.Members, l.Members) {
		t.Errorf("%s is read as %+v", l, got)
	}
	l.Members = make([]Member, maxStoredMembers+1)
	if n := len(ParseLook(l.String()).Members); n != 0 {
		t.Errorf("%d members", n)
	}
	ParseLook("f x/ p/ t m f/ / q 1/2/3 f//zz") // another text: nothing is known
}

// Texts of earlier versions have a hash of all rows, and OID and CHECK constraints of each partition. With other
// settings, the hash is removed.
func TestTextOfAnEarlierVersion(t *testing.T) {
	now := aLook()
	for text, want := range map[string]string{
		"0123456789abcdef 11/1 99/0": "", "fedcba9876543210 11/1": "altered", "11/1": "", "": "",
		"0123456789abcdef 7/1": "detached", "7/1": "detached", "0123456789abcdef 7/2": "",
	} {
		now.Detached = []Member{{OID: 7, Checks: 2}}
		got := ""
		if ch := now.since(ParseLook(text)); ch != nil {
			got = ch.reason
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	// An earlier version compares the first word.
	if first, _, _ := strings.Cut(now.String(), " "); first != now.all {
		t.Errorf("the first word is %q", first)
	}
}
