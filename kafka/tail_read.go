package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// tailRead is how far the end of one partition has been read. It is read in windows: the last offset, then, as long as no record
// of ours was found that the server has, ever larger ones in front of it. In a window it goes forward.
type tailRead struct {
	part   *partition
	asked  time.Time
	urgent bool      // a record waits for it; guarded by Producer.mu
	after  time.Time // not before
	tries  int       // that failed since something was read
	odd    int       // those of them that failed for a reason of which nobody knows whether it passes
	alone  bool      // in a request of its own

	tail   checkpoint.Tail
	end    int64 // of the log; -1: to be asked
	start  int64 // of the log, as far as it is known
	lost   bool  // start is to be asked
	from   int64 // the window's beginning
	next   int64 // where reading goes on in it
	until  int64 // its end: all from there on has been read
	step   int64 // how large it is
	result string
}

const (
	tailFound      = "found"
	tailNone       = "none"
	tailLookBack   = "look_back"
	tailUnreadable = "unreadable"
)

var tailResults = []string{tailFound, tailNone, tailLookBack, tailUnreadable}

// tailStep is by how much each window is larger than the one before.
const tailStep = 8

// reset begins anew: another leader may have another end.
func (r *tailRead) reset() {
	r.tail, r.end, r.start, r.lost, r.step, r.result = checkpoint.Tail{}, -1, 0, false, 1, ""
}

// begin takes the end of the log.
func (r *tailRead) begin(end, lookBack int64) {
	r.end, r.until = end, end
	r.open(lookBack)
}

// open begins the window in front of what has been read, or finds that there is none.
func (r *tailRead) open(lookBack int64) {
	floor := max(r.start, r.end-lookBack)
	switch {
	case !r.tail.Last.IsZero():
		r.result = tailFound
	case r.until <= r.start:
		r.result = tailNone
	case r.until <= floor:
		r.result = tailLookBack
	default:
		r.from = max(r.until-r.step, floor)
		r.next = r.from
		r.step = min(r.step*tailStep, 1<<20)
	}
}

// take reads a batch, which is the next in the log. Of the first one of a window it takes all, also what is in front of it.
func (r *tailRead) take(b *sarama.RecordBatch, t *tails) {
	if b.LastOffset() < r.next || b.FirstOffset >= r.until {
		r.next = max(r.next, min(b.FirstOffset, r.until))
		return
	}
	if r.next == r.from {
		r.from = min(r.from, b.FirstOffset)
		r.next = r.from
	}
	if _, ours := t.ours[b.ProducerID]; ours && !b.Control {
		for _, rec := range b.Records {
			if at := b.FirstOffset + rec.OffsetDelta; at >= r.next && at < r.until {
				if pos, id, ok := positionOf(rec); ok {
					r.tail.See(t.lineage, pos, id)
				}
			}
		}
	}
	r.next = b.LastOffset() + 1
}

// positionOf reads the headers by which we know an event again. A record without them is none.
func positionOf(rec *sarama.Record) (pos checkpoint.Position, id []byte, ok bool) {
	for _, h := range rec.Headers {
		switch string(h.Key) {
		case router.HeaderPosition:
			var err error
			if pos, err = checkpoint.ParsePosition(string(h.Value)); err == nil {
				ok = true
			}
		case router.HeaderID:
			if id == nil {
				id = h.Value
			}
		}
	}
	return pos, id, ok
}

// answered takes what the leader has sent of the partition. It reports whether reading has advanced.
func (r *tailRead) answered(block *sarama.FetchResponseBlock, t *tails) (bool, error) {
	switch {
	case block == nil:
		return false, nil // there was no room for it
	case errors.Is(block.Err, sarama.ErrOffsetOutOfRange) && !r.lost: // deleted meanwhile, or the log was cut at its end
		r.reset()
		r.lost = true
		return true, nil
	case block.Err != sarama.ErrNoError:
		return false, block.Err
	}
	r.start = max(r.start, block.LogStartOffset)
	before := r.next
	for _, set := range block.RecordsSet {
		switch {
		case set.RecordBatch == nil: // written before there were headers
			for _, m := range set.MsgSet.Messages {
				r.next = max(r.next, m.Offset+1)
			}
		case set.RecordBatch.PartialTrailingRecord:
			if r.next = max(r.next, set.RecordBatch.FirstOffset); r.next == before && r.alone {
				return false, fmt.Errorf("the record batch at offset %d cannot be decoded", r.next)
			}
		default:
			r.take(set.RecordBatch, t)
		}
	}
	return r.next > before, nil
}

// closed opens the next window when the present one has been read.
func (r *tailRead) closed(lookBack int64) {
	for r.end >= 0 && r.result == "" && r.next >= r.until {
		r.until = r.from
		r.open(lookBack)
	}
}

// tailTries is how often an error is met that no rule knows, until the end counts as unreadable.
const tailTries = 5

// lasting: nobody would do better at another time.
func (r *tailRead) lasting(err error) bool {
	switch k := kindOf(err); {
	case k.class == right:
		return true
	case passes(err):
		return false
	}
	r.odd++
	return r.odd > tailTries
}
