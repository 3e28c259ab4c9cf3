package inbox

import (
	"slices"
	"testing"
)

// TestRecentBytes: positions without epochs are stored in 16 bytes each, as earlier versions do, and those with
// epochs in 20.
func TestRecentBytes(t *testing.T) {
	last := Position{System: 7, Database: 5, Slot: "s"}
	for n := range maxRecent + 1 {
		for epoch, size := range map[uint32]int{0: 16 * n, 3: 1 + 20*n} {
			var positions []Position
			for i := range n {
				p := last
				p.Timeline, p.CommitLSN, p.Ordinal = 2, 1<<40+uint64(i), uint32(i)
				if epoch > 0 {
					p.Epoch = epoch + uint32(i/2)
				}
				positions = append(positions, p)
			}
			b := encodeRecent(positions)
			if n > 0 && len(b) != size {
				t.Errorf("%d positions take %d bytes, want %d", n, len(b), size)
			}
			if got := decodeRecent(b, last); !slices.Equal(got, positions) {
				t.Errorf("%v became %v", positions, got)
			}
		}
	}
}
