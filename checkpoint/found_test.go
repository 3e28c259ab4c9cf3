package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

// TestFoundOrder: a record counts unless a record of an earlier event follows it in its partition, in any order of
// noting.
func TestFoundOrder(t *testing.T) {
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n), 0} }
	for _, c := range []struct {
		log  string // of one partition: the events in the order of their records
		want string
	}{
		{"11 12 13", "11 12 13"},
		{"12 11", "11"},                   // 11 was sent again, and the process died before it could send 12
		{"11 12 13 11", "11"},             // likewise, without deleted records
		{"13 11 12", "11 12"},             // 13 was there before retention deleted 11 and 12
		{"11 12 11 12 13", "11 12 13"},    // sent again completely
		{"11 13 12 14", "11 12 14"},       // 13 was skipped by its policy
		{"12 13 5 14", "14"},              // an event that is not in doubt follows, late
		{"5 11", "11"},                    //
		{"11 40 12", "11 12"},             // of a later session
		{"11 11 12 12", "11 12"},          //
		{"15 14 13 12 11 12", "11 12"},    //
		{"20 11 21 12 22 13", "11 12 13"}, //
		{"11 12 13 14 15 13", "11 12 13"}, //
		{"11 12 13 14 15 13 14", "11 12 13 14"},
	} {
		events := strings.Fields(c.log)
		for round := range 20 {
			q := Search{Found: NewFound(), Acked: at(10), Until: 30}
			order := rand.Perm(len(events))
			if round == 0 {
				order = nil
				for i := range events {
					order = append(order, i)
				}
			}
			for i, offset := range append(order, order[:len(order)/2]...) { // half of them twice
				var n int
				if _, err := fmt.Sscan(events[offset], &n); err != nil {
					t.Fatal(err)
				}
				q.Note("t", 3, int64(offset), at(n), []byte("id"))
				if i%3 == 0 { // a session asks between two readings
					q.Found.Has(at(11), []byte("id"))
				}
			}
			var got []string
			for n := range 50 {
				if q.Found.Has(at(n), []byte("id")) {
					got = append(got, fmt.Sprint(n))
				}
			}
			if found := strings.Join(got, " "); found != c.want {
				t.Errorf("%s, noted in the order %v: found %s, want %s", c.log, order, found, c.want)
			}
		}
	}
}

// TestFoundPartitions: the order in one partition says nothing about another one, and an end that cannot be read any
// more is forgotten.
func TestFoundPartitions(t *testing.T) {
	f := NewFound()
	q := Search{Found: f, Until: 100}
	a, b := Position{7, 1, 11, 0}, Position{7, 1, 12, 0}
	q.Note("t", 0, 5, b, []byte("b"))
	q.Note("t", 1, 6, a, []byte("a"))
	q.Note("u", 0, 6, a, []byte("a"))
	if !f.Has(a, []byte("a")) || !f.Has(b, []byte("b")) {
		t.Error("not found")
	}
	if f.Has(b, []byte("a")) || f.Has(Position{7, 2, 12, 0}, []byte("b")) || f.Has(Position{7, 1, 12, 1}, []byte("b")) {
		t.Error("another event was found")
	}
	f.Forget("t", 0)
	if f.Has(b, []byte("b")) || !f.Has(a, []byte("a")) {
		t.Error("t/0 was not forgotten, or t/1 was")
	}
	if n, full := f.Len(); n != 2 || full {
		t.Errorf("%d records, full: %v", n, full)
	}
}

