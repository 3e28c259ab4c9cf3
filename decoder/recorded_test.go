package decoder

import (
	"bytes"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

//go:generate go run ../test/record

var update = flag.Bool("update", false, "write what is decoded now into testdata, and the fuzzer's corpus")

const separator = "----\n"

// recording is one file of testdata: comments, one line per message, a line ----, and the decoded messages.
type recording struct {
	path     string // pg17/copy.txt
	input    string // before the separator
	want     string // after the separator
	messages []pglogrepl.XLogData
}

func recordings(t testing.TB) []recording {
	t.Helper()
	paths, err := filepath.Glob("testdata/pg*/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	var all []recording
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		r := recording{path: strings.TrimPrefix(filepath.ToSlash(p), "testdata/")}
		r.input, r.want, _ = strings.Cut(string(b), separator)
		for line := range strings.Lines(r.input) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			start, quoted, _ := strings.Cut(strings.TrimSpace(line), " ")
			lsn, err := pglogrepl.ParseLSN(start)
			if err != nil {
				t.Fatalf("%s: %v", p, err)
			}
			s, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%s: %.40s: %v", p, quoted, err)
			}
			r.messages = append(r.messages, pglogrepl.XLogData{WALStart: lsn, WALData: []byte(s)})
		}
		all = append(all, r)
	}
	return all
}

// printMessage returns one message as a line of a recording.
func printMessage(m Message) string {
	switch m.Kind {
	case KindBegin:
		return fmt.Sprintf("begin commit=%s xid=%d time=%s", m.Begin.CommitLSN, m.Begin.XID, m.Begin.CommitTime.Format(time.RFC3339Nano))
	case KindCommit:
		return fmt.Sprintf("commit commit=%s end=%s time=%s", m.Commit.CommitLSN, m.Commit.EndLSN, m.Commit.CommitTime.Format(time.RFC3339Nano))
	case KindRelation:
		var cols []string
		for _, c := range m.Relation.Columns {
			cols = append(cols, fmt.Sprintf("%s:%d", c.Name, c.TypeOID))
		}
		return fmt.Sprintf("relation oid=%d %s(%s)", m.Relation.OID, m.Relation, strings.Join(cols, " "))
	case KindEvent, KindUpdate:
		var b strings.Builder
		fmt.Fprintf(&b, "%s %d %s", m.Kind, m.Event.Ordinal, m.Event.Relation)
		for i, v := range m.Event.Values {
			b.WriteString(" " + m.Event.Relation.Columns[i].Name + "=")
			switch {
			case v.Unchanged:
				b.WriteString("unchanged")
			case v.Null:
				b.WriteString("NULL")
			case len(v.Data) > 200:
				fmt.Fprintf(&b, "%.20q…(%d bytes, crc32 %08x)", v.Data, len(v.Data), crc32.ChecksumIEEE(v.Data))
			default:
				fmt.Fprintf(&b, "%q", v.Data)
			}
		}
		return b.String()
	}
	if m.Refused {
		return m.Kind.String() + " refused"
	}
	if m.Relation != nil {
		return m.Kind.String() + " " + m.Relation.String()
	}
	return m.Kind.String()
}

// acceptOutboxes accepts the table outbox and its partitions.
func acceptOutboxes(r *Relation) (bool, error) { return strings.HasPrefix(r.Name, "outbox"), nil }

