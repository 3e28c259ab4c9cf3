package checkpoint

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestSaved(t *testing.T) {
	want := Saved{
		Slot: "outboxcdc", Generation: 3, SystemID: 1<<63 + 1, Timeline: 2, Acked: Position{1<<63 + 1, 2, 0x1_0000_0010, 4}, Confirm: 0x1_0000_0020,
		Producers: []int64{1, 1 << 60}, Partitions: map[string]int32{"t": 6}, Routing: "abc", Clean: true, At: time.Unix(1, 5).UTC(),
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
	first := (*Saved)(nil).Next(5)
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
		s = s.Next(i)
		if len(before) > 0 && before[len(before)-1] != i-1 {
			t.Fatalf("the record before has changed: %v", before)
		}
	}
	if n := len(s.Producers); n != maxProducers || s.Producers[n-1] != 2*maxProducers-1 || s.Producers[0] != maxProducers {
		t.Errorf("producers %v", s.Producers)
	}
	if s.Generation != 9+2*maxProducers || s.Clean || s.Slot != "a" || s.Confirm != 5 {
		t.Errorf("%+v", s)
	}
}
