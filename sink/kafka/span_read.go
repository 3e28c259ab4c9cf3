package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// Record is a record that ReadSpan has read. The Record itself and Headers are valid until fn returns. Key, Value and
// the values of headers are never overwritten, but they keep the whole batch in memory: copy what is needed for long.
type Record struct {
	Offset  int64
	Time    time.Time // as the producer has set it; if message.timestamp.type is LogAppendTime: when the broker has stored it
	Key     []byte    // nil: null
	Value   []byte    // nil: null
	Headers []router.Header
	// Uncommitted is whether the record is of a transaction that was aborted, or is open: consumers with
	// isolation.level=read_committed do not get it, and others do.
	Uncommitted bool
	// Gap is whether the log has no records at offsets just before this one: compaction leaves such gaps. Control
	// records are none.
	Gap bool
}

const (
	// spanWait is how long a broker may wait for records when it has none. It has them at once, except after an election
	// or if it reads them from remote storage.
	spanWait = 500 * time.Millisecond
	// quietTries is how often in a row a broker must send no records until the log counts as empty up to the span's end.
	quietTries = 3
	// quietBytes is the maximum of a fetch after an answer without records. Batches that compaction has emptied take
	// part in an answer, and sarama leaves them out. Kafka keeps one such batch for each producer.
	quietBytes = 16 << 20
	// headerNames is the maximum number of header names that a reader keeps, so that it need not allocate them for each
	// record.
	headerNames = 100
)

// errQuiet is an answer without records, although the log goes on.
var errQuiet = errors.New("the broker sends no records, although the log goes on")

// ReadSpan calls fn with each record of the span in the order of the offsets. It returns an error of fn as it is, and
// the cause of ctx soon after ctx has ended. s.From is then the offset of the first record that fn has not accepted,
// so a later call can go on there.
//
// ReadSpan tries again if the leader moves or does not answer, for as long as Config.AwayBudget without a record. If
// Kafka has deleted records before they were read, it goes on with the first one left: s.First is its offset, and
// s.Deleted counts the missing offsets. Control records are skipped.
//
// Several spans can be read at the same time, also of one leader: each call has a connection of its own, and calls
// its fn in the goroutine of its caller. A call holds one answer of the broker in memory: 1 MiB as it is stored in
// Kafka, or one larger batch.
func (c *Client) ReadSpan(ctx context.Context, s *Span, fn func(*Record) error) error {
	ctl := c.takeControl(s.leader)
	defer c.returnControl(ctl)
	r := &spanReader{client: c, ctl: ctl, span: s, fn: fn, most: fetchBytes, names: map[string]string{}, next: s.From, stable: math.MaxInt64}
	for p := (patience{client: c}); s.From < s.End; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		before := s.From
		err := r.step(ctx)
		if r.stopped != nil {
			return r.stopped
		}
		if s.From > before {
			p.progress()
		}
		if err == nil {
			continue
		}
		s.leader = ""
		if err = p.wait(ctx, err); err != nil && ctx.Err() == nil {
			return &failure{
				op:    fmt.Sprintf("read partition %d of topic %s at offset %d", s.Partition, s.Topic, s.From),
				topic: s.Topic, permissions: spanPermissions(s.Topic), err: err,
			}
		}
	}
	s.Gap = r.gap || r.next < s.End
	return nil
}

// spanReader is one call of ReadSpan.
type spanReader struct {
	client  *Client
	ctl     *control
	span    *Span
	fn      func(*Record) error
	record  Record
	names   map[string]string // of headers
	most    int32             // bytes of a fetch
	quiet   int               // answers in a row without records
	stopped error             // what fn has returned, or the cause of the end of ctx
	next    int64             // the offset after the last one that had a record
	gap     bool              // the log has no records at offsets just before next
	stable  int64             // from this offset on, the outcome of transactions is not known

	// notBefore is the end of a pause that a quota demands. Sarama would make the same pause before the next request,
	// whatever happens to ctx.
	notBefore time.Time
}

// step fetches once and delivers the answer.
func (r *spanReader) step(ctx context.Context) error {
	s := r.span
	r.client.pause(ctx, time.Until(r.notBefore))
	if s.leader == "" {
		found, err := r.ctl.topics(ctx, []string{s.Topic})
		if err != nil {
			return err
		}
		if s.leader, err = r.ctl.leaderIn(found[s.Topic], s.Partition); err != nil {
			return err
		}
	}
	req := &sarama.FetchRequest{Version: 11, MaxWaitTime: int32(spanWait / time.Millisecond), MinBytes: 1, MaxBytes: r.most, SessionEpoch: -1}
	decided := s.From < r.stable
	if decided {
		req.Isolation = sarama.ReadCommitted // up to the last stable offset, and tells which transactions were aborted
	}
	req.AddBlock(s.Topic, s.Partition, s.From, r.most, -1)
	var res *sarama.FetchResponse
	err := r.ctl.askBroker(ctx, s.leader, func(b *sarama.Broker) (err error) {
		res, err = b.Fetch(req)
		return err
	})
	if err != nil {
		return err
	}
	r.notBefore = time.Now().Add(res.ThrottleTime)
	block := res.GetBlock(s.Topic, s.Partition)
	switch {
	case res.ErrorCode != 0:
		return sarama.KError(res.ErrorCode)
	case block == nil && res.ThrottleTime > 0: // only the pause (KIP-219)
		return nil
	case block == nil:
		return errUnanswered
	case errors.Is(block.Err, sarama.ErrOffsetOutOfRange):
		return r.outOfRange(ctx)
	case block.Err != sarama.ErrNoError:
		return block.Err
	}
	if decided {
		r.stable = block.LastStableOffset
	}
	before, aborted := s.From, newAborted(block)
	for _, set := range block.RecordsSet {
		switch {
		case set.RecordBatch == nil:
			return errors.New("the records have a format older than Kafka 0.11")
		case !set.RecordBatch.PartialTrailingRecord:
			uncommitted := aborted.has(set.RecordBatch) || !decided && set.RecordBatch.IsTransactional
			if r.stopped = r.deliver(ctx, set.RecordBatch, uncommitted); r.stopped != nil {
				return nil
			}
		case s.From == before:
			return fmt.Errorf("the record batch at offset %d cannot be decoded", set.RecordBatch.FirstOffset)
		}
	}
	if s.From > before {
		r.quiet, r.most = 0, fetchBytes
		return nil
	}
	if decided && s.From >= r.stable { // the rest is read without waiting for open transactions
		return nil
	}
	return r.noRecords(ctx, block.HighWaterMarkOffset)
}

