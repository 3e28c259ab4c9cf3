package human

import (
	"testing"
	"time"
)

func TestHuman(t *testing.T) {
	for want, got := range map[string]string{
		"0 bytes": Size(0), "1023 bytes": Size(1023), "1 kB": Size(1024), "1.5 MB": Size(3 << 19), "2 TB": Size(2 << 40), "2048 PB": Size(1 << 61),
		"1 event": Count(1, "event", "events"), "0 events": Count(0, "event", "events"),
		"0 s": Duration(-time.Second), "9.9 s": Duration(9900 * time.Millisecond), "119 s": Duration(119 * time.Second), "2 min": Duration(2 * time.Minute),
		"119 min": Duration(119 * time.Minute), "47 h": Duration(47 * time.Hour), "2 days": Duration(48 * time.Hour), "years": Duration(1000 * 24 * time.Hour),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
