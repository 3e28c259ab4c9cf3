package audit

import (
	"encoding/binary"
	"time"
)

// later finds the keys of missing rows for which Kafka has later events, so that the order of the key cannot be restored.
type later struct{ byKey *spill }

const (
	laterMissing   = 'm'
	laterDelivered = 'd'
)

// add notes an event of a key, with the time of its row, or of its record if it has no row.
func (l *later) add(hash uint64, what byte, topic uint64, key []byte, at time.Time) error {
	b := appendBytes(binary.AppendUvarint([]byte{what}, topic), key)
	return l.byKey.add(hash, binary.AppendVarint(b, at.UnixMicro()))
}

// run calls fn with the topic and the key of each.
func (l *later) run(limit int64, topics []string, fn func(topic, key string) error) error {
	type place struct {
		topic uint64
		key   string
	}
	type times struct{ missing, delivered int64 } // the first one missing, the last one delivered
	for b := range buckets {
		entries, err := l.byKey.read(b, limit)
		if err != nil {
			return err
		}
		found := map[place]*times{}
		for _, e := range entries {
			r := &reader{b: e[1:]}
			p := place{r.uint(), string(r.bytes())}
			at := r.int()
			if r.bad || p.topic >= uint64(len(topics)) {
				return errDamaged
			}
			t := found[p]
			if t == nil {
				t = &times{missing: 1<<63 - 1, delivered: -1 << 63}
				found[p] = t
			}
			if e[0] == laterMissing {
				t.missing = min(t.missing, at)
			} else {
				t.delivered = max(t.delivered, at)
			}
		}
		for p, t := range found {
			if t.delivered > t.missing {
				if err := fn(topics[p.topic], p.key); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
