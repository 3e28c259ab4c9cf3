package progress

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLine(t *testing.T) {
	for _, c := range []struct {
		done, of int64
		took     time.Duration
		want     string
	}{
		{0, 0, 0, "rows"},
		{10, 0, time.Millisecond, "rows: 10"},
		{100, 0, 2 * time.Second, "rows: 100, 50 per second"},
		{100, 1100, 2 * time.Second, "rows: 100 of 1100, 50 per second, 20 s left"},
		{1100, 1100, 2 * time.Second, "rows: 1100 of 1100, 550 per second"},
	} {
		if got := line("rows", c.done, c.of, c.took); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestMeter: the line is replaced, not too often, and at once by that of the next stage.
func TestMeter(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(1000, 0)
	m := &Meter{w: &b, now: func() time.Time { return now }}
	m.Show("rows", 12345, 0)
	m.Show("rows", 12346, 0) // too soon
	now = now.Add(every)
	m.Show("rows", 7, 0)
	m.Show("end", 0, 0)
	m.Clear()
	m.Clear()
	want := "\rrows: 12345\rrows: 12345" + "\rrows: 7    \rrows: 7" + "\rend    \rend" + "\r   \r"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestNoTerminal: a file gets no progress.
func TestNoTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	m := New(f)
	m.Show("rows", 1, 2)
	m.Clear()
	if info, err := f.Stat(); err != nil || info.Size() != 0 {
		t.Error(info, err)
	}
}
