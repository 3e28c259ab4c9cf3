package decoder

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func acceptAll(*Relation) (bool, error) { return true, nil }

// onlyOutbox accepts tables called outbox.
func onlyOutbox(r *Relation) (bool, error) { return r.Name == "outbox", nil }

func decodeAll(t *testing.T, d *Decoder, msgs ...[]byte) Message {
	t.Helper()
	var m Message
	for i, b := range msgs {
		var err error
		if m, err = d.Decode(b); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	return m
}

var (
	outboxRel = table(16385, "outbox", "id", "payload")
	otherRel  = table(16390, "other", "x")
)

func TestTransaction(t *testing.T) {
	d := New(onlyOutbox)
	d.Messages("ours", 7)
	bodies := &Relation{Namespace: "messages", Name: "ours", Source: 7, Columns: []Column{{"content", 17}}}
	step := func(in []byte, want Message) {
		t.Helper()
		got, err := d.Decode(in)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("\n got %+v %+v\nwant %+v %+v", got, got.Event, want, want.Event)
		}
	}
	abort := []byte("A\x00\x00\x02\xef\x00\x00\x02\xf0")
	for _, at := range []uint32{0, 1} { // twice: the second transaction counts from 0 again
		b := begin(0x1A2B)
		b.XID += at
		c := commit(0x1A2B)
		step(encBegin(b), Message{Kind: KindBegin, Begin: &b})
		step(encRelation(outboxRel), Message{Kind: KindRelation, Relation: outboxRel})
		row := []Value{text("1"), text("")}
		step(encInsert(16385, row...), Message{Kind: KindEvent, Relation: outboxRel, Event: &Event{Relation: outboxRel, Values: row, Begin: b}})
		step(encRelation(otherRel), Message{Kind: KindRelation, Relation: otherRel})
		step(encInsert(16390, text("x")), Message{Kind: KindIgnored})
		row = []Value{null, text("2")}
		step(encInsert(16385, row...), Message{Kind: KindEvent, Relation: outboxRel, Event: &Event{Relation: outboxRel, Values: row, Begin: b, Ordinal: 1}})
		step([]byte("O12345678origin\x00"), Message{Kind: KindOrigin})
		step([]byte("Y\x00\x00\x40\x00public\x00mood\x00"), Message{Kind: KindType})
		step(encMessage(true, "others", "x"), Message{Kind: KindMessage})
		step(encMessage(true, "our", "x"), Message{Kind: KindMessage})
		step(encMessage(true, "ours2", "x"), Message{Kind: KindMessage})
		step(encMessage(false, "ours", "x"), Message{Kind: KindMessage, Refused: true})
		step(encMessage(true, "ours", "{}"), Message{Kind: KindEvent, Relation: bodies, Event: &Event{Relation: bodies, Values: []Value{text("{}")}, Begin: b, Ordinal: 2}})
		step([]byte("T\x00\x00\x00\x01"), Message{Kind: KindTruncate})
		row = []Value{text("1"), {Null: true, Unchanged: true}}
		step(encUpdate(16385, nil, row...), Message{Kind: KindUpdate, Relation: outboxRel, Event: &Event{Relation: outboxRel, Values: row, Begin: b, Ordinal: 3, Update: true}})
		step([]byte("D\x00\x00\x40\x01K..."), Message{Kind: KindDelete, Relation: outboxRel})
		step([]byte("U\x00\x00\x40\x06N..."), Message{Kind: KindIgnored})
		step([]byte("D\x00\x00\x40\x06K..."), Message{Kind: KindIgnored})
		step(encInsert(16385, null, null), Message{Kind: KindEvent, Relation: outboxRel, Event: &Event{Relation: outboxRel, Values: []Value{null, null}, Begin: b, Ordinal: 4}})
		step(encCommit(c), Message{Kind: KindCommit, Commit: &c})
		step(encMessage(false, "ours", "x"), Message{Kind: KindMessage, Refused: true})
		step(encMessage(false, "others", ""), Message{Kind: KindMessage})
		step(abort, Message{Kind: KindAbort})
		step(abort, Message{Kind: KindAbort})
	}
}

