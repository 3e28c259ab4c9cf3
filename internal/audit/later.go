package audit

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"
)

// later finds the keys of missing rows for which Kafka has later events, so that the order of the key cannot be
// restored, and those for which it may have some: where an event has no time, or two have the same, which one is
// later is not known. Rows that are not judged count as well, if they may be sent.
type later struct{ byKey *sorter }

const (
	laterMissing   = 'm'
	laterDelivered = 'd'
	laterUndecided = 'u'
)

// noTime stands for the time of an event that has none.
const noTime = math.MinInt64

// add notes an event of a key, with the time of its row, or of its record if it has no row.
func (l *later) add(what byte, topic uint64, key []byte, at time.Time) error {
	micro := int64(noTime)
	if !at.IsZero() {
		micro = at.UnixMicro()
	}
	b := append(appendBytes(binary.AppendUvarint(nil, topic), key), what)
	return l.byKey.add(binary.AppendVarint(b, micro))
}

// keyTimes is what is known of the events of a key.
type keyTimes struct {
	missing, delivered     int64 // the time of the first one missing, and of the last one delivered
	isMissing, isDelivered bool  // there is one
	untimed                bool  // one of them has no time
}

func (k *keyTimes) note(what byte, at int64) {
	missing := what != laterDelivered
	k.isMissing, k.isDelivered = k.isMissing || missing, k.isDelivered || !missing
	switch {
	case at == noTime:
		k.untimed = true
	case missing:
		k.missing = min(k.missing, at)
	default:
		k.delivered = max(k.delivered, at)
	}
}

// overtaken returns whether Kafka may have later events than those that are missing, and whether it has.
func (k *keyTimes) overtaken() (may, certain bool) {
	may = k.isMissing && k.isDelivered && (k.untimed || k.delivered >= k.missing)
	return may, k.delivered > k.missing
}

// run calls fn with the topic and the key of each, as [Judge.Later] says.
func (l *later) run(topics []string, fn func(topic, key string, certain, missing bool) error) error {
	var place []byte
	var of, judged keyTimes // judged: without the rows that are not
	end := func() error {
		may, certain := of.overtaken()
		if !may {
			return nil
		}
		missing, _ := judged.overtaken()
		r := &reader{b: place}
		return fn(topics[r.uint()], string(r.bytes()), certain, missing)
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
			place, of = append(place[:0], own...), keyTimes{missing: math.MaxInt64, delivered: math.MinInt64}
			judged = of
		}
		what := r.b[0]
		r.b = r.b[1:]
		at := r.int()
		if of.note(what, at); what != laterUndecided {
			judged.note(what, at)
		}
		if r.bad {
			return errDamaged
		}
		return nil
	})
	if err == nil {
		err = end()
	}
	return err
}
