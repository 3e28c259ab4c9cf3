package outboxtable

import (
	"testing"

	"github.com/jackc/pglogrepl"
)

// TestEndOfRecords: after a record that fills a page, the end is that of the page.
func TestEndOfRecords(t *testing.T) {
	const page, segment = 8192, 16 << 20
	for next, want := range map[pglogrepl.LSN]pglogrepl.LSN{
		3*segment + 40:        3 * segment,
		3*segment + 48:        3*segment + 48,
		3*segment + page + 24: 3*segment + page,
		3*segment + page + 40: 3*segment + page + 40,
		3*segment + 5*page:    3*segment + 5*page,
	} {
		if got := endOfRecords(next, page, segment); got != want {
			t.Errorf("%s: %s, want %s", next, got, want)
		}
	}
}