// TestFoundFull: the set is bounded. Records that do not count take up no room.
func TestFoundFull(t *testing.T) {
	f := NewFound()
	q := Search{Found: f, Until: 1 << 40}
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n + 1), 0} }
	for range 3 {
		for i := range MaxEvents / 2 {
			q.Note("t", 0, int64(i), at(i), nil)
		}
	}
	if n, full := f.Len(); full || n > MaxEvents {
		t.Fatalf("%d records, full: %v", n, full)
	}
	for i := range MaxEvents {
		q.Note("t", 0, int64(i), at(i), nil)
	}
	if n, _ := f.Len(); n > MaxEvents || !f.Has(at(0), nil) {
		t.Errorf("%d records", n)
	}
	for i := range 10 {
		q.Note("t", 0, int64(MaxEvents+i), at(MaxEvents+i), nil)
	}
	if n, full := f.Len(); n != MaxEvents || !full || f.Has(at(MaxEvents+9), nil) {
		t.Errorf("%d records, full: %v", n, full)
	}
}

// TestFoundAlmostFull: a set that is almost full is not searched for room at each record.
func TestFoundAlmostFull(t *testing.T) {
	f := NewFound()
	q := Search{Found: f, Until: 1 << 40}
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n + 1), 0} }
	for i := range MaxEvents - 10 {
		q.Note("t", 0, int64(MaxEvents+i), at(i), nil)
	}
	for i := range 100 { // records of before, of events that were sent again
		q.Note("t", 0, int64(i), at(i), nil)
	}
	if n, full := f.Len(); !full || n != MaxEvents-10 || !f.Has(at(0), nil) || !f.Has(at(MaxEvents-11), nil) {
		t.Errorf("%d records, full: %v", n, full)
	}
}

// TestFoundLetters: the letters of held keys count in any order. Those of events after one that was sent again to its
// partition are overtaken.
func TestFoundLetters(t *testing.T) {
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n), 0} }
	for _, c := range []struct {
		records, letters []int
		want             []int // of the letters
	}{
		{[]int{11, 14}, []int{13, 12, 15}, []int{12, 13, 15}},
		{nil, []int{13, 12, 12}, []int{12, 13}},
		{[]int{14, 13}, []int{12, 15}, []int{12}},
		{[]int{14, 14}, []int{12, 15}, []int{12}},
		{[]int{14, 9}, []int{12, 15}, nil}, // an event that is not in doubt was sent again
		{[]int{9, 14}, []int{12, 9, 15}, []int{12, 15}},
		{[]int{8, 9}, []int{12, 15}, []int{12, 15}},
	} {
		q := Search{Found: NewFound(), Acked: at(10), Until: 30, Letters: "dead"}
		for range 2 { // a record may be noted twice
			for i, n := range c.records {
				q.Note("t", 0, int64(i), at(n), []byte("id"))
			}
			for i, n := range c.letters {
				q.Note("dead", 0, int64(i), at(n), []byte("id"))
			}
			var got []int
			for n := range 30 {
				has, overtaken := q.Found.HasLetter(at(n), []byte("id"))
				if has && !overtaken {
					got = append(got, n)
				}
				if isLetter := slices.Contains(c.letters, n) && n > 10; has != isLetter || isLetter && !q.Found.Has(at(n), []byte("id")) {
					t.Errorf("letter %d: %v", n, has)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("records %v, letters %v: %v are not overtaken, want %v", c.records, c.letters, got, c.want)
			}
		}
	}
}

// TestFoundLettersOfTwoSearches: what was in doubt when an earlier session searched, and is not any more, was not sent
// again.
func TestFoundLettersOfTwoSearches(t *testing.T) {
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n), 0} }
	q := Search{Found: NewFound(), Acked: at(10), Until: 30, Letters: "dead"}
	for _, acked := range []int{10, 12} {
		q.Acked = at(acked)
		q.Note("t", 0, 0, at(11), []byte("id"))
		q.Note("t", 0, 1, at(12), []byte("id"))
		q.Note("dead", 0, 0, at(15), []byte("id"))
		if has, overtaken := q.Found.HasLetter(at(15), []byte("id")); !has || overtaken {
			t.Errorf("acked up to %d: %v, overtaken %v", acked, has, overtaken)
		}
	}
}
