package audit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// TestSorter sorts entries of any size and distribution, in memory and in runs that are merged in several passes, and
// reads them twice.
func TestSorter(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		s, err := newSorter(t.TempDir(), 0)
		must(t, err)
		var want [][]byte
		for range r.IntN(30_000) {
			e := make([]byte, r.IntN(40))
			if r.IntN(5000) == 0 {
				e = make([]byte, 200<<10) // larger than the memory
			}
			for i := range e {
				e[i] = byte(r.IntN(3))
			}
			must(t, s.add(e))
			want = append(want, e)
		}
		slices.SortFunc(want, bytes.Compare)
		for range 2 {
			i := 0
			if err := s.each(func(e []byte) error {
				if i >= len(want) || !bytes.Equal(e, want[i]) {
					t.Fatalf("seed %d: entry %d of %d is wrong", seed, i, len(want))
				}
				i++
				return nil
			}); err != nil || i != len(want) {
				t.Fatalf("seed %d: %d of %d entries, %v", seed, i, len(want), err)
			}
		}
		must(t, s.remove())
	}
}

// TestMemory compares half a million rows with their records in 16 MiB, whatever their keys and ids are: a hot key,
// all different, or one id.
func TestMemory(t *testing.T) {
	const memory = 16 << 20
	for _, x := range []struct {
		name string
		n    int
		id   func(i uint64) uint64
		key  func(i int) string
		want func(Counts) bool
	}{
		{"one key", 500_000, func(i uint64) uint64 { return i }, func(int) string { return "tenant-1" }, func(c Counts) bool {
			return c.Delivered == c.Rows && c.Clean()
		}},
		{"each its key", 150_000, func(i uint64) uint64 { return i }, func(i int) string { return fmt.Sprint("customer-", i) }, func(c Counts) bool {
			return c.Delivered == c.Rows && c.Clean()
		}},
		{"one id", 150_000, func(uint64) uint64 { return 1 }, func(int) string { return "tenant-1" }, func(c Counts) bool {
			return c.Delivered == 1 && c.Unjudged == 0 && c.Repeated == c.Records-1
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			before := m.HeapAlloc
			c, err := New(t.TempDir(), memory)
			must(t, err)
			defer c.Close() //nolint:errcheck // a test
			must(t, c.FindLater())
			most, seen := uint64(0), 0
			look := func() {
				if seen++; seen%20_000 == 0 {
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapAlloc-min(m.HeapAlloc, before))
				}
			}
			for i := range x.n {
				id := binary.BigEndian.AppendUint64(nil, x.id(uint64(i)*0x9E3779B97F4A7C15))
				key := []byte(x.key(i))
				row := &Row{ID: id, Topic: "t", Key: key, Created: time.Unix(int64(i), 0)}
				if i == 0 || x.name != "one id" {
					err = c.AddRow(row)
				}
				rec := &Record{ID: id, Topic: "t", Key: key, Offset: int64(i), Position: checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: pglogrepl.LSN(i + 1)}}
				if err == nil {
					err = c.AddRecord(rec)
				}
				if err == nil {
					err = c.NoteKey("t", key, time.Unix(int64(i), 0))
				}
				must(t, err)
				look()
			}
			none := func([]string) (map[string]bool, error) { return map[string]bool{}, nil }
			counts, err := c.Run(&Judge{
				Tables: []string{"outbox"}, Exist: none, ExistNow: none, Abandoned: func(checkpoint.Position) string { return "" },
				Origin: func(r *Record) origin { look(); return here }, Newer: func(checkpoint.Position) bool { return false },
				Deleted: func(*Row) string { return "" }, Young: func(*Row) bool { return true },
				Later: func(string, string, bool, bool) error { return nil }, Report: func(f Finding) error { t.Log(f); return nil },
			})
			if err != nil || !x.want(counts) {
				t.Errorf("%+v, %v", counts, err)
			}
			t.Logf("%d MiB at most, with %d MiB of temporary files", most>>20, (c.byID.end+c.byLine.end+c.byKey.end)>>20)
			if most > memory {
				t.Errorf("it takes %d MiB, more than %d MiB", most>>20, memory>>20)
			}
		})
	}
}
