package decoder

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"unsafe"
)

// FuzzDecode decodes streams of arbitrary messages. There is no panic, the offset of an error is within its message,
// the error stays, values point into their message, and encoding a decoded message gives the same bytes.
func FuzzDecode(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add(frames(r.messages))
	}
	// Small streams, in which the fuzzer finds more.
	for _, stream := range [][][]byte{
		{encBegin(begin(9)), encRelation(outboxRel), encInsert(16385, text("1"), null), encUpdate(16385, nil, text("2"), Value{Null: true, Unchanged: true}), encInsert(16385, text(""), text("é")), encCommit(commit(9))},
		{encBegin(begin(9)), encRelation(otherRel), encInsert(16390, null), []byte("U\x00\x00\x40\x06N"), encUpdate(16385, []Value{text("1"), text("l")}, text("2"), Value{Null: true, Unchanged: true}), []byte("T"), []byte("Y"), []byte("O"), encMessage(true, "outbox", "{}"), encMessage(false, "outbox", ""), encMessage(true, "x", "y"), encCommit(commit(9))},
		{[]byte("A12345678"), encBegin(begin(9)), encCommit(commit(9)), []byte("A12345678"), encBegin(begin(10)), []byte("A12345678")},
		{encRelation(table(1, "outbox")), encBegin(begin(9)), encInsert(1)},
	} {
		var b []byte
		for _, m := range stream {
			b = append(be.AppendUint16(b, uint16(len(m))), m...)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		d := New(acceptOutboxes)
		d.Messages("outbox", 1)
		var failed error
		var buf []byte
		ordinal, open := uint32(0), false
		for len(in) >= 2 {
			n := min(int(be.Uint16(in)), len(in)-2)
			msg := in[2 : 2+n : 2+n]
			in = in[2+n:]
			// All messages use one buffer, as those of a connection do.
			buf = append(buf[:0], msg...)
			m, err := d.Decode(buf)
			if err != nil {
				var typed *Error
				switch {
				case failed != nil && err != failed: //nolint:errorlint // the very same error is meant
					t.Fatalf("%q: %v after %v", msg, err, failed)
				case failed == nil && (!errors.As(err, &typed) || typed.Offset < 0 || typed.Offset > len(msg) || typed.What == ""):
					t.Fatalf("%q: %v", msg, err)
				}
				failed = err
				continue
			}
			if failed != nil {
				t.Fatalf("%q was decoded after %v", msg, failed)
			}
			if !bytes.Equal(buf, msg) {
				t.Fatalf("%q was changed by Decode", msg)
			}
			switch m.Kind {
			case KindBegin:
				if open || !bytes.Equal(encBegin(*m.Begin), msg) {
					t.Fatalf("%q is %+v", msg, m.Begin)
				}
				open, ordinal = true, 0
			case KindCommit:
				if !open || !bytes.Equal(encCommit(*m.Commit), msg) {
					t.Fatalf("%q is %+v", msg, m.Commit)
				}
				open = false
			case KindAbort:
				if open || len(msg) != 9 {
					t.Fatalf("%q is a stream abort", msg)
				}
			case KindRelation:
				if !bytes.Equal(encRelation(m.Relation), zeroUnread(msg)) {
					t.Fatalf("%q is %+v", msg, m.Relation)
				}
			case KindEvent:
				ev := m.Event
				again := encInsert(ev.Relation.OID, ev.Values...)
				if msg[0] == 'M' {
					again = encMessage(true, "outbox", string(ev.Values[0].Data))
					copy(again[2:10], msg[2:10]) // the LSN, which the decoder does not keep
				}
				if !open || ev.Ordinal != ordinal || len(ev.Values) != len(ev.Relation.Columns) || !bytes.Equal(again, msg) {
					t.Fatalf("%q is %+v", msg, ev)
				}
				for _, v := range ev.Values {
					if v.Null != (v.Data == nil) || !inside(v.Data, buf) {
						t.Fatalf("%q: a value does not lie in the message", msg)
					}
				}
				ordinal++
			case KindUpdate:
				ev := m.Event
				if !open || !ev.Update || ev.Ordinal != ordinal || len(ev.Values) != len(ev.Relation.Columns) {
					t.Fatalf("%q is %+v", msg, ev)
				}
				// With an old row, unchanged values are taken from there.
				if alone := encUpdate(ev.Relation.OID, nil, ev.Values...); msg[5] == 'N' && !bytes.Equal(alone, msg) {
					t.Fatalf("%q is %+v", msg, ev)
				}
				for _, v := range ev.Values {
					if v.Null != (v.Data == nil) || v.Unchanged && !v.Null || !inside(v.Data, buf) {
						t.Fatalf("%q: a value does not lie in the message", msg)
					}
				}
				ordinal++
			}
		}
	})
}

// inside reports whether the memory of part is memory of whole.
func inside(part, whole []byte) bool {
	if cap(part) == 0 {
		return true
	}
	p, w := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return p >= w && p+uintptr(cap(part)) <= w+uintptr(len(whole))
}

// zeroUnread replaces the fields of a relation message that the decoder does not keep by the defaults of encRelation.
func zeroUnread(msg []byte) []byte {
	msg = slices.Clone(msg)
	i := 5
	for range 2 {
		i += bytes.IndexByte(msg[i:], 0) + 1
	}
	msg[i] = 'd'
	n := int(be.Uint16(msg[i+1:]))
	i += 3
	for range n {
		msg[i] = 0
		i += 1 + bytes.IndexByte(msg[i+1:], 0) + 1 + 4
		copy(msg[i:], "\x00\x00\x00\x00")
		i += 4
	}
	return msg
}
