package decoder

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
)

// TestOtherTablesCostLittle: with a publication FOR ALL TABLES the server announces every table that is written to,
// also those that are dropped again.
func TestOtherTablesCostLittle(t *testing.T) {
	resolved := 0
	d := New(func(r *Relation) (bool, error) { resolved++; return false, nil })
	const tables, columns = 5000, 40
	announce := func(i int, kind uint32) {
		b := binary.BigEndian.AppendUint32([]byte{'R'}, uint32(100_000+i))
		b = append(b, fmt.Sprintf("public\x00staging_%d\x00d", i)...)
		b = binary.BigEndian.AppendUint16(b, columns)
		for c := range columns {
			b = append(b, fmt.Sprintf("\x00a_column_of_it_%d\x00", c)...)
			b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, kind), 0)
		}
		if _, err := d.Decode(b); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range tables {
		announce(i, 25)
	}
	if each := (int64(heap()) - int64(before)) / tables; each > 100 {
		t.Errorf("a table of %d columns costs %d bytes", columns, each)
	}
	announce(0, 25)
	if resolved != tables {
		t.Errorf("%d tables were resolved, want %d: the same definition was announced again", resolved, tables)
	}
	announce(0, 23)
	if resolved != tables+1 {
		t.Error("another definition was not resolved")
	}
	runtime.KeepAlive(d)
}
