package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
)

// TestFoundOrder: a record counts unless a record of an older event of its key follows it in its partition or was sent
// by a later session, in any order of noting.
func TestFoundOrder(t *testing.T) {
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n), 0} }
	for _, c := range []struct {
		log  string // records of several sessions in one partition: events, each with its key; "|" begins another session
		dead string // the same in the dead-letter topic
		want string
	}{
		{log: "11a 12a 13a", want: "11 12 13"},
		{log: "12a | 11a", want: "11"},                                // 11 was sent again, and the process died before it could send 12
		{log: "12a 11a", want: "11"},                                  //
		{log: "12b | 11a", want: "11 12"},                             // another key
		{log: "11a 12a 13a | 11a", want: "11"},                        // likewise, without deleted records
		{log: "11a 12b 13a 14b | 11a", want: "11 12 14"},              //
		{log: "13a | 11a 12a", want: "11 12"},                         // 13 was there before retention deleted 11 and 12
		{log: "11a 12a | 11a 12a 13a", want: "11 12 13"},              // sent again completely
		{log: "11a 13a | 12a 14a", want: "11 12 14"},                  // 13 was skipped by its policy
		{log: "12a 13b | 9a 14a", want: "13 14"},                      // an acked event follows
		{log: "12a 13b | 5c 14a", want: "14"},                         // a settled one
		{log: "5a 11a", want: "11"},                                   //
		{log: "11a 40a 12a", want: "11 12"},                           // of a later session
		{log: "11a 11a 12a 12a", want: "11 12"},                       //
		{log: "15a 14a | 13a | 12a | 11a 12a", want: "11 12"},         //
		{log: "20a 11b 21a 12b", want: "11 12 20 21"},                 //
		{log: "11a 12a 13a 14a 15a | 13a", want: "11 12 13"},          //
		{log: "11a 12a 13a 14a 15a | 13a 14a", want: "11 12 13 14"},   //
		{log: "12- | 11-", want: "11 12"},                             // without a key
		{log: "11a 14a", dead: "13b 12a 15c", want: "11 12 13 14 15"}, // one session is in order, whatever the partition
		{log: "14a", dead: "| 12a 15a", want: "12 15"},                // the older event was refused, and is a letter now
		{log: "14b", dead: "| 12a 15a", want: "12 14 15"},             //
		{log: "| 12a", dead: "13a 14b", want: "12 14"},                // a letter, and the older event was sent again
		{log: "| 9a", dead: "13a 14b", want: "14"},                    //
		{log: "11a | | 13a", dead: "12a", want: "11 12 13"},           // after the release of the key
		{log: "| 12a | 13a", dead: "13a 12a | 13a", want: "12 13"},    // a letter and a record of one event
		{dead: "13b 12a 12a", want: "12 13"},                          //
	} {
		producers := []int64{70, 60, 50, 40, 30}
		var records []OwnRecord
		for topic, log := range map[string]string{"t": c.log, "dead": c.dead} {
			session := 0
			for i, word := range strings.Fields(log) {
				if word == "|" {
					session++
					continue
				}
				var n int
				var key string
				if _, err := fmt.Sscanf(word, "%d%s", &n, &key); err != nil {
					t.Fatal(word, err)
				}
				r := OwnRecord{Topic: topic, Partition: 3, Offset: int64(i), Producer: producers[session], Position: at(n), ID: []byte("id"), KeyTopic: "t"}
				if key != "-" {
					r.Key = []byte(key)
				}
				records = append(records, r)
			}
		}
		for round := range 20 {
			q := Search{Found: NewFound(), Acked: at(10), Settled: at(7), Until: 30, Producers: producers}
			order := rand.Perm(len(records))
			for i, n := range append(order, order[:len(order)/2]...) { // half of them twice
				q.Note(&records[n])
				if i%3 == 0 { // a session asks between two readings
					q.Found.Has(at(11), []byte("id"))
				}
			}
			var got []string
			for n := 11; n < 50; n++ {
				if q.Found.Has(at(n), []byte("id")) {
					got = append(got, fmt.Sprint(n))
				}
			}
			if found := strings.Join(got, " "); found != c.want {
				t.Errorf("%s, dead letters %s, round %d: found %s, want %s", c.log, c.dead, round, found, c.want)
				break
			}
		}
	}
}

// TestFoundSessions: the sessions of later searches are later ones.
func TestFoundSessions(t *testing.T) {
	f := NewFound()
	note := func(producers []int64, producer int64, topic string, n int) {
		q := Search{Found: f, Until: 100, Producers: producers}
		q.Note(&OwnRecord{Topic: topic, Producer: producer, Position: Position{7, 1, pglogrepl.LSN(n), 0}, KeyTopic: "t", Key: []byte("k")})
	}
	has := func(n int) bool { return f.Has(Position{7, 1, pglogrepl.LSN(n), 0}, nil) }
	note([]int64{9, 8}, 8, "dead", 12)
	note([]int64{9, 8}, 9, "t", 11)
	if !has(11) || !has(12) {
		t.Error("a letter does not count after an older event of an earlier session")
	}
	note([]int64{8, 1}, 1, "t", 10) // the list is bounded
	if !has(10) || has(11) || has(12) {
		t.Error("a record counts although a later session has sent an older event")
	}
	for epoch, n := range []int{22, 21} { // sessions of one process, to two partitions
		q := Search{Found: f, Until: 100, Producers: []int64{8, 1}}
		q.Note(&OwnRecord{Topic: "t", Partition: int32(epoch), Producer: 1, Epoch: int16(epoch), Position: Position{7, 1, pglogrepl.LSN(n), 0}, KeyTopic: "t", Key: []byte("of one process")})
	}
	if !has(21) || has(22) {
		t.Error("a record counts although a later session of its process has sent an older event")
	}
}

