package audit

import (
	"bytes"
	"encoding/binary"
	"time"
)

// later finds the keys of missing rows for which Kafka has later events, so that the order of the key cannot be restored.
type later struct{ byKey *sorter }

const (
	laterMissing   = 'm'
	laterDelivered = 'd'
)

// add notes an event of a key, with the time of its row, or of its record if it has no row.
func (l *later) add(what byte, topic uint64, key []byte, at time.Time) error {
	b := append(appendBytes(binary.AppendUvarint(nil, topic), key), what)
	return l.byKey.add(binary.AppendVarint(b, at.UnixMicro()))
}

// run calls fn with the topic and the key of each.
func (l *later) run(topics []string, fn func(topic, key string) error) error {
	var place []byte
	var missing, delivered int64 // the first one missing, the last one delivered
	end := func() error {
		if delivered <= missing {
			return nil
		}
		r := &reader{b: place}
		return fn(topics[r.uint()], string(r.bytes()))
	}
	err := l.byKey.each(func(entry []byte) error {
		r := &reader{b: entry}
		topic := r.uint()
		r.bytes()
		own := entry[:len(entry)-len(r.b)]
		if r.bad || topic >= uint64(len(topics)) || len(r.b) == 0 {
			return errDamaged
		}
		if !bytes.Equal(place, own) {
			if err := end(); err != nil {
				return err
			}
			place = append(place[:0], own...)
			missing, delivered = 1<<63-1, -1<<63
		}
		what := r.b[0]
		r.b = r.b[1:]
		if at := r.int(); what == laterMissing {
			missing = min(missing, at)
		} else {
			delivered = max(delivered, at)
		}
		return nil
	})
	if err == nil {
		err = end()
	}
	return err
}
