package kafka

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// batch is a sequence of records of one partition that is sent as one record batch. A sealed batch never changes: a resend must have
// the same records and sequence numbers, so that the broker recognizes a duplicate. Batches are reused after their ack, so that a
// record costs no allocation.
//
// Sarama encodes the records at the first send and keeps the bytes for a resend. It does not accept bytes that we encode (ADR 13).
type batch struct {
	part    *partition
	numbers []uint64 // of Send
	entries []entry
	records []sarama.Record
	headers []sarama.RecordHeader
	bytes   []byte // copies of keys, values and headers; never nil, because an empty value is no tombstone
	size    int    // upper bound of the encoded size, as in roughSize

	sentAt   time.Time // time of the first send
	hasTimes bool      // some record has a timestamp
	sealed   bool      // the batch has its sequence numbers
	tries    int
	// maybeStored means that the batch was sent without an ack, and may be in the log or be stored later.
	maybeStored bool
	wire        sarama.RecordBatch

	// wire points to these. They are filled by seal, after which records is not reallocated.
	recordPtrs []*sarama.Record
	headerPtrs []*sarama.RecordHeader
}

// entry has the properties of a record that are not sent.
type entry struct {
	timestamp int64 // router.Record.Timestamp
	headers   int32
	size      int32 // bytes of key, value and headers
}

// firstBytes is the initial capacity of a batch.
const firstBytes = 1024

func newBatch() *batch { return &batch{bytes: make([]byte, 0, firstBytes), size: batchHeader} }

// reset empties the batch for reuse, and clears pointers that would keep large buffers alive.
func (b *batch) reset() {
	clear(b.records)
	clear(b.headers)
	clear(b.recordPtrs)
	clear(b.headerPtrs)
	*b = batch{
		numbers: b.numbers[:0], entries: b.entries[:0], records: b.records[:0], headers: b.headers[:0], bytes: b.bytes[:0], size: batchHeader,
		recordPtrs: b.recordPtrs[:0], headerPtrs: b.headerPtrs[:0],
	}
}

// add adds a copy of rec, whose slices belong to the router.
func (b *batch) add(rec *router.Record, n uint64, size int) {
	start := len(b.bytes)
	b.hasTimes = b.hasTimes || rec.Timestamp != 0
	b.records = append(b.records, sarama.Record{
		OffsetDelta: int64(len(b.records)), Key: b.copyBytes(rec.Key), Value: b.copyBytes(rec.Value),
	})
	for i := range rec.Headers {
		h := &rec.Headers[i]
		from := len(b.bytes)
		b.bytes = append(b.bytes, h.Name...)
		name := b.bytes[from:len(b.bytes):len(b.bytes)]
		b.headers = append(b.headers, sarama.RecordHeader{Key: name, Value: b.copyBytes(h.Value)})
	}
	b.numbers = append(b.numbers, n)
	b.entries = append(b.entries, entry{timestamp: rec.Timestamp, headers: int32(len(rec.Headers)), size: int32(len(b.bytes) - start)})
	b.size += size
}

// copyBytes returns a copy of v in b.bytes. Earlier copies stay valid when b.bytes is reallocated.
func (b *batch) copyBytes(v []byte) []byte {
	if v == nil {
		return nil
	}
	from := len(b.bytes)
	b.bytes = append(b.bytes, v...)
	return b.bytes[from:len(b.bytes):len(b.bytes)]
}

// identity is the producer id, epoch and sequence number by which a broker recognizes a duplicate batch.
type identity struct {
	producer int64
	epoch    int16
	sequence int32
}

// seal gives the batch its sequence numbers and times. No record is added later. Records without a timestamp get the time of sending.
func (b *batch) seal(id identity, codec sarama.CompressionCodec, now time.Time) {
	for i := range b.headers {
		b.headerPtrs = append(b.headerPtrs, &b.headers[i])
	}
	b.sentAt = now
	from := 0
	for i := range b.records {
		to := from + int(b.entries[i].headers)
		b.records[i].Headers = b.headerPtrs[from:to:to]
		b.recordPtrs = append(b.recordPtrs, &b.records[i])
		from = to
	}
	first, latest := now, now
	if b.hasTimes {
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

// times sets the timestamp of each record, relative to the first one.
func (b *batch) times(now time.Time) (first, latest time.Time) {
	at := func(i int) int64 {
		if own := b.entries[i].timestamp; own != 0 {
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

// nextSequence returns the sequence number that follows a batch of n records: 2³¹-1 is followed by 0.
func nextSequence(sequence int32, n int) int32 {
	return int32((int64(sequence) + int64(n)) & (1<<31 - 1))
}
