package kafka

import (
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// batch is a sequence of records of one partition that is sent as one record batch. A sealed batch never changes: a
// resend must have the same records and sequence numbers, so that the broker recognizes a duplicate. Batches are
// reused after their ack, so that a record costs no allocation.
//
// Sarama encodes the records (wire.go) at the first send and keeps the bytes for a resend. It does not accept bytes
// that we encode (ADR 13).
type batch struct {
	part    *partition
	numbers []uint64 // of Send
	entries []entry
	// bytes has copies of the parts of all records, one after the other: key, value, and name and value of each header.
	// lengths has the length of each part; -1: it is nil. There are no pointers, so the garbage collector has nothing to
	// look for in the batches that wait.
	bytes   []byte
	lengths []int32
	size    int // upper bound of the encoded size, as in roughSize

	sentAt   time.Time // time of the first send
	hasTimes bool      // some record has a timestamp
	rowTimes bool      // some record has a timestamp of its row
	sealed   bool      // the batch has its sequence numbers
	tries    int
	// maybeStored means that the batch was sent without an ack, and may be in the log or be stored later.
	maybeStored bool
	wire        sarama.RecordBatch // its records are valid during a send only
}

// entry has the properties of a record.
type entry struct {
	timestamp int64 // router.Record.Timestamp
	headers   int32
	size      int32 // bytes of key, value and headers
}

// firstBytes is the initial capacity of a batch.
const firstBytes = 1024

func newBatch() *batch { return &batch{bytes: make([]byte, 0, firstBytes), size: batchHeader} }

// reset empties the batch for reuse.
func (b *batch) reset() {
	*b = batch{numbers: b.numbers[:0], entries: b.entries[:0], bytes: b.bytes[:0], lengths: b.lengths[:0], size: batchHeader}
}

// add adds a copy of rec, whose slices belong to the router.
func (b *batch) add(rec *router.Record, n uint64, size int) {
	start := len(b.bytes)
	b.hasTimes, b.rowTimes = b.hasTimes || rec.Timestamp != 0, b.rowTimes || rec.RowTime
	b.copyPart(rec.Key)
	b.copyPart(rec.Value)
	for i := range rec.Headers {
		h := &rec.Headers[i]
		b.bytes = append(b.bytes, h.Name...)
		b.lengths = append(b.lengths, int32(len(h.Name)))
		b.copyPart(h.Value)
	}
	b.numbers = append(b.numbers, n)
	b.entries = append(b.entries, entry{timestamp: rec.Timestamp, headers: int32(len(rec.Headers)), size: int32(len(b.bytes) - start)})
	b.size += size
}

func (b *batch) copyPart(v []byte) {
	n := int32(-1)
	if v != nil {
		n = int32(len(v))
	}
	b.bytes = append(b.bytes, v...)
	b.lengths = append(b.lengths, n)
}

// identity is the producer id, epoch and sequence number by which a broker recognizes a duplicate batch.
type identity struct {
	producer int64
	epoch    int16
	sequence int32
}

// seal gives the batch its sequence numbers and times. No record is added later. Records without a timestamp get the
// time of sending.
func (b *batch) seal(id identity, codec sarama.CompressionCodec, now time.Time) {
	b.sentAt = now
	first, latest := now, now
	if b.hasTimes {
		first, latest = b.times(now)
	}
	b.wire = sarama.RecordBatch{
		Version: 2, Codec: codec, CompressionLevel: sarama.CompressionLevelDefault,
		FirstTimestamp: first, MaxTimestamp: latest, LastOffsetDelta: int32(len(b.entries) - 1),
		ProducerID: id.producer, ProducerEpoch: id.epoch, FirstSequence: id.sequence,
	}
	b.sealed = true
}

// times sets the missing timestamps, and returns the first and the latest one.
func (b *batch) times(now time.Time) (first, latest time.Time) {
	most := int64(0)
	for i := range b.entries {
		e := &b.entries[i]
		if e.timestamp == 0 {
			e.timestamp = now.UnixMilli()
		}
		if i == 0 {
			most = e.timestamp
		}
		most = max(most, e.timestamp)
	}
	return time.UnixMilli(b.entries[0].timestamp), time.UnixMilli(most)
}

// nextSequence returns the sequence number that follows a batch of n records: 2³¹-1 is followed by 0.
func nextSequence(sequence int32, n int) int32 {
	return int32((int64(sequence) + int64(n)) & (1<<31 - 1))
}
