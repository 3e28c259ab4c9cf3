package checkpoint

import (
	"math/rand/v2"
	"testing"

	"github.com/jackc/pglogrepl"
)

func TestPositionText(t *testing.T) {
	p := Position{SystemID: 7437482374823748237, Timeline: 3, CommitLSN: 0x16B3748, Ordinal: 12}
	const want = "1:7437482374823748237:3:00000000016b3748:12"
	if got := p.String(); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	for range 1000 {
		p := Position{rand.Uint64(), rand.Int32(), pglogrepl.LSN(rand.Uint64()), rand.Uint32()}
		got, err := ParsePosition(p.String())
		if err != nil || got != p {
			t.Fatalf("%+v became %+v: %v", p, got, err)
		}
	}
}

func TestParsePositionRefuses(t *testing.T) {
	for _, s := range []string{
		"", "1", "2:1:1:0000000000000001:0", "1:1:1:1:0", "1:x:1:0000000000000001:0", "1:1:-1:0000000000000001:0",
		"1:1:1:000000000000000g:0", "1:1:1:0000000000000001:4294967296", "1:1:1:0000000000000001:0:0", "1:1:4294967296:0000000000000001:0",
	} {
		if p, err := ParsePosition(s); err == nil {
			t.Errorf("%q was read as %+v", s, p)
		}
	}
}
