package checkpoint

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

func TestSaved(t *testing.T) {
	want := Saved{
		Slot: "outboxcdc", Generation: 3, SystemID: 1<<63 + 1, Timeline: 2, Acked: Position{1<<63 + 1, 2, 0x1_0000_0010, 4}, AckedTx: TxID{0x1_0000_0010, 77, time.Unix(3, 1000).UTC()}, Confirm: 0x1_0000_0020,
		Producers: []int64{1, 1 << 60}, Partitions: map[string]int32{"t": 6}, Routing: "abc", Clean: true, Adopted: true, At: time.Unix(1, 5).UTC(),
	}
	b, err := want.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"version":1`, `"confirm":"1/20"`, `"system_id":"9223372036854775809"`, `"acked":"1:9223372036854775809:2:0000000100000010:4"`} {
		if !strings.Contains(string(b), part) {
			t.Errorf("%s lacks %s", b, part)
		}
	}
	var got Saved
	if err := got.UnmarshalText(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	first := (*Saved)(nil).Next(5, "r")
	b, _ = first.MarshalText()
	if err := got.UnmarshalText(b); err != nil || !got.Acked.IsZero() || got.Generation != 1 || got.Producers[0] != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSavedUnreadable(t *testing.T) {
	good := `{"version":1,"system_id":"7","confirm":"0/1"}`
	var s Saved
	if err := s.UnmarshalText([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, text string }{
		{`{"version":1`, `version=1`}, {`"7"`, `"-7"`}, {`"0/1"`, `"0-1"`}, {`"confirm"`, `"acked":"1:2","confirm"`},
	} {
		err := s.UnmarshalText([]byte(strings.Replace(good, c.old, c.text, 1)))
		if err == nil || !strings.Contains(err.Error(), "read the position record") {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	if err := s.UnmarshalText([]byte(strings.Replace(good, "1", "2", 1))); !errors.Is(err, ErrSavedVersion) {
		t.Errorf("version 2: %v", err)
	}
	if s.SystemID != 7 {
		t.Errorf("an unreadable record has changed what was read: %+v", s)
	}
}

func TestSavedNext(t *testing.T) {
	s := Saved{Slot: "a", Generation: 9, Clean: true, Confirm: 5}
	for i := range int64(2 * maxProducers) {
		before := s.Producers
		s = s.Next(i, "")
		if len(before) > 0 && before[len(before)-1] != i-1 {
			t.Fatalf("the record before has changed: %v", before)
		}
	}
	if n := len(s.Producers); n != maxProducers || s.Producers[n-1] != 2*maxProducers-1 || s.Producers[0] != maxProducers {
		t.Errorf("producers %v", s.Producers)
	}
	s.Partitions = map[string]int32{"t": 3}
	same := s.Next(1000, "")
	same.Hash(map[string]int32{"t": 3, "u": 1})
	if len(same.Producers) != maxProducers || same.Partitions["u"] != 1 || len(s.Partitions) != 1 {
		t.Errorf("%+v after %+v", same, s)
	}
	grown := s.Next(1000, "")
	grown.Hash(map[string]int32{"t": 4})
	if len(grown.Producers) != 1 || grown.Producers[0] != 1000 || grown.Partitions["t"] != 4 {
		t.Errorf("a topic has grown: %+v", grown)
	}
	if other := s.Next(1000, "other"); len(other.Producers) != 1 || other.Producers[0] != 1000 || other.Routing != "other" {
		t.Errorf("other settings: %+v", other)
	}
	if s.Generation != 9+2*maxProducers || s.Clean || s.Slot != "a" || s.Confirm != 5 {
		t.Errorf("%+v", s)
	}
}

// An adoption keeps the count and nothing else: whatever the session behind it believed of what was before would be left out.
func TestAdoption(t *testing.T) {
	now := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	old := &Saved{
		Slot: "a", Generation: 9, SystemID: 1, Timeline: 3, Acked: Position{1, 3, 90, 0}, Confirm: 99, Producers: []int64{1, 2},
		Partitions: map[string]int32{"t": 3}, Routing: "r",
	}
	want := Saved{Slot: "a", Generation: 10, SystemID: 7, Timeline: 2, Confirm: 40, Clean: true, Adopted: true, At: now}
	if got := old.Adoption("a", 7, 2, 40, now); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	old, want.Generation = nil, 1
	got := old.Adoption("a", 7, 2, 40, now)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("of nothing: %+v, want %+v", got, want)
	}
	next := got.Next(5, "r")
	if next.Clean || next.Adopted || len(next.Producers) != 1 || next.Generation != 2 {
		t.Errorf("the session behind it: %+v", next)
	}
}

func TestLatest(t *testing.T) {
	if Latest(nil) != nil {
		t.Error("something of nothing")
	}
	at := func(lsn uint64, ordinal uint32) Position { return Position{7, 1, pglogrepl.LSN(lsn), ordinal} }
	base := Saved{SystemID: 7, Timeline: 1, Generation: 4, Confirm: 10, Acked: at(9, 1), Producers: []int64{1, 2}}
	with := func(f func(*Saved)) Saved {
		s := base
		f(&s)
		return s
	}
	late := with(func(s *Saved) { s.Generation, s.Confirm, s.Acked, s.Producers = 3, 8, at(8, 0), []int64{1} })
	clean := with(func(s *Saved) { s.Confirm, s.Acked, s.Clean = 12, at(11, 0), true })
	other := with(func(s *Saved) { s.Confirm, s.Acked, s.Producers = 11, at(10, 0), []int64{1, 3} })
	adopted := Saved{Adopted: true, SystemID: 8, Timeline: 1, Generation: 5, Confirm: 3}
	moved := with(func(s *Saved) { s.Timeline, s.Acked, s.Confirm, s.Generation = 2, Position{7, 2, 5, 0}, 5, 6 })
	for name, c := range map[string]struct {
		in   []Saved
		want Saved
	}{
		"one":                      {[]Saved{clean}, clean},
		"the last of a session":    {[]Saved{base, clean}, clean},
		"a late one":               {[]Saved{clean, late}, with(func(s *Saved) { s.Confirm, s.Acked = 12, at(11, 0) })},
		"a late one that is clean": {[]Saved{base, with(func(s *Saved) { s.Generation, s.Clean = 3, true })}, base},
		"two at a time":            {[]Saved{base, clean, other}, with(func(s *Saved) { s.Confirm, s.Acked, s.Producers = 12, at(11, 0), []int64{1, 2, 3} })},
		"an adoption":              {[]Saved{clean, adopted}, adopted},
		"behind an adoption":       {[]Saved{clean, adopted, base}, with(func(s *Saved) { s.Generation = 5 })},
		"other settings": {
			[]Saved{base, with(func(s *Saved) { s.Routing, s.Producers = "other", []int64{5} })},
			with(func(s *Saved) { s.Routing, s.Producers = "other", []int64{5} }),
		},
		"a topic that has grown": {
			[]Saved{with(func(s *Saved) { s.Partitions = map[string]int32{"t": 3} }), with(func(s *Saved) { s.Partitions, s.Producers = map[string]int32{"t": 4}, []int64{5} })},
			with(func(s *Saved) { s.Partitions, s.Producers = map[string]int32{"t": 4}, []int64{5} }),
		},
		"another timeline": {[]Saved{clean, moved}, moved},
	} {
		if got := Latest(c.in); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
	}
}
