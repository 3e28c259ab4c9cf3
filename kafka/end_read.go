package kafka

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// endRead is how far the end of one partition has been read. It is read in windows: the last offset, then, as long as no record
// of ours was found that is at or before the settled position, ever larger ones before it. In a window it goes forward, since Kafka
// knows no other way.
type endRead struct {
	ends  *ends
	topic string
	id    int32

	err   error // why it cannot go on in this round
	odd   int   // errors of which no rule says whether they pass
	alone bool  // in a request of its own

	phantoms checkpoint.Phantoms
	reached  bool  // a record at or before the settled position was found
	end      int64 // of the log; -1: to be asked
	start    int64 // of the log, as far as it is known
	ours     int64 // the first record of ours that was found; the end, if none was
	lost     bool  // start is to be asked
	from     int64 // the window's beginning
	next     int64 // where reading goes on in it
	until    int64 // its end: all from there on has been read
	step     int64 // how large it is
	result   string
}

// Results of reading an end: label values, so the set is closed.
const (
	endFound      = "found"
	endNone       = "none"
	endLookBack   = "look_back"
	endUnreadable = "unreadable"
)

var endResults = []string{endFound, endNone, endLookBack, endUnreadable}

// windowGrowth is by how much each window is larger than the one before.
const windowGrowth = 8

// reset starts over: another leader may have another end.
func (r *endRead) reset() {
	r.phantoms, r.reached, r.end, r.start, r.lost, r.step, r.result = checkpoint.Phantoms{}, false, -1, 0, false, 1, ""
}

// begin takes the end of the log.
func (r *endRead) begin(end int64) {
	r.end, r.until, r.ours = end, end, end
	r.open()
}

// open begins the window before what has been read, or finds that there is none.
func (r *endRead) open() {
	floor := max(r.start, r.ours-int64(r.ends.q.LookBack))
	switch {
	case r.reached:
		r.result = endFound
	case r.until <= r.start:
		r.result = endNone
	case r.until <= floor:
		r.result = endLookBack
	default:
		r.from = max(r.until-r.step, floor)
		r.next = r.from
		r.step = min(r.step*windowGrowth, 1<<20)
	}
}

// take reads a batch, which is the next in the log. Of the first one of a window it takes all, also what is before the window.
func (r *endRead) take(b *sarama.RecordBatch) {
	if b.LastOffset() < r.next || b.FirstOffset >= r.until {
		r.next = max(r.next, min(b.FirstOffset, r.until))
		return
	}
	if r.next == r.from {
		r.from = min(r.from, b.FirstOffset)
		r.next = r.from
	}
	if _, ours := r.ends.ours[b.ProducerID]; ours && !b.Control {
		for _, rec := range b.Records {
			if at := b.FirstOffset + rec.OffsetDelta; at >= r.next && at < r.until {
				r.ours = min(r.ours, at)
				r.record(rec)
			}
		}
	}
	r.next = b.LastOffset() + 1
}

// record takes a record of ours.
func (r *endRead) record(rec *sarama.Record) {
	q := &r.ends.q
	pos, id, ok := positionOf(rec)
	switch {
	case !ok:
	case !checkpoint.Holds(q.Lineage, pos):
		if pos.SystemID == q.Lineage.System() {
			r.phantoms.Add(id, pos)
		}
	case pos.Compare(q.Settled) <= 0:
		r.reached = true
	case pos.Compare(q.Acked) > 0 && pos.CommitLSN < q.Until:
		q.Found.Add(pos, q.Found.Hash(id))
	}
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
func (r *endRead) answered(block *sarama.FetchResponseBlock) (bool, error) {
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
			r.take(set.RecordBatch)
		}
	}
	return r.next > before, nil
}

// closed opens the next window when the present one has been read.
func (r *endRead) closed() {
	for r.end >= 0 && r.result == "" && r.next >= r.until {
		r.until = r.from
		r.open()
	}
}

// oddTries is how often an error is met of which no rule says whether it passes, until the end counts as unreadable.
const oddTries = 5

// failed takes the partition out of the round, or gives it up if waiting does not help.
func (r *endRead) failed(err error) {
	if kindOf(err).class != right {
		if !passes(err) {
			r.odd++
		}
		if r.odd <= oddTries {
			lost := r.lost
			r.reset()
			r.lost, r.err = lost, err
			return
		}
	}
	r.result = endUnreadable
	r.ends.unreadable(r.topic, err)
}
