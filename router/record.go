package router

// Record is what is produced to Kafka for one event. Its slices point into the event and into the router's own
// scratch memory: they are valid until the next call of Route, so a sink copies what it keeps.
type Record struct {
	ID      []byte // the event's id, nil if it has none; for people and for poison that only the broker finds
	Topic   string
	Key     []byte // nil: no key
	Value   []byte // nil: a tombstone; empty but not nil: a value of no bytes
	Headers []Header
	// PartitionBy is what is hashed to find the partition: the key, or, for a record without one, the event's id, so
	// that a replay lands on the same partition.
	PartitionBy []byte
	// Partition is the partition that the row asks for, if OwnPartition; whether the topic has it is left to the sink.
	Partition    int32
	OwnPartition bool
	// Timestamp is the record's time in milliseconds since 1970, or 0: the time at which it is sent.
	Timestamp int64
}

// Header is one record header; a nil Value is Kafka's null.
type Header struct {
	Name  string
	Value []byte
}

// Size is the number of bytes of key, value and headers.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}