// TestFoundPartitions: the order in one partition says nothing about another one, and an end that cannot be read any
// more is forgotten.
func TestFoundPartitions(t *testing.T) {
	f := NewFound()
	q := Search{Found: f, Until: 100}
	a, b := Position{7, 1, 11, 0}, Position{7, 1, 12, 0}
	note := func(topic string, partition int32, p Position, id string) {
		q.Note(&OwnRecord{Topic: topic, Partition: partition, Offset: 5, Position: p, ID: []byte(id), KeyTopic: topic, Key: []byte("k")})
	}
	note("t", 0, b, "b")
	note("t", 1, a, "a")
	note("u", 0, a, "a")
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
			q.Note(&OwnRecord{Topic: "t", Offset: int64(i), Position: at(i), Key: []byte("k")})
		}
	}
	if n, full := f.Len(); full || n > MaxEvents {
		t.Fatalf("%d records, full: %v", n, full)
	}
	for i := range MaxEvents {
		q.Note(&OwnRecord{Topic: "t", Offset: int64(i), Position: at(i), Key: []byte("k")})
	}
	if n, _ := f.Len(); n > MaxEvents || !f.Has(at(0), nil) {
		t.Errorf("%d records", n)
	}
	for i := range 10 {
		q.Note(&OwnRecord{Topic: "t", Offset: int64(MaxEvents + i), Position: at(MaxEvents + i), Key: []byte("k")})
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
		q.Note(&OwnRecord{Topic: "t", Offset: int64(MaxEvents + i), Position: at(i), Key: []byte("k")})
	}
	for i := range 100 { // records of before, of events that were sent again
		q.Note(&OwnRecord{Topic: "t", Offset: int64(i), Position: at(i), Key: []byte("k")})
	}
	if n, full := f.Len(); !full || n != MaxEvents-10 || !f.Has(at(0), nil) || !f.Has(at(MaxEvents-11), nil) {
		t.Errorf("%d records, full: %v", n, full)
	}
}

// TestFoundBacklog: a session that delivers a long backlog leaves any number of records at or before the acked
// position. They take no room from those after it, and still say what does not count.
func TestFoundBacklog(t *testing.T) {
	f := NewFound()
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n + 1), 0} }
	q := Search{Found: f, Acked: at(2 * MaxEvents), Settled: at(0), Until: 1 << 40, Producers: []int64{1, 2}}
	for i := 1; i <= MaxEvents; i++ {
		q.Note(&OwnRecord{Topic: "t", Offset: int64(i), Producer: 2, Position: at(i), KeyTopic: "t", Key: fmt.Append(nil, i)})
	}
	old, doubt := at(2*MaxEvents+4), at(2*MaxEvents+5)
	q.Note(&OwnRecord{Topic: "t", Partition: 1, Offset: 7, Producer: 1, Position: old, KeyTopic: "t", Key: []byte("1")})
	q.Note(&OwnRecord{Topic: "t", Partition: 2, Offset: 7, Producer: 2, Position: doubt, KeyTopic: "t", Key: []byte("1")})
	if n, full := f.Len(); full || n > 2 || !f.Has(doubt, nil) || f.Has(old, nil) {
		t.Errorf("%d records, full: %v", n, full)
	}
}

// TestLastOtherUnknown: what another process has sent is not known if the set has no room for it, or if an end was not
// read. It may be an older event of any key.
func TestLastOtherUnknown(t *testing.T) {
	at := func(n int) Position { return Position{7, 1, pglogrepl.LSN(n + 1), 0} }
	for _, full := range []bool{true, false} {
		f := NewFound()
		q := Search{Found: f, Settled: at(0), Until: 1 << 40, Producers: []int64{1, 2}, Others: map[int64]uint32{2: 5}}
		note := func(producer int64, n int) {
			q.Note(&OwnRecord{Topic: "t", Offset: int64(n), Producer: producer, Position: at(n), KeyTopic: "t", Key: fmt.Append(nil, n)})
		}
		note(1, 100)
		if n := f.LastOther(at(200), "t", []byte("k")); n != 0 {
			t.Errorf("session %d", n)
		}
		if !full {
			q.NoteUnread()
		}
		for n := 101; full && n < 101+MaxEvents; n++ {
			note(1, n)
		}
		if full {
			note(2, 50)
		}
		if n := f.LastOther(at(200), "t", []byte("k")); n != 5 {
			t.Errorf("full: %v: session %d, want 5", full, n)
		}
	}
}