func TestErrors(t *testing.T) {
	b, c := encBegin(begin(0x1A2B)), encCommit(commit(0x1A2B))
	rel := encRelation(outboxRel)
	insert := encInsert(16385, text("1"), text("two"))
	abort := []byte("A\x00\x00\x02\xef\x00\x00\x02\xf0")
	edit := func(p []byte, at int, with ...byte) []byte {
		p = slices.Clone(p)
		copy(p[at:], with)
		return p
	}
	tests := []struct {
		name string
		in   [][]byte // the last one is wrong
		want string
	}{
		{"empty", [][]byte{{}}, "decode message at byte 0: message ends early"},
		{"unknown type", [][]byte{b, {'?', 1, 2}}, "decode message at byte 0: unknown type '?'"},
		{"streamed transaction", [][]byte{{'S', 0, 0, 0, 1, 1}}, "decode message at byte 0: unknown type 'S'"},
		{"not text", [][]byte{{0xff}}, `decode message at byte 0: unknown type 'ÿ'`},

		{"begin in begin", [][]byte{b, b}, "decode begin at byte 0: transaction 700 (commit LSN 0/1A2B) is still open"},
		{"begin too long", [][]byte{append(b[:len(b):len(b)], 0, 0)}, "decode begin at byte 21: 2 bytes left over"},

		{"commit without begin", [][]byte{c}, "decode commit at byte 0: no transaction is open"},
		{"commit twice", [][]byte{b, c, c}, "decode commit at byte 0: no transaction is open"},
		{"commit of another", [][]byte{b, encCommit(commit(0x1A2C))}, "decode commit at byte 2: commit LSN 0/1A2C, but the begin message has 0/1A2B"},
		{"commit with flags", [][]byte{b, edit(c, 1, 4)}, "decode commit at byte 1: unknown flags 0x4"},
		{"commit that ends where it starts", [][]byte{b, encCommit(Commit{CommitLSN: 0x1A2B, EndLSN: 0x1A2B})}, "decode commit at byte 10: end LSN 0/1A2B is not after commit LSN 0/1A2B"},
		{"commit too long", [][]byte{b, append(c[:len(c):len(c)], 0)}, "decode commit at byte 26: 1 bytes left over"},

		{"relation without end of name", [][]byte{[]byte("R\x00\x00\x00\x01public\x00outbox")}, "decode relation at byte 12: string without its terminating zero"},
		{"relation of too many columns", [][]byte{[]byte("R\x00\x00\x00\x01p\x00o\x00d\xff\xff\x00a\x00\x00\x00\x00\x19\xff\xff\xff\xff")}, "decode relation at byte 10: 65535 columns do not fit into the 11 bytes left"},
		{"relation too long", [][]byte{append(rel[:len(rel):len(rel)], 'x')}, fmt.Sprintf("decode relation at byte %d: 1 bytes left over", len(rel))},

		{"insert without begin", [][]byte{rel, insert}, "decode insert at byte 0: no transaction is open"},
		{"insert after commit", [][]byte{b, rel, insert, c, insert}, "decode insert at byte 0: no transaction is open"},
		{"insert without relation", [][]byte{b, insert}, "decode insert at byte 1: relation 16385 was never announced"},
		{"insert of an old row", [][]byte{b, rel, edit(insert, 5, 'O')}, "decode insert at byte 5: tuple marker 'O' instead of 'N'"},
		{"insert of too few columns", [][]byte{b, rel, encInsert(16385, text("1"))}, "decode insert at byte 6: a row of 1 columns, but public.outbox has 2"},
		{"insert of too many columns", [][]byte{b, rel, encInsert(16385, null, null, null)}, "decode insert at byte 6: a row of 3 columns, but public.outbox has 2"},
		{"insert by the version before", [][]byte{b, rel, encRelation(table(16385, "outbox", "id", "payload", "new")), insert}, "decode insert at byte 6: a row of 2 columns, but public.outbox has 3"},
		{"unchanged TOAST", [][]byte{b, rel, edit(encInsert(16385, text("1"), null), 14, 'u')}, `decode insert at byte 14: column "payload" is an unchanged TOAST value, which an insert cannot have`},
		{"binary", [][]byte{b, rel, edit(insert, 8, 'b')}, `decode insert at byte 8: column "id" is in binary format, which was not requested`},
		{"kind of value", [][]byte{b, rel, edit(insert, 8, 'x')}, `decode insert at byte 8: column "id" is of unknown kind 'x'`},
		{"value longer than the message", [][]byte{b, rel, edit(insert, 15, 0, 0, 0, 4)}, `decode insert at byte 14: column "payload" claims 4 bytes, the message has 3 left`},
		{"value of 4 GB", [][]byte{b, rel, edit(insert, 9, 0xff, 0xff, 0xff, 0xff)}, `decode insert at byte 8: column "id" claims 4294967295 bytes, the message has 9 left`},
		{"insert too long", [][]byte{b, rel, append(insert[:len(insert):len(insert)], 'n')}, "decode insert at byte 22: 1 bytes left over"},

		{"update without begin", [][]byte{rel, []byte("U\x00\x00\x40\x01")}, "decode update at byte 0: no transaction is open"},
		{"update without relation", [][]byte{b, []byte("U\x00\x00\x40\x01")}, "decode update at byte 1: relation 16385 was never announced"},
		{"update of too few columns", [][]byte{b, rel, encUpdate(16385, nil, null)}, "decode update at byte 6: a row of 1 columns, but public.outbox has 2"},
		{"update with too short an old row", [][]byte{b, rel, encUpdate(16385, []Value{null}, null, null)}, "decode update at byte 6: a row of 1 columns, but public.outbox has 2"},
		{"update without a new row", [][]byte{b, rel, append([]byte("U\x00\x00\x40\x01"), encInsert(16385, null, null)[5:]...)[:8]}, "decode update at byte 8: message ends early"},
		{"update with another marker", [][]byte{b, rel, edit(encUpdate(16385, nil, null, null), 5, 'X')}, "decode update at byte 5: tuple marker 'X' instead of 'N'"},
		{"update too long", [][]byte{b, rel, append(encUpdate(16385, nil, null, null), 0)}, "decode update at byte 10: 1 bytes left over"},
		{"message outside a transaction", [][]byte{encMessage(true, "x", "")}, "decode message at byte 0: no transaction is open"},
		{"message with flags", [][]byte{b, edit(encMessage(true, "x", ""), 1, 2)}, "decode message at byte 1: unknown flags 0x2"},
		{"message without end of prefix", [][]byte{b, encMessage(true, "x", "")[:11]}, "decode message at byte 10: string without its terminating zero"},
		{"message too short", [][]byte{b, encMessage(true, "x", "abc")[:18]}, "decode message at byte 12: content of 3 bytes, the message has 2 left"},
		{"message of 4 GB", [][]byte{b, edit(encMessage(true, "x", ""), 12, 0xff, 0xff, 0xff, 0xff)}, "decode message at byte 12: content of 4294967295 bytes, the message has 0 left"},
		{"message too long", [][]byte{b, append(encMessage(false, "x", ""), 0)}, "decode message at byte 16: 1 bytes left over"},
		{"delete without relation", [][]byte{b, []byte("D\x00\x00\x40\x01")}, "decode delete at byte 1: relation 16385 was never announced"},
		{"stream abort in a transaction", [][]byte{b, abort}, "decode stream abort at byte 0: transaction 700 (commit LSN 0/1A2B) is open"},
		{"stream abort in a transaction after rows", [][]byte{b, rel, insert, abort}, "decode stream abort at byte 0: transaction 700 (commit LSN 0/1A2B) is open"},
		{"stream abort of one xid", [][]byte{abort[:5]}, "decode stream abort at byte 5: message ends early"},
		{"stream abort of a parallel stream", [][]byte{append(abort[:9:9], make([]byte, 16)...)}, "decode stream abort at byte 9: 16 bytes left over"},
		{"delete too short", [][]byte{b, rel, []byte("D\x00\x00\x40")}, "decode delete at byte 1: message ends early"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := New(acceptAll)
			last := len(tt.in) - 1
			decodeAll(t, d, tt.in[:last]...)
			m, err := d.Decode(tt.in[last])
			var typed *Error
			if !errors.As(err, &typed) || err.Error() != tt.want {
				t.Fatalf("\n got %v\nwant %s", err, tt.want)
			}
			if m != (Message{}) {
				t.Errorf("an error with a message: %+v", m)
			}
			// After an error, a valid message returns the same error.
			if _, again := d.Decode([]byte("T")); again != err { //nolint:errorlint // the very same error is meant
				t.Errorf("after the error: %v", again)
			}
		})
	}
}

