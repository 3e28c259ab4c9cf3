package sql

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

var update = flag.Bool("update", false, "rewrite testdata/*.sql; commit only a difference that you understand")

func defaults() Params {
	return Params{
		Database: "shop", Role: "outboxcdc", Publication: "outboxcdc", Slot: "outboxcdc", Timeout: time.Minute,
		Tables: []Table{{Schema: "public", Name: "outbox", Columns: bundled}},
	}
}

var bundled = Columns{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"}

// severalTables has several tables, one of them partitioned, and messages.
func severalTables() Params {
	p := defaults()
	p.Tables = append(p.Tables, Table{Schema: "sales", Name: "events", Columns: bundled, Partitioned: true}, Table{Schema: "sales", Name: "more", Columns: bundled})
	p.Messages = "it's"
	return p
}

func messageParams() Params {
	p := defaults()
	p.Tables, p.Messages = nil, "outboxcdc"
	return p
}

// pollingParams has what `setup sql --no-slot` changes.
func pollingParams() Params {
	p := defaults()
	p.NoSlot = true
	return p
}

func oddNames() Params {
	return Params{
		Role: `Out"box`, Publication: `p"; DROP TABLE x; --`, Slot: "s_1", Timeout: 1500 * time.Millisecond,
		Tables: []Table{{
			Schema: "My Schema", Name: "Out\nbox'", Partitioned: true,
			Columns: Columns{ID: "eventId", AggregateType: "Typ", AggregateID: "key", EventType: "Typ", Payload: "payload"},
		}},
	}
}

// ringParams has two rings.
func ringParams() Params {
	p := defaults()
	p.Tables[0].Ring, p.Tables[0].Partitioned = 8, true
	p.Tables = append(p.Tables, Table{Schema: "My Schema", Name: `Out"box'`, Columns: bundled, Ring: 3, Hourly: true, Partitioned: true})
	return p
}

// sharedParams has a table that two daemons share.
func sharedParams() Params {
	p := defaults()
	if err := p.Share(2); err != nil {
		panic(err)
	}
	return p
}

// besideParams has such a table beside one that it is to replace.
func besideParams() Params {
	p := sharedParams()
	p.Beside, p.NoSlot = true, true
	return p
}

// Each partition is in the publication of exactly one daemon, whatever the number of daemons.
func TestShards(t *testing.T) {
	for shards := 1; shards <= Leaves; shards++ {
		p := defaults()
		must(t, p.Share(shards))
		seen := map[string]int{}
		for n := range shards {
			s := p.Shard(n)
			if len(s.Tables) == 0 {
				t.Errorf("%d of %d has no table", n, shards)
			}
			for _, leaf := range s.Tables {
				seen[leaf.String()]++
			}
			seen[s.Publication], seen["slot "+s.Slot] = seen[s.Publication]+1, seen["slot "+s.Slot]+1
		}
		for name, n := range seen {
			if n != 1 {
				t.Errorf("%d daemons: %d times %s", shards, n, name)
			}
		}
		if len(seen) != Leaves+2*shards {
			t.Errorf("%d daemons: %v", shards, seen)
		}
	}
	for _, bad := range []func(*Params) int{
		func(*Params) int { return 0 },
		func(*Params) int { return Leaves + 1 },
		func(p *Params) int { p.Messages = "m"; return 2 },
		func(p *Params) int { p.Tables = append(p.Tables, p.Tables[0]); return 2 },
		func(p *Params) int { p.Tables = nil; return 2 },
		func(p *Params) int { p.Tables[0].Columns.AggregateID = ""; return 2 },
		func(p *Params) int { p.Tables[0].Ring = 3; return 2 },
		func(p *Params) int { p.Slot = strings.Repeat("s", 55); return 16 }, // s…_15_of_16
	} {
		p := defaults()
		if err := p.Share(bad(&p)); err == nil || !strings.HasPrefix(err.Error(), "--shards") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// TestGolden compares the rendered SQL with testdata.
func TestGolden(t *testing.T) {
	for name, p := range map[string]Params{"default": defaults(), "odd": oddNames(), "several": severalTables(), "messages": messageParams(), "polling": pollingParams(), "ring": ringParams(), "shared": sharedParams(), "beside": besideParams()} {
		for _, major := range []int{14, 17} {
			st, err := Setup(p, major)
			must(t, err)
			compareGolden(t, fmt.Sprintf("testdata/setup_%s_%d.sql", name, major), st.String())
		}
	}
}

// A hand-over names the objects of both numbers of daemons.
func TestHandOver(t *testing.T) {
	odd := oddNames()
	odd.Messages = ""
	must(t, odd.Share(1))
	for name, test := range map[string]struct {
		p    Params
		from int
	}{"shared": {sharedParams(), 4}, "plain": {odd, 0}} {
		st, err := HandOverFrom(test.p, test.from)
		must(t, err)
		compareGolden(t, fmt.Sprintf("testdata/handover_%s.sql", name), st.String())
	}
	for from, words := range map[int]string{-1: "--from -1: write", Leaves + 1: "--from 17: write", 2: "nothing to hand over"} {
		if _, err := HandOverFrom(sharedParams(), from); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%d: %v", from, err)
		}
	}
	inIt := sharedParams()
	inIt.Tables[0].Schema = NewSchema
	if _, err := HandOverFrom(inIt, 0); err == nil || !strings.Contains(err.Error(), "in the schema shards") {
		t.Errorf("a table in the schema of new ones: %v", err)
	}
	if _, err := HandOverFrom(defaults(), 1); err == nil || !strings.Contains(err.Error(), "--shards") {
		t.Errorf("without --shards: %v", err)
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s differs (go test ./sql -update rewrites it):\n%s", file, got)
	}
}

func TestRules(t *testing.T) {
	for major := MinMajor; major <= NewestTested+1; major++ {
		st, err := Setup(defaults(), major)
		must(t, err)
		if got, want := strings.Contains(st.Get(Slot), "failover => true"), major >= 17; got != want {
			t.Errorf("%d: failover %v", major, got)
		}
		script := st.String()
		if strings.Index(script, "CREATE PUBLICATION") > strings.Index(script, "pg_create_logical_replication_slot") {
			t.Errorf("%d: the slot comes before the publication", major)
		}
		if strings.Contains(strings.ToUpper(script), "PASSWORD '") {
			t.Errorf("%d: a password literal", major)
		}
	}
	for _, major := range []int{0, 13} {
		if _, err := Setup(defaults(), major); err == nil {
			t.Errorf("PostgreSQL %d accepted", major)
		}
	}
	newest := pgtest.Majors()[len(pgtest.Majors())-1]
	if newest != strconv.Itoa(NewestTested) {
		t.Errorf("NewestTested is %d, and the newest version of the tests is %s", NewestTested, newest)
	}
	if Untested(NewestTested) != "" || !strings.Contains(Untested(NewestTested+1), "is newer than") {
		t.Errorf("warnings about versions: %q, %q", Untested(NewestTested), Untested(NewestTested+1))
	}
	p := defaults()
	for _, bad := range []string{"a\x00", "a" + bodyDelimiter} {
		p.Tables[0].Columns.Payload = bad
		if _, err := Setup(p, 17); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// A name cannot inject SQL outside of comments and quotes.
func TestNamesStayInTheirPlace(t *testing.T) {
	const evil = "x\n; DROP evil \\'; \"--"
	p := Params{
		Database: evil, Role: evil, Publication: evil, Slot: evil, Messages: evil,
		Tables: []Table{{Schema: evil, Name: evil, Columns: Columns{evil + "1", evil + "2", evil + "3", evil + "4", evil + "5", evil + "6"}}},
	}
	for _, tables := range [][]Table{p.Tables, append(p.Tables, p.Tables...), nil} {
		p.Tables = tables
		st, err := Setup(p, 18)
		must(t, err)
		if st.Get(Function) == "" {
			t.Error("no function")
		}
		if len(tables) == 1 {
			shared := p
			shared.Tables, shared.Messages = append([]Table(nil), tables...), ""
			must(t, shared.Share(3))
			handOver, err := HandOverFrom(shared, 0)
			must(t, err)
			st = append(st, handOver...)
		}
		if rest := outsideQuotes(st.String()); strings.Contains(rest, "evil") {
			t.Errorf("outside of quotes and comments:\n%s", rest)
		}
	}
}

func TestQuoting(t *testing.T) {
	for _, test := range []struct{ what, got, want string }{
		{"ident", ident(`a"b`), `"a""b"`},
		{"literal", literal(`it's`), `'it''s'`},
		{"literal with a backslash", literal(`a\'`), `E'a\\'''`},
		{"comment", comment("a\nb\rc"), "a b c"},
		{"hba word", hbaName("shop_1"), "shop_1"},
		{"hba odd name", hbaName("My\nShop"), `"My Shop"`},
		{"hba keyword", hbaName("replication"), `"replication"`},
		{"hba keyword", hbaName("all"), `"all"`},
	} {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", test.what, test.got, test.want)
		}
	}
}

// outsideQuotes removes comments, "…", '…' and E'…' from SQL.
func outsideQuotes(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "--"):
			for i < len(s) && s[i] != '\n' {
				i++
			}
		case s[i] == '"' || s[i] == '\'':
			quote, escapes := s[i], i > 0 && s[i] == '\'' && s[i-1] == 'E'
			for i++; i < len(s) && s[i] != quote; i++ {
				if escapes && s[i] == '\\' {
					i++
				}
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func TestAddSequence(t *testing.T) {
	table := Table{Schema: "sales", Name: `out"box'`}
	const begin = `BEGIN; SET LOCAL lock_timeout = '5s'; ALTER TABLE "sales"."out""box'" ADD COLUMN "seq" bigint NOT NULL DEFAULT 0; `
	const identity = begin + `ALTER TABLE "sales"."out""box'" ALTER COLUMN "seq" DROP DEFAULT; ALTER TABLE "sales"."out""box'" ALTER COLUMN "seq" ADD GENERATED ALWAYS AS IDENTITY; COMMIT`
	if got := AddSequence(&table); got != identity {
		t.Error(got)
	}
	table.Partitioned = true
	const sequence = begin + `CREATE SEQUENCE "sales"."out""box'_seq"; GRANT USAGE ON SEQUENCE "sales"."out""box'_seq" TO PUBLIC; ` +
		`ALTER TABLE "sales"."out""box'" ALTER COLUMN "seq" SET DEFAULT nextval('"sales"."out""box''_seq"'); COMMIT`
	if got := AddSequence(&table); got != sequence {
		t.Error(got)
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