// aborted is the aborted transactions that an answer is about.
type aborted struct {
	begin []*sarama.AbortedTransaction // later in the answer
	open  map[int64]bool               // producers with one of which the end was not seen
}

func newAborted(block *sarama.FetchResponseBlock) *aborted {
	slices.SortFunc(block.AbortedTransactions, func(a, b *sarama.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return &aborted{block.AbortedTransactions, map[int64]bool{}}
}

// has reports whether a batch is of an aborted transaction. It is called with each batch of the answer.
func (a *aborted) has(b *sarama.RecordBatch) bool {
	for len(a.begin) > 0 && a.begin[0].FirstOffset <= b.LastOffset() {
		a.open[a.begin[0].ProducerID], a.begin = true, a.begin[1:]
	}
	if b.Control { // the end of its producer's transaction
		delete(a.open, b.ProducerID)
	}
	return b.IsTransactional && a.open[b.ProducerID]
}

// deliver calls fn with the records of a batch, and advances the span. It returns what ends the reading.
func (r *spanReader) deliver(ctx context.Context, b *sarama.RecordBatch, uncommitted bool) error {
	s, rec := r.span, &r.record
	rec.Uncommitted = uncommitted
	if b.Control {
		r.reach(b.FirstOffset, b.LastOffset()+1)
	}
	for _, from := range b.Records {
		rec.Offset = b.FirstOffset + from.OffsetDelta
		if b.Control || rec.Offset < s.From || rec.Offset >= s.End {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rec.Key, rec.Value = from.Key, from.Value
		if rec.Time = b.MaxTimestamp; !b.LogAppendTime {
			rec.Time = b.FirstTimestamp.Add(from.TimestampDelta)
		}
		rec.Headers = rec.Headers[:0]
		for _, h := range from.Headers {
			rec.Headers = append(rec.Headers, router.Header{Name: r.name(h.Key), Value: h.Value})
		}
		r.reach(rec.Offset, rec.Offset)
		rec.Gap = r.gap
		if err := r.fn(rec); err != nil {
			return err
		}
		s.From, r.next, r.gap = rec.Offset+1, rec.Offset+1, false
	}
	s.From = min(max(s.From, b.LastOffset()+1), s.End)
	r.reach(s.From, s.From)
	return nil
}

// reach notes that the log has something from an offset up to before next, and nothing between the last noted one and
// that.
func (r *spanReader) reach(offset, next int64) {
	r.gap, r.next = r.gap || offset > r.next, max(r.next, next)
}

// name returns the name of a header as a string.
func (r *spanReader) name(raw []byte) string {
	name, ok := r.names[string(raw)]
	if !ok {
		name = string(raw)
		if len(r.names) < headerNames {
			r.names[name] = name
		}
	}
	return name
}

// outOfRange finds out whether the log begins after the next offset now, because Kafka has deleted records.
func (r *spanReader) outOfRange(ctx context.Context) error {
	s := r.span
	var first int64
	err := r.ctl.askBroker(ctx, s.leader, func(b *sarama.Broker) (err error) {
		first, err = offsetAt(b, r.ctl.conf.Version, s.Topic, s.Partition, sarama.OffsetOldest)
		return err
	})
	if err != nil {
		return err
	}
	if first <= s.From {
		return fmt.Errorf("the log ends before this offset, because the topic was recreated or its leader has lost records: %w", sarama.ErrOffsetOutOfRange)
	}
	next := min(first, s.End)
	s.First, s.From, s.Deleted, r.next, r.gap = first, next, s.Deleted+next-s.From, next, false
	return nil
}

// noRecords judges an answer without records. In a log that is compacted the last records before the span's end can
// be missing. In any other log they cannot: then the broker has not read them in time, from remote storage for one.
func (r *spanReader) noRecords(ctx context.Context, highWaterMark int64) error {
	s := r.span
	if highWaterMark < s.End {
		return fmt.Errorf("the log of the leader ends at offset %d, before the end of the span: %w", highWaterMark, sarama.ErrOffsetNotAvailable)
	}
	r.most = quietBytes
	if r.quiet++; r.quiet < quietTries {
		return errQuiet
	}
	all, err := r.ctl.compacted(ctx, []string{s.Topic})
	if err != nil {
		return err
	}
	if compacted, known := all[s.Topic]; known && !compacted {
		return errQuiet
	}
	s.From = s.End
	return nil
}
