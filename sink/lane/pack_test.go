package lane

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/router"
)

// TestPack: records come out as they went in, nil and empty included, and do not change with the original.
func TestPack(t *testing.T) {
	records := func() []*router.Record {
		return []*router.Record{
			{ID: []byte("1"), Topic: "t", Key: []byte{}, Value: []byte("v"), Headers: []router.Header{{Name: "a", Value: []byte("1")}, {Name: "b"}, {Name: "", Value: []byte{}}}},
			{Topic: "u"},
			{ID: []byte(strings.Repeat("i", 126)), Topic: "t", Key: []byte(strings.Repeat("k", 127)), Value: []byte(strings.Repeat("v", 20_000))},
			{Topic: "t", Value: []byte{}, Headers: []router.Header{{Name: "a", Value: []byte("2")}}},
		}
	}
	var queue []waiting
	for i, rec := range records() {
		w := pack(rec, uint64(i))
		if len(w.packed) != cap(w.packed) {
			t.Errorf("record %d: %d bytes in %d", i, len(w.packed), cap(w.packed))
		}
		queue = append(queue, w)
		for _, text := range [][]byte{rec.ID, rec.Key, rec.Value} {
			clear(text)
		}
		for _, h := range rec.Headers {
			clear(h.Value)
		}
	}
	var u unpacked
	names := map[string]string{}
	u.unpack(append(slices.Clone(queue), queue...), names) // what was unpacked before leaves nothing
	for i, it := range u.unpack(queue, names) {
		if want := records()[i]; it.N != uint64(i) || !reflect.DeepEqual(it.Record, want) {
			t.Errorf("record %d: %d, %+v, want %+v", i, it.N, it.Record, want)
		}
		_ = append(it.Record.ID, "overwrites"...) // a text ends where the next one begins
		_ = append(it.Record.Headers, router.Header{Name: "overwrites"})
	}
	u.drop()
	for i, it := range u.items[:len(queue)] {
		if !reflect.DeepEqual(it.Record, &router.Record{}) {
			t.Errorf("record %d is held: %+v", i, it.Record)
		}
	}
	if !reflect.DeepEqual(u.headers, make([]router.Header, len(u.headers))) {
		t.Errorf("headers are held: %+v", u.headers)
	}
}