// A truncated message is an error that names the message, with an offset within it.
func TestShort(t *testing.T) {
	b, rel := encBegin(begin(0x1A2B)), encRelation(outboxRel)
	update := encUpdate(16385, []Value{text("1"), text("two")}, text("1"), Value{Null: true, Unchanged: true})
	for _, whole := range [][]byte{b, encCommit(commit(0x1A2B)), rel, encInsert(16385, text("1"), text("two")), update, encMessage(true, "x", "y"), encMessage(false, "x", "y")} {
		for n := range whole {
			d := New(acceptAll)
			if whole[0] != 'B' {
				decodeAll(t, d, b, rel)
			}
			_, err := d.Decode(whole[:n:n])
			var typed *Error
			if !errors.As(err, &typed) {
				t.Fatalf("%c cut to %d bytes: %v", whole[0], n, err)
			}
			if typed.Offset > n || n > 0 && typed.What == "message" && whole[0] != 'M' {
				t.Errorf("%c cut to %d bytes: %v", whole[0], n, err)
			}
		}
	}
}

// An unchanged TOAST value of an update is taken from the old row, if the whole old row was sent.
func TestUnchangedValues(t *testing.T) {
	unchanged := Value{Null: true, Unchanged: true}
	key := encUpdate(16385, []Value{text("1"), null}, text("2"), unchanged)
	key[5] = 'K'
	for _, c := range []struct {
		name string
		in   []byte
		want []Value
	}{
		{"nothing old", encUpdate(16385, nil, text("2"), unchanged), []Value{text("2"), unchanged}},
		{"the old key", key, []Value{text("2"), unchanged}},
		{"the old row", encUpdate(16385, []Value{text("1"), text("large")}, text("2"), unchanged), []Value{text("2"), text("large")}},
		{"the old row has NULL where the new one has not", encUpdate(16385, []Value{text("1"), null}, null, text("new")), []Value{null, text("new")}},
		{"the old row has it, and it changed to NULL", encUpdate(16385, []Value{text("1"), text("large")}, text("1"), null), []Value{text("1"), null}},
	} {
		d := New(acceptAll)
		m := decodeAll(t, d, encBegin(begin(1)), encRelation(outboxRel), encUpdate(16385, []Value{text("x"), text("of the previous update")}, null, null), c.in)
		if m.Kind != KindUpdate || !m.Event.Update || m.Event.Ordinal != 1 || !reflect.DeepEqual(m.Event.Values, c.want) {
			t.Errorf("%s: %+v", c.name, m.Event)
		}
		if m := decodeAll(t, d, encInsert(16385, null, null)); m.Event.Update || m.Event.Ordinal != 2 {
			t.Errorf("%s: the next insert is %+v", c.name, m.Event)
		}
	}
}

