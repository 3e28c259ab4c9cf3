package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/router"
)

// endRead reads the end of one partition, in windows of offsets: first the last offset, then ever larger windows
// before it, until an own record at or before the settled position is found. Within a window it reads forwards,
// because Kafka cannot read backwards.
type endRead struct {
	ends  *ends
	topic string
	id    int32

	err          error         // why reading has stopped in this round
	unclassified int           // number of errors that are not known to be transient
	moved        bool          // something was read in this round
	away         time.Duration // how long nothing was read although Kafka answers
	fetchAlone   bool          // in a separate request
	epoch        int32         // of the leader

	phantoms     map[int32]*checkpoint.Phantoms // by timeline
	reached      bool                           // a record at or before the settled position was found
	beyond       bool                           // an own record after the positions of the search was seen
	endUnknown   bool                           // end must be requested, perhaps again: another leader may have another end
	end          int64                          // of the log, as far as it is known; -1: not at all
	start        int64                          // of the log; a lower bound
	firstOwn     int64                          // offset of the first own record that was found, or the end
	startUnknown bool                           // start must be requested
	window                                      // that is being read; all later offsets have been read, except for that of held
	held         *window                        // is continued after window, which has what was added at the end meanwhile
	windowSize   int64                          // size of the next window
	result       string
}

// window is a part of the log.
type window struct {
	windowStart int64 // first offset
	next        int64 // next offset to read
	windowEnd   int64
}

// Results of reading an end. They are label values, so the set is closed.
const (
	endFound      = "found"
	endNone       = "none"
	endLookBack   = "look_back"
	endUnreadable = "unreadable"
)

var endResults = []string{endFound, endNone, endLookBack, endUnreadable}

// windowGrowth is the factor by which each window is larger than the previous one.
const windowGrowth = 8

// reset restarts the reading, because records were deleted, or the log was truncated.
func (r *endRead) reset() {
	r.phantoms, r.reached, r.beyond, r.endUnknown, r.end, r.start, r.startUnknown, r.held, r.windowSize, r.result =
		map[int32]*checkpoint.Phantoms{}, false, false, true, -1, 0, false, nil, 1, ""
}

// goOn continues the reading in a session of its own. What was added since the last one is read as well.
func (r *endRead) goOn(e *ends) {
	if r.result == endUnreadable { // perhaps it can be read now; what was found in it is forgotten
		r.reset()
		r.unclassified, r.away = 0, 0
	}
	r.ends, r.result, r.err, r.endUnknown = e, "", nil, true
}

// stayAway adds a time without progress. It reports false, and the end counts as unreadable, when that has lasted for
// longer than budget.
func (r *endRead) stayAway(took, budget time.Duration) bool {
	if r.moved {
		r.moved, r.away = false, 0
		return true
	}
	if r.away += took; r.away <= budget {
		return true
	}
	r.result = endUnreadable
	r.ends.unreadable(r.topic, r.err)
	return false
}

// setEnd sets the end of the log and opens the first window. If the end was known, it opens a window for what was
// added.
func (r *endRead) setEnd(end int64) {
	if end < r.end { // truncated: other records get the offsets of those that were found
		r.ends.search.Found.Forget(r.topic, r.id)
		r.reset()
	}
	r.endUnknown = false
	switch {
	case r.end < 0:
		r.end, r.windowEnd, r.firstOwn = end, end, end
		r.openWindow()
		return
	case end > r.end && r.held != nil:
		r.windowEnd = end
	case end > r.end:
		r.held = new(r.window)
		r.window = window{r.end, r.end, end}
	}
	r.end = end
	r.advanceWindow()
}

// openWindow begins the window before the offsets that were read, or sets the result if there is none.
func (r *endRead) openWindow() {
	floor := max(r.start, r.firstOwn-int64(r.ends.search.LookBack))
	switch {
	case r.reached:
		r.result = endFound
	case r.windowEnd <= r.start:
		r.result = endNone
	case r.windowEnd <= floor:
		r.result = endLookBack
	default:
		r.windowStart = max(r.windowEnd-r.windowSize, floor)
		r.next = r.windowStart
		r.windowSize = min(r.windowSize*windowGrowth, 1<<20)
	}
}

// readBatch reads the next batch of the window. It reads the whole first batch, including records before the window.
func (r *endRead) readBatch(b *sarama.RecordBatch) {
	if b.LastOffset() < r.next || b.FirstOffset >= r.windowEnd {
		r.next = max(r.next, min(b.FirstOffset, r.windowEnd))
		return
	}
	if r.next == r.windowStart {
		r.windowStart = min(r.windowStart, b.FirstOffset)
		r.next = r.windowStart
	}
	if _, ours := r.ends.producerIDs[b.ProducerID]; ours && !b.Control {
		for _, rec := range b.Records {
			if at := b.FirstOffset + rec.OffsetDelta; at >= r.next && at < r.windowEnd {
				r.firstOwn = min(r.firstOwn, at)
				r.readRecord(rec, at, b)
			}
		}
	}
	r.next = b.LastOffset() + 1
}

