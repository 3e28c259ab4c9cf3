package lane

import (
	"encoding/binary"
	"math/bits"

	"github.com/outboxcdc/outboxcdc/router"
)

// waiting is a record in the queue of a lane, in one piece of memory without pointers. A full window has tens of
// thousands of them, which the garbage collector would otherwise search again and again: its limit is about twice the
// window (memoryLimit in cmd/outboxcdc).
type waiting struct {
	n      uint64
	topic  string
	packed []byte // id, key, value, and names and values of the headers; no sink but Kafka has more
}

func pack(rec *router.Record, n uint64) waiting {
	size := packedSize(rec.ID) + packedSize(rec.Key) + packedSize(rec.Value)
	for i := range rec.Headers {
		size += packedSize([]byte(rec.Headers[i].Name)) + packedSize(rec.Headers[i].Value)
	}
	b := make([]byte, 0, size)
	b = packText(packText(packText(b, rec.ID), rec.Key), rec.Value)
	for i := range rec.Headers {
		h := &rec.Headers[i]
		b = packText(packText(b, []byte(h.Name)), h.Value)
	}
	return waiting{n, rec.Topic, b}
}

// packedSize returns the size of a text, which has its length plus one before it, and 0 for nil.
func packedSize(text []byte) int { return (bits.Len(uint(len(text)+1))+6)/7 + len(text) }

func packText(b, text []byte) []byte {
	if text == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(text)+1)), text...)
}

func unpackText(b []byte) (text, rest []byte) {
	n, used := binary.Uvarint(b)
	if b = b[used:]; n == 0 {
		return nil, b
	}
	return b[: n-1 : n-1], b[n-1:]
}

// unpacked are the records of the call of Deliver that runs. Each call uses them again.
type unpacked struct {
	items   []*Item
	used    int // of items, by the last call
	headers []router.Header
}

// unpack returns the records, whose texts remain where they are.
func (u *unpacked) unpack(queue []waiting, names map[string]string) []*Item {
	for len(u.items) < len(queue) {
		u.items = append(u.items, &Item{Record: &router.Record{}})
	}
	u.used, u.headers = len(queue), u.headers[:0]
	for i, w := range queue {
		it, b, from := u.items[i], w.packed, len(u.headers)
		it.N, *it.Record = w.n, router.Record{Topic: w.topic}
		it.Record.ID, b = unpackText(b)
		it.Record.Key, b = unpackText(b)
		it.Record.Value, b = unpackText(b)
		for len(b) > 0 {
			var name, value []byte
			name, b = unpackText(b)
			value, b = unpackText(b)
			u.headers = append(u.headers, router.Header{Name: nameOf(name, names), Value: value})
		}
		if len(u.headers) > from {
			it.Record.Headers = u.headers[from:len(u.headers):len(u.headers)]
		}
	}
	return u.items[:len(queue)]
}

// drop forgets the texts of the records, which may be large.
func (u *unpacked) drop() {
	for _, it := range u.items[:u.used] {
		*it.Record = router.Record{}
	}
	clear(u.headers)
}

// maxNames is the maximum number of names of headers that are kept. The settings determine them, so there are few.
const maxNames = 1000

// nameOf returns the name of a header, and keeps one copy of it.
func nameOf(b []byte, names map[string]string) string {
	name, known := names[string(b)]
	if !known {
		if name = string(b); len(names) < maxNames {
			names[name] = name
		}
	}
	return name
}