func TestResolve(t *testing.T) {
	var asked []*Relation
	d := New(func(r *Relation) (bool, error) {
		asked = append(asked, r)
		return r.Name == "outbox", nil
	})
	decodeAll(t, d, encBegin(begin(1)))
	announce := func(r *Relation, versions int) *Relation {
		t.Helper()
		m := decodeAll(t, d, encRelation(r))
		if len(asked) != versions {
			t.Fatalf("resolve was called %d times, want %d", len(asked), versions)
		}
		if !reflect.DeepEqual(m.Relation, r) {
			t.Fatalf("got %+v, want %+v", m.Relation, r)
		}
		return m.Relation
	}
	first := announce(outboxRel, 1)
	if again := announce(outboxRel, 1); again != first {
		t.Error("the same definition got a new pointer")
	}
	announce(otherRel, 2)
	announce(otherRel, 2)

	// Each change of the definition makes a new version.
	retyped, moved, renamed := table(16385, "outbox", "id", "body"), table(16385, "outbox", "id", "body"), table(16385, "renamed", "id", "body")
	retyped.Columns[1].TypeOID, moved.Columns[1].TypeOID, renamed.Columns[1].TypeOID = 17, 17, 17
	moved.Namespace, renamed.Namespace = "archive", "archive"
	for i, v := range []*Relation{
		table(16385, "outbox", "id", "payload", "new"), table(16385, "outbox", "id"), table(16385, "outbox", "payload", "id"),
		table(16385, "outbox", "id", "body"), retyped, moved, renamed, outboxRel,
	} {
		if got := announce(v, 3+i); got == first {
			t.Errorf("version %d has the pointer of another", i)
		}
	}
	// Each version has its own result of resolve.
	if m := decodeAll(t, d, encInsert(16385, null, null)); m.Kind != KindEvent {
		t.Errorf("%v after the table got its name back", m.Kind)
	}
	if m := decodeAll(t, d, encRelation(table(16385, "renamed", "id", "payload")), encInsert(16385, null, null)); m.Kind != KindIgnored {
		t.Errorf("%v after the table was renamed", m.Kind)
	}
	// The pointer of an old version is unchanged.
	if !reflect.DeepEqual(first, outboxRel) {
		t.Errorf("a version was changed: %+v", first)
	}
}

