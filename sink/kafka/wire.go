package kafka

import (
	"time"

	"github.com/IBM/sarama"
)

// wireRecords are the records of one request in the form that sarama encodes. Sarama needs them only during a send,
// so each broker's goroutine has one set of them, which it uses again.
type wireRecords struct {
	records    []sarama.Record
	headers    []sarama.RecordHeader
	recordPtrs []*sarama.Record       // to each of records
	headerPtrs []*sarama.RecordHeader // to each of headers
	recordsSet int
	headersSet int
}

// set sets the records of the batches.
func (w *wireRecords) set(batches []*batch) {
	records, headers := 0, 0
	for _, b := range batches {
		records += len(b.entries)
		headers += (len(b.lengths) - 2*len(b.entries)) / 2
	}
	w.grow(records, headers)
	for _, b := range batches {
		b.wire.Records = w.add(b)
	}
}

// grow provides memory before the first pointer into it is used. A quarter more is allocated, because requests differ.
func (w *wireRecords) grow(records, headers int) {
	if records > len(w.records) {
		w.records, w.recordPtrs = allocate[sarama.Record](records + records/4)
	}
	if headers > len(w.headers) {
		w.headers, w.headerPtrs = allocate[sarama.RecordHeader](headers + headers/4)
	}
}

func allocate[T any](n int) ([]T, []*T) {
	values, ptrs := make([]T, n), make([]*T, n)
	for i := range values {
		ptrs[i] = &values[i]
	}
	return values, ptrs
}

// add sets the records of a batch, whose parts they point to.
func (w *wireRecords) add(b *batch) []*sarama.Record {
	bytes, lengths := b.bytes, b.lengths
	part := func() (v []byte) {
		n := lengths[0]
		lengths = lengths[1:]
		if n < 0 {
			return nil
		}
		v, bytes = bytes[:n:n], bytes[n:]
		return v
	}
	from := w.recordsSet
	for i := range b.entries {
		e := &b.entries[i]
		r := &w.records[w.recordsSet]
		w.recordsSet++
		r.OffsetDelta, r.TimestampDelta = int64(i), 0
		if b.hasTimes {
			r.TimestampDelta = time.Duration(e.timestamp-b.entries[0].timestamp) * time.Millisecond
		}
		r.Key, r.Value = part(), part()
		r.Headers = w.headerPtrs[w.headersSet : w.headersSet+int(e.headers)]
		for _, h := range r.Headers {
			h.Key, h.Value = part(), part()
		}
		w.headersSet += int(e.headers)
	}
	return w.recordPtrs[from:w.recordsSet:w.recordsSet]
}

// release drops the pointers into the batches, so that the memory of large ones can be freed. It does not touch the
// batches: if the answer has arrived already, they are in use again.
func (w *wireRecords) release() {
	clear(w.records[:w.recordsSet])
	clear(w.headers[:w.headersSet])
	w.recordsSet, w.headersSet = 0, 0
}
