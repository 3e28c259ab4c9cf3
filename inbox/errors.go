package inbox

import "fmt"

// PoisonError means that Run has stopped at a record whose handler fails whenever it is tried. The records before it
// are handled, and the next Run begins with it.
type PoisonError struct {
	Place
	Offset int64
	ID     string
	Err    error // of the handler, or of the dead-letter callback
}

func (e *PoisonError) Error() string {
	return fmt.Sprintf("handle the record with id %q (topic %q, partition %d, offset %d): %v", e.ID, e.Topic, e.Partition, e.Offset, e.Err)
}

func (e *PoisonError) Unwrap() error { return e.Err }