// TestResolveError: an error of resolve is returned with the first row of the relation. A relation without rows has
// no effect.
func TestResolveError(t *testing.T) {
	lost := errors.New("catalog lost")
	for name, row := range map[string][]byte{"insert": encInsert(16386, null, null), "update": encUpdate(16386, nil, null, null)} {
		d := New(func(r *Relation) (bool, error) {
			if r.OID == 16386 {
				return true, lost
			}
			return true, nil
		})
		decodeAll(t, d, encBegin(begin(1)), encRelation(table(16386, "leaf", "id", "payload")), encRelation(outboxRel), encInsert(16385, null, null))
		_, err := d.Decode(row)
		if want := "decode row of relation public.leaf at byte 0: catalog lost"; !errors.Is(err, lost) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
		if _, err := d.Decode(encInsert(16385, null, null)); !errors.Is(err, lost) {
			t.Errorf("%s: the stream went on: %v", name, err)
		}
	}
}

func TestOrdinalRunsOver(t *testing.T) {
	d := New(acceptAll)
	decodeAll(t, d, encBegin(begin(1)), encRelation(outboxRel))
	d.ordinal = math.MaxUint32
	insert := encInsert(16385, null, null)
	if m := decodeAll(t, d, insert); m.Event.Ordinal != math.MaxUint32 {
		t.Error(m.Event.Ordinal)
	}
	if m, err := d.Decode(insert); err == nil {
		t.Errorf("event %d has the position of another", m.Event.Ordinal)
	}
}