// readRecord reads an own record.
func (r *endRead) readRecord(rec *sarama.Record, offset int64, b *sarama.RecordBatch) {
	q := &r.ends.search
	own, ok := ownRecord(rec)
	pos := own.Position
	switch {
	case !ok:
	case !checkpoint.Holds(q.Lineage, pos):
		if pos.SystemID == q.Lineage.System() {
			if r.phantoms[pos.Timeline] == nil {
				r.phantoms[pos.Timeline] = &checkpoint.Phantoms{}
			}
			r.phantoms[pos.Timeline].Add(own.ID, pos)
		}
	default:
		r.reached = r.reached || pos.Compare(q.Settled) <= 0
		r.beyond = r.beyond || pos.CommitLSN >= q.Until
		own.Topic, own.Partition, own.Offset, own.Producer, own.Epoch = r.topic, r.id, offset, b.ProducerID, b.ProducerEpoch
		if own.KeyTopic == "" {
			own.KeyTopic = r.topic
		}
		q.Note(&own)
	}
}

// ownRecord reads what a record says of its event. ok is false if it has no valid position.
func ownRecord(rec *sarama.Record) (own checkpoint.OwnRecord, ok bool) {
	isDead, isHeld := false, false
	for _, h := range rec.Headers {
		switch string(h.Key) {
		case router.HeaderPosition:
			var err error
			if own.Position, err = checkpoint.ParsePosition(string(h.Value)); err == nil {
				ok = true
			}
		case router.HeaderID:
			if own.ID == nil {
				own.ID = h.Value
			}
		case router.HeaderTopic: // the last one is the daemon's
			isDead, own.KeyTopic = true, string(h.Value)
		case router.HeaderHeldBy:
			isHeld = true
		}
	}
	if !isDead || isHeld { // a dead letter that holds no key is in no order
		own.Key = rec.Key
	}
	return own, ok
}

// readBlock reads the leader's answer for the partition. It reports whether reading has advanced.
func (r *endRead) readBlock(block *sarama.FetchResponseBlock) (bool, error) {
	switch {
	case block == nil:
		return false, nil // the answer had no room for the partition
	case errors.Is(block.Err, sarama.ErrOffsetOutOfRange): // records were deleted, or the log was truncated
		again := r.startUnknown
		r.ends.search.Found.Forget(r.topic, r.id)
		r.reset()
		r.startUnknown = true
		if again {
			return false, block.Err
		}
		return true, nil
	case block.Err != sarama.ErrNoError:
		return false, block.Err
	}
	r.start = max(r.start, block.LogStartOffset)
	before := r.next
	for _, set := range block.RecordsSet {
		switch {
		case set.RecordBatch == nil: // an old format, without headers
			for _, m := range set.MsgSet.Messages {
				r.next = max(r.next, m.Offset+1)
			}
		case set.RecordBatch.PartialTrailingRecord:
			if r.next = max(r.next, set.RecordBatch.FirstOffset); r.next == before && r.fetchAlone {
				return false, fmt.Errorf("the record batch at offset %d cannot be decoded", r.next)
			}
		default:
			r.readBatch(set.RecordBatch)
		}
	}
	return r.next > before, nil
}

// advanceWindow opens the next window when the current one has been read.
func (r *endRead) advanceWindow() {
	for !r.endUnknown && r.result == "" && r.next >= r.windowEnd {
		if r.held != nil {
			r.window, r.held = *r.held, nil
			continue
		}
		r.windowEnd = r.windowStart
		r.openWindow()
	}
}

// isUndecodable reports whether an answer cannot be decoded.
func isUndecodable(err error) bool { return errors.As(err, new(sarama.PacketDecodingError)) }

// damaged returns the error of a fetch that cannot be decoded. It is not that of a connection.
func (r *endRead) damaged(err error) error {
	return fmt.Errorf("the record batch at offset %d cannot be decoded: %v", r.next, err) //nolint:errorlint // see above
}

// maxUnclassified is how many errors that are not known to be transient may occur before the end counts as unreadable.
const maxUnclassified = 5

// noteError ends the round for the partition, or sets the result endUnreadable if waiting does not help.
func (r *endRead) noteError(err error) {
	if kindOf(err).class != denied {
		if !isTransient(err) {
			r.unclassified++
		}
		if r.unclassified <= maxUnclassified {
			r.endUnknown, r.err = true, err
			return
		}
	}
	r.result = endUnreadable
	r.ends.unreadable(r.topic, err)
}
