package kafka

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// batch is a run of records of one partition that goes to Kafka as one record batch. Once it has its first sequence
// number it never changes: a resend must be the same records under the same numbers, or the broker could not tell that
// it has them already. Batches are used again after their ack, so that a record costs no allocation.
//
// Sarama turns the records into bytes at the first send and keeps those for a resend; bytes made by ourselves cannot be
// handed to it (ADR 13).
type batch struct {
	part    *partition
	entries []entry
	records []sarama.Record
	headers []sarama.RecordHeader
	bytes   []byte // copies of keys, values and headers; never nil, because an empty value is no tombstone
	size    int    // an upper bound, as roughSize counts

	began  time.Time // of the first sending
	timed  bool      // some record has a time of its own
	sealed bool      // it has its sequence numbers
	tries  int
	// doubtful: it was sent, and it is not known whether it will be in the log.
	doubtful bool
	wire     sarama.RecordBatch

	// What wire points to; both are filled when the records do not move any more.
	recordPtrs []*sarama.Record
	headerPtrs []*sarama.RecordHeader
}

// entry is what Kafka does not need to know of a record.
type entry struct {
	n       uint64 // of Send
	at      int64  // router.Record.Timestamp
	headers int32
	size    int32 // bytes of key, value and headers
}

// firstBytes is what a batch has room for at first.
const firstBytes = 1024

func newBatch() *batch { return &batch{bytes: make([]byte, 0, firstBytes), size: batchHeader} }

// reset makes the batch ready for other records, and lets go of what would keep large buffers alive.
func (b *batch) reset() {
	clear(b.records)
	clear(b.headers)
	clear(b.recordPtrs)
	clear(b.headerPtrs)
	*b = batch{
		entries: b.entries[:0], records: b.records[:0], headers: b.headers[:0], bytes: b.bytes[:0], size: batchHeader,
		recordPtrs: b.recordPtrs[:0], headerPtrs: b.headerPtrs[:0],
	}
}

// add copies rec, whose slices belong to the router.
func (b *batch) add(rec *router.Record, n uint64, size int) {
	start := len(b.bytes)
	b.timed = b.timed || rec.Timestamp != 0
	b.records = append(b.records, sarama.Record{
		OffsetDelta: int64(len(b.records)), Key: b.keep(rec.Key), Value: b.keep(rec.Value),
	})
	for i := range rec.Headers {
		h := &rec.Headers[i]
		from := len(b.bytes)
		b.bytes = append(b.bytes, h.Name...)
		name := b.bytes[from:len(b.bytes):len(b.bytes)]
		b.headers = append(b.headers, sarama.RecordHeader{Key: name, Value: b.keep(h.Value)})
	}
	b.entries = append(b.entries, entry{n: n, at: rec.Timestamp, headers: int32(len(rec.Headers)), size: int32(len(b.bytes) - start)})
	b.size += size
}

// keep copies v. When bytes grows, what was kept before stays where it is.
func (b *batch) keep(v []byte) []byte {
	if v == nil {
		return nil
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, v...)
	return b.bytes[from:len(b.bytes):len(b.bytes)]
}

// identity is what makes a broker recognise a batch that it has already.
type identity struct {
	producer int64
	epoch    int16
	sequence int32
}

// seal gives the batch its numbers; no record is added after it. Records without a time of their own carry that of sending.
func (b *batch) seal(id identity, codec sarama.CompressionCodec, now time.Time) {
	for i := range b.headers {
		b.headerPtrs = append(b.headerPtrs, &b.headers[i])
	}
	b.began = now
	from := 0
	for i := range b.records {
		to := from + int(b.entries[i].headers)
		b.records[i].Headers = b.headerPtrs[from:to:to]
		b.recordPtrs = append(b.recordPtrs, &b.records[i])
		from = to
	}
	first, latest := now, now
	if b.timed {
		first, latest = b.times(now)
	}
	b.wire = sarama.RecordBatch{
		Version: 2, Codec: codec, CompressionLevel: sarama.CompressionLevelDefault,
		FirstTimestamp: first, MaxTimestamp: latest, LastOffsetDelta: int32(len(b.records) - 1),
		ProducerID: id.producer, ProducerEpoch: id.epoch, FirstSequence: id.sequence,
		Records: b.recordPtrs,
	}
	b.sealed = true
}

// times gives each record its time, as the distance from the first one's.
func (b *batch) times(now time.Time) (first, latest time.Time) {
	at := func(i int) int64 {
		if own := b.entries[i].at; own != 0 {
			return own
		}
		return now.UnixMilli()
	}
	base := at(0)
	most := base
	for i := range b.records {
		b.records[i].TimestampDelta = time.Duration(at(i)-base) * time.Millisecond
		most = max(most, at(i))
	}
	return time.UnixMilli(base), time.UnixMilli(most)
}

// events are the numbers of the batch's records.
func (b *batch) events() []uint64 {
	out := make([]uint64, len(b.entries))
	for i, e := range b.entries {
		out[i] = e.n
	}
	return out
}

// after returns the sequence number that follows a batch of n records: 2³¹-1 is followed by 0.
func after(sequence int32, n int) int32 {
	return int32((int64(sequence) + int64(n)) & (1<<31 - 1))
}
