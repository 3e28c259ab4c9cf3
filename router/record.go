package router

// Record is what a sink delivers for one event. Its slices point into the event and into the router's scratch
// memory. They are valid until the next call of Route, so a sink must copy them.
type Record struct {
	ID      []byte // the event's id, nil if it has none; for error texts and dead letters
	Topic   string
	Key     []byte // nil: no key
	Value   []byte // nil: a tombstone; empty but not nil: an empty value
	Headers []Header
	// PartitionBy is hashed to choose the lane of the sink, which is a partition in Kafka. It is the key or, for a record
	// without a key, the event's id, so that a duplicate is in the same lane.
	PartitionBy []byte
	// Partition is the partition of Kafka from the row, if OwnPartition is true. The sink checks whether the topic has
	// it. Only Kafka has route.partition.
	Partition    int32
	OwnPartition bool
	// Timestamp is the record's time in milliseconds since 1970. 0 means the time of sending.
	Timestamp int64
	RowTime   bool // Timestamp is from a column of the row
}

// Header is one record header; a nil Value is Kafka's null.
type Header struct {
	Name  string
	Value []byte
}

// Size returns the number of bytes of key, value and headers.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}

// Position returns the header outboxcdc-position; "": the record has none.
func (r *Record) Position() string {
	for i := range r.Headers {
		if h := &r.Headers[i]; h.Name == HeaderPosition {
			return string(h.Value)
		}
	}
	return ""
}

// EventID identifies the event of a record by its position and its id. The position is not enough: if the settings have
// changed, another event may have it.
func (r *Record) EventID() string { return r.Position() + "/" + string(r.ID) }