// The decoder keeps no pointer into the caller's buffer, which the connection overwrites with the next message.
func TestKeepsNothingOfTheBuffer(t *testing.T) {
	d := New(acceptAll)
	buf := make([]byte, 4096)
	decode := func(in []byte) Message {
		t.Helper()
		copy(buf, in)
		m, err := d.Decode(buf[:len(in):len(in)])
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	poison := func() {
		for i := range buf {
			buf[i] = 0xA5
		}
	}
	b := begin(0x1A2B)
	decode(encBegin(b))
	poison()
	rel := decode(encRelation(outboxRel)).Relation
	poison()
	if !reflect.DeepEqual(rel, outboxRel) {
		t.Fatalf("the relation points into the buffer: %+v", rel)
	}
	ev := decode(encInsert(16385, text("1"), text("two"))).Event
	if ev.Relation != rel || ev.Begin != b {
		t.Errorf("event %+v", ev)
	}
	poison()
	if again := decode(encRelation(outboxRel)).Relation; again != rel {
		t.Error("the cached definition was overwritten")
	}
	poison()
	decode(encCommit(commit(0x1A2B)))
}

// A value cannot be extended into its neighbour.
func TestValuesAreSeparate(t *testing.T) {
	d := New(acceptAll)
	decodeAll(t, d, encBegin(begin(1)), encRelation(outboxRel))
	in := encInsert(16385, text("1"), text("two"))
	ev := decodeAll(t, d, in).Event
	before := slices.Clone(in)
	_ = append(ev.Values[0].Data, "overwritten"...)
	if !bytes.Equal(in, before) {
		t.Error("an append to one value wrote into the message")
	}
	ev = decodeAll(t, d, encInsert(16385, text(""), null)).Event
	if ev.Values[0].Data == nil || ev.Values[1].Data != nil {
		t.Error("empty and NULL are mixed up")
	}
}

func TestInsertDoesNotAllocate(t *testing.T) {
	d := New(onlyOutbox)
	decodeAll(t, d, encRelation(outboxRel), encRelation(otherRel))
	at := begin(1)
	msgs := [][]byte{encBegin(at), encInsert(16385, text("1"), text("two")), encInsert(16390, text("x")), encInsert(16385, text("2"), null), encCommit(commit(1))}
	if n := testing.AllocsPerRun(1000, func() {
		for _, m := range msgs {
			if _, err := d.Decode(m); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A length that is larger than the message must not cost memory.
func TestLyingLengthsAllocateNothing(t *testing.T) {
	b, rel := encBegin(begin(1)), encRelation(outboxRel)
	value := append(encInsert(16385, null)[:6], 0, 2, 't', 0x7f, 0xff, 0xff, 0xff)
	for _, lie := range [][]byte{[]byte("R\x00\x00\x00\x01p\x00o\x00d\xff\xff\x00"), value} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d := New(acceptAll)
		decodeAll(t, d, b, rel)
		if _, err := d.Decode(lie); err == nil {
			t.Fatal("the lie was believed")
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
			t.Errorf("%c: %d bytes allocated", lie[0], n)
		}
	}
}

func TestKindString(t *testing.T) {
	seen := map[string]bool{}
	for k := KindBegin; k <= KindAbort; k++ {
		if s := k.String(); s == "" || strings.Contains(s, " ") || seen[s] {
			t.Errorf("kind %d is %q", k, s)
		}
		seen[k.String()] = true
	}
	if s := Kind(0).String(); s != "kind 0" {
		t.Error(s)
	}
	if s := (KindAbort + 1).String(); s != "kind 13" {
		t.Error(s)
	}
}

func BenchmarkInsert(b *testing.B) {
	d := New(acceptAll)
	rel := table(16385, "outbox", "id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "created_at")
	for _, m := range [][]byte{encBegin(begin(1)), encRelation(rel)} {
		if _, err := d.Decode(m); err != nil {
			b.Fatal(err)
		}
	}
	in := encInsert(16385, text("1b4e28ba-2fa1-11d2-883f-0016d3cca427"), text("order"), text("42"), text("OrderPlaced"),
		text(strings.Repeat("x", 300)), text("{}"), text("2026-11-21 11:12:13.456789+00"))
	b.ReportAllocs()
	for b.Loop() {
		d.ordinal = 0
		if _, err := d.Decode(in); err != nil {
			b.Fatal(err)
		}
	}
}
