package outbox

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

func TestNewID(t *testing.T) {
	id := NewID()
	ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
	if d := time.Since(time.UnixMilli(ms)).Abs(); d > time.Hour || id[6]>>4 != 7 || id[8]>>6 != 2 {
		t.Errorf("%s is no UUIDv7 of now", id)
	}
}

func TestNewIDsAreMonotonic(t *testing.T) {
	const goroutines, each = 4, 20000
	var all sync.Map
	var group sync.WaitGroup
	for range goroutines {
		group.Add(1)
		go func() {
			defer group.Done()
			var last ID
			for range each {
				id := NewID()
				if bytes.Compare(id[:8], last[:8]) <= 0 {
					t.Errorf("%s after %s", id, last)
				}
				if _, used := all.LoadOrStore(id, true); used {
					t.Errorf("%s twice", id)
				}
				last = id
			}
		}()
	}
	group.Wait()
}

// The clock steps back: ids go on from the last one.
func TestNewIDAfterAStepOfTheClock(t *testing.T) {
	future := uint64(time.Now().Add(time.Second).UnixMilli()) * ticks
	lastTime.Lock()
	lastTime.ticks = future
	lastTime.Unlock()
	a, b := NewID(), NewID()
	if lastTime.ticks != future+2 || bytes.Compare(a[:8], b[:8]) >= 0 {
		t.Errorf("%s, then %s", a, b)
	}
}

func TestParseID(t *testing.T) {
	const text = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	for _, s := range []string{text, "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"} {
		if id, err := ParseID(s); err != nil || id.String() != text {
			t.Errorf("ParseID(%q) = %s, %v", s, id, err)
		}
	}
	for _, s := range []string{"", text + "0", "1b4e28ba2fa111d2883f0016d3cca427", "1b4e28b-a2fa1-11d2-883f-0016d3cca427", text[:35], text[:35] + "g", text + text} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) = %s, want an error", s, id)
		}
	}
}
