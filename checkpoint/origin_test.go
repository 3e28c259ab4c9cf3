package checkpoint

import (
	"math/rand/v2"
	"testing"

	"github.com/jackc/pglogrepl"
)

func TestHeaderText(t *testing.T) {
	p := Position{SystemID: 7437482374823748237, Timeline: 3, CommitLSN: 0x16B3748, Ordinal: 12}
	o := Origin{Database: 16384, Slot: "out_1", Epoch: 7}
	if got, want := FormatHeader(p, o), "2:7437482374823748237:16384:out_1:7:3:00000000016b3748:12"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := FormatHeader(p, Origin{}); got != p.String() {
		t.Errorf("without an origin %s, want %s", got, p)
	}
	for range 1000 {
		p := Position{rand.Uint64(), rand.Int32(), pglogrepl.LSN(rand.Uint64()), rand.Uint32()}
		for _, o := range []Origin{{}, {rand.Uint32() | 1, "s", rand.Uint32()}} {
			text := FormatHeader(p, o)
			at, from, err := ParseHeader(text)
			if err != nil || at != p || from != o {
				t.Fatalf("%s is read as %+v of %+v: %v", text, at, from, err)
			}
			if at, err := ParsePosition(text); err != nil || at != p {
				t.Fatalf("%s is read as %+v: %v", text, at, err)
			}
		}
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	for _, text := range []string{
		"", "2", "3:1:2:s:0:1:0000000000000001:0", "1:1:2:s:0:1:0000000000000001:0", "2:1:1:0000000000000001:0", "2:x:2:s:0:1:0000000000000001:0",
		"2:1:0:s:0:1:0000000000000001:0", "2:1:2:a b:0:1:0000000000000001:0", "2:1:2:A:0:1:0000000000000001:0", "2:1:2::0:1:0000000000000001:0", "2:1:-2:s:0:1:0000000000000001:0", "2:1:4294967296:s:0:1:0000000000000001:0",
		"2:1:2:s:4294967296:1:0000000000000001:0", "2:1:2:s:0:-1:0000000000000001:0", "2:1:2:s:0:1:1:0", "2:1:2:s:0:1:0000000000000001:0:0",
	} {
		if p, o, err := ParseHeader(text); err == nil {
			t.Errorf("%q is read as %+v of %+v", text, p, o)
		}
	}
}

func TestOrder(t *testing.T) {
	inOrder := []string{ // of one slot
		"1:7:1:0000000000000050:9",
		"1:7:1:0000000000000050:10",
		"2:7:5:s:0:1:0000000000000060:0", // the daemon was upgraded
		"1:7:2:0000000000000055:0",       // a failover
		"2:7:5:s:0:3:0000000000000058:0",
		"2:7:5:s:1:2:0000000000000040:0", // a restore onto a timeline with a lower number
		"2:7:5:s:1:2:0000000000000041:0",
		"2:7:5:s:2:1:0000000000000001:0",
	}
	order := func(a, b string) (int, bool) {
		p, o, err := ParseHeader(a)
		must(t, err)
		q, r, err := ParseHeader(b)
		must(t, err)
		return Order(p, o, q, r)
	}
	for i, a := range inOrder {
		for j, b := range inOrder {
			if got, ok := order(a, b); !ok || (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s against %s: %d, %t", a, b, got, ok)
			}
		}
	}
	const here = "2:7:5:s:1:2:0000000000000041:0"
	for what, other := range map[string]string{
		"system": "2:8:5:s:1:2:0000000000000041:0", "system, version 1": "1:8:2:0000000000000041:0",
		"database": "2:7:6:s:1:2:0000000000000041:0", "slot": "2:7:5:t:1:2:0000000000000041:0",
	} {
		if got, ok := order(here, other); ok {
			t.Errorf("another %s: %s against %s is %d", what, here, other, got)
		}
	}
}
