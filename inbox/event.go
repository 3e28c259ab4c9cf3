package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Event is what identifies the event of a record.
type Event struct {
	Topic string
	ID    string // the header id

	// Of an ID that is no random UUID, so that it may be used again: by a second database that writes to the topic, or by
	// a sequence after a restore of its database.
	Origin  string // system id and database OID; empty: unknown
	Content int64  // a hash of key and value

	// Command is the header of a record that a person has sent with a command, for example [Replayed]; empty: the daemon
	// has sent it.
	Command string
}

// The headers of records that a person has sent with a command.
const (
	Recovered = "outboxcdc-recovered" // by recover or backfill: an event that Kafka did not have
	Replayed  = "outboxcdc-replayed"  // by replay: an event that Kafka may have already
	Retried   = "outboxcdc-retried"   // by dlq retry: an event that was a dead letter
)

// ReadEvent reads the event of a record. The function header returns the value of a header, and whether the record has
// it.
func ReadEvent(topic string, key, value []byte, header func(name string) (value string, ok bool)) (Event, error) {
	e := Event{Topic: topic}
	if e.ID, _ = header("id"); e.ID == "" {
		return Event{}, errors.New("the record has no header id, by which a repeated event is recognized: outboxcdc takes it from the column that " +
			"outbox.columns.id names, and another producer has to set it")
	}
	for _, name := range []string{Recovered, Replayed, Retried} {
		if _, ok := header(name); ok {
			e.Command = name
		}
	}
	if isRandom(e.ID) {
		return e, nil
	}
	e.Content = hash(key, value)
	var err error
	if position, ok := header("outboxcdc-position"); ok {
		e.Origin, err = originOf(position)
	} else {
		e.Origin, _ = header("outboxcdc-origin")
	}
	if err != nil {
		return Event{}, fmt.Errorf("record with id %q: %w", e.ID, err)
	}
	return e, nil
}

// isRandom reports whether an id is a UUID with a random part (versions 1, 4, 6 and 7): nothing generates it again.
func isRandom(id string) bool {
	if len(id) != 36 || !strings.ContainsRune("1467", rune(id[14])) {
		return false
	}
	for i, c := range []byte(id) {
		isDash := i == 8 || i == 13 || i == 18 || i == 23
		isHex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
		if isDash != (c == '-') || !isDash && !isHex {
			return false
		}
	}
	return true
}

// originOf returns system id and database OID of the header outboxcdc-position. The slot is no part of the origin,
// because two slots of a database send the same events. Neither are epoch and timeline, because an event may be sent
// again after a restore.
func originOf(position string) (string, error) {
	f := strings.Split(position, ":")
	switch {
	case f[0] == "1":
		return "", nil // it does not name the database
	case f[0] == "2" && len(f) == 8:
		return f[1] + ":" + f[2], nil
	}
	return "", fmt.Errorf("outboxcdc-position %q has another version than 1 and 2: update the module github.com/outboxcdc/outboxcdc/inbox", position)
}

// hash distinguishes a null key from an empty one, and a null value, too.
func hash(key, value []byte) int64 {
	h := sha256.New()
	for _, b := range [][]byte{key, value} {
		length := int64(-1)
		if b != nil {
			length = int64(len(b))
		}
		_ = binary.Write(h, binary.BigEndian, length)
		h.Write(b)
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}
