package replication

import (
	"encoding/binary"
	"testing"
	"time"
)

// xlogData returns XLogData with a message of pgoutput of the given type, sent at a time of the server's clock.
func xlogData(kind byte, sent time.Time, committed time.Time) []byte {
	micros := func(t time.Time) uint64 { return uint64(t.Sub(postgresEpoch).Microseconds()) }
	b := append([]byte{'w'}, make([]byte, 16)...)
	b = append(binary.BigEndian.AppendUint64(b, micros(sent)), kind)
	b = binary.BigEndian.AppendUint64(b, 0)                    // the commit's position
	return binary.BigEndian.AppendUint64(b, micros(committed)) // in Begin; other messages have other fields here
}

// The age of an event is the time from the commit to the sending of its message. What is outside of a transaction has
// no age.
func TestAgeOfEvents(t *testing.T) {
	commit := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	st := &Stream{}
	check := func(what string, b []byte, want time.Duration) {
		t.Helper()
		st.noteAge(b)
		if got := time.Duration(st.tap.age.Load()); got != want {
			t.Errorf("after %s: %s, want %s", what, got, want)
		}
	}
	other := time.Unix(0, 0)
	check("a message before the first transaction", xlogData('M', commit.Add(time.Hour), other), 0)
	check("Begin", xlogData('B', commit.Add(3*time.Millisecond), commit), 3*time.Millisecond)
	check("Insert", xlogData('I', commit.Add(50*time.Millisecond), other), 50*time.Millisecond)
	check("a keepalive", append([]byte{'k'}, make([]byte, 40)...), 50*time.Millisecond)
	check("a short message", []byte{'w'}, 50*time.Millisecond)
	check("Commit", xlogData('C', commit.Add(time.Hour), other), 50*time.Millisecond)
	check("a message between transactions", xlogData('M', commit.Add(2*time.Hour), other), 50*time.Millisecond)
	check("the next Begin", xlogData('B', commit.Add(time.Hour), commit.Add(time.Minute)), 59*time.Minute)
	check("Begin of a server whose clock is late", xlogData('B', commit, commit.Add(time.Second)), -time.Second)
}

// Receive notes the age of the events that it returns.
func TestReceiveNotesAge(t *testing.T) {
	commit := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	data := xlogData('B', commit.Add(time.Second), commit)
	message := append(binary.BigEndian.AppendUint32([]byte{'d'}, uint32(4+len(data))), data...)
	st := streamOver(t, &endlessConn{message: message})
	if _, err := st.Receive(); err != nil {
		t.Fatal(err)
	}
	if got := time.Duration(st.tap.age.Load()); got != time.Second {
		t.Errorf("age %s, want 1s", got)
	}
}