func TestRecorded(t *testing.T) {
	aborts := 0
	for _, r := range recordings(t) {
		var got strings.Builder
		d := New(acceptOutboxes)
		d.Messages("outbox", 1)
		open := false
		for i, x := range r.messages {
			m, err := d.Decode(x.WALData)
			if err != nil {
				t.Fatalf("%s: message %d: %v", r.path, i, err)
			}
			got.WriteString(printMessage(m) + "\n")
			againstPglogrepl(t, x.WALData, m)
			switch m.Kind {
			case KindBegin:
				open = true
			case KindCommit:
				open = false
			case KindAbort:
				aborts++
			}
		}
		if open {
			t.Errorf("%s ends inside a transaction", r.path)
		}
		if *update {
			if err := os.WriteFile("testdata/"+r.path, []byte(r.input+separator+got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if got.String() != r.want {
			t.Errorf("%s (go test -update accepts it)\n--- got\n%s--- want\n%s", r.path, got.String(), r.want)
		}
	}
	if aborts == 0 {
		t.Error("no recording has a Stream Abort: keep the one of PostgreSQL 18.6, which servers still run")
	}
}

// againstPglogrepl compares a decoded message with the result of pglogrepl's parser.
func againstPglogrepl(t *testing.T, in []byte, m Message) {
	t.Helper()
	if m.Kind == KindAbort { // a message of streaming mode, which pglogrepl has in protocol version 2
		if p, err := pglogrepl.ParseV2(in, false); err != nil || p.Type() != pglogrepl.MessageTypeStreamAbort {
			t.Errorf("pglogrepl has %v %v for the stream abort %q", p, err, in)
		}
		return
	}
	p, err := pglogrepl.Parse(in)
	if err != nil {
		t.Errorf("pglogrepl does not parse %q: %v", in, err)
		return
	}
	var want any
	var got any
	switch p := p.(type) {
	case *pglogrepl.BeginMessage:
		got, want = m.Begin, &Begin{CommitLSN: p.FinalLSN, CommitTime: p.CommitTime.UTC(), XID: p.Xid}
	case *pglogrepl.CommitMessage:
		got, want = m.Commit, &Commit{CommitLSN: p.CommitLSN, EndLSN: p.TransactionEndLSN, CommitTime: p.CommitTime.UTC()}
	case *pglogrepl.RelationMessage:
		rel := &Relation{OID: p.RelationID, Namespace: p.Namespace, Name: p.RelationName, Columns: []Column{}}
		for _, c := range p.Columns {
			rel.Columns = append(rel.Columns, Column{Name: c.Name, TypeOID: c.DataType})
		}
		got, want = m.Relation, rel
	case *pglogrepl.InsertMessage:
		if m.Kind == KindIgnored {
			return
		}
		var vs []Value
		for _, c := range p.Tuple.Columns {
			vs = append(vs, Value{Data: c.Data, Null: c.DataType == 'n'})
		}
		for i := range vs {
			if !bytes.Equal(m.Event.Values[i].Data, vs[i].Data) || m.Event.Values[i].Null != vs[i].Null {
				t.Errorf("value %d: %q, pglogrepl has %q", i, m.Event.Values[i].Data, vs[i].Data)
			}
		}
		got, want = len(m.Event.Values), len(vs)
	case *pglogrepl.UpdateMessage:
		if m.Kind == KindIgnored {
			return
		}
		for i, c := range p.NewTuple.Columns {
			v := m.Event.Values[i]
			if v.Unchanged != (c.DataType == 'u') || v.Null != (c.DataType != 't') || !bytes.Equal(v.Data, c.Data) {
				t.Errorf("value %d: %+v, pglogrepl has %c %q", i, v, c.DataType, c.Data)
			}
		}
		got, want = len(m.Event.Values), int(p.NewTuple.ColumnNum)
	case *pglogrepl.LogicalDecodingMessage:
		if m.Refused != (p.Prefix == "outbox" && !p.Transactional) || (m.Kind == KindEvent) != (p.Prefix == "outbox" && p.Transactional) {
			t.Errorf("%+v, pglogrepl has %+v", m, p)
		}
		if m.Kind != KindEvent {
			return
		}
		got, want = string(m.Event.Values[0].Data), string(p.Content)
	default:
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\npglogrepl %+v", got, want)
	}
}

var (
	volatileFields    = regexp.MustCompile(`\b(commit|end|oid|xid|time)=\S+`)
	ownTypes          = regexp.MustCompile(`:\d{5,}`) // types made by the scenario
	strayAborts       = regexp.MustCompile(`(?m)^abort\n`)
	emptyTransactions = regexp.MustCompile(`(?m)^begin\ncommit\n`)
)

// Every scenario was recorded with every version, and the results are equal except for the empty transactions that
// PostgreSQL 14 sends, and the Stream Aborts that PostgreSQL 18 sends.
func TestVersionsAgree(t *testing.T) {
	meaning := map[string]map[string]string{}
	for _, r := range recordings(t) {
		version, name, _ := strings.Cut(r.path, "/")
		s := ownTypes.ReplaceAllString(volatileFields.ReplaceAllString(r.want, ""), ":own")
		s = regexp.MustCompile(`(?m) +$`).ReplaceAllString(s, "")
		s = regexp.MustCompile(` {2,}`).ReplaceAllString(s, " ")
		if version == "pg18" {
			s = strayAborts.ReplaceAllString(s, "")
		}
		if version == "pg14" {
			s = emptyTransactions.ReplaceAllString(s, "")
		}
		if meaning[name] == nil {
			meaning[name] = map[string]string{}
		}
		meaning[name][version] = s
	}
	for name, by := range meaning {
		for _, version := range []string{"pg14", "pg15", "pg16", "pg17", "pg18"} {
			if s, ok := by[version]; !ok {
				t.Errorf("%s was not recorded with %s", name, version)
			} else if s != by["pg18"] {
				t.Errorf("%s: %s\n%s\n--- pg18\n%s", name, version, s, by["pg18"])
			}
		}
	}
}

// TestWALStart checks the properties of XLogData headers that replication and relay rely on.
func TestWALStart(t *testing.T) {
	for _, r := range recordings(t) {
		d := New(acceptOutboxes)
		var last, lastEnd pglogrepl.LSN
		for _, x := range r.messages {
			m, err := d.Decode(x.WALData)
			if err != nil {
				t.Fatal(err)
			}
			switch m.Kind {
			case KindRelation, KindType:
				if x.WALStart != 0 {
					t.Errorf("%s: %s at %s", r.path, m.Kind, x.WALStart)
				}
			case KindBegin:
				if m.Begin.CommitLSN <= last || m.Begin.CommitLSN < lastEnd {
					t.Errorf("%s: commit LSN %s after %s", r.path, m.Begin.CommitLSN, last)
				}
				last = m.Begin.CommitLSN
			case KindCommit:
				if x.WALStart != m.Commit.EndLSN {
					t.Errorf("%s: commit at %s, its end LSN is %s", r.path, x.WALStart, m.Commit.EndLSN)
				}
				lastEnd = m.Commit.EndLSN
			}
		}
	}
}

// frames returns a stream as input of the fuzzer: each message after its length in two bytes.
func frames(msgs []pglogrepl.XLogData) []byte {
	var b []byte
	for _, m := range msgs {
		b = append(be.AppendUint16(b, uint16(len(m.WALData))), m.WALData...)
	}
	return b
}

// The committed corpus has the streams of the oldest and the newest version; FuzzDecode adds those between.
func TestCorpus(t *testing.T) {
	const dir = "testdata/fuzz/FuzzDecode"
	for _, r := range recordings(t) {
		if !slices.Contains([]string{"pg14", "pg18"}, filepath.Dir(r.path)) {
			continue
		}
		name := filepath.Join(dir, strings.NewReplacer("/", "-", ".txt", "").Replace(r.path))
		want := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", frames(r.messages))
		if *update {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is not the recorded stream (go test -update writes it): %v", name, err)
		}
	}
}
