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

// ReusedIDError means that a record has the id of an event that was handled, and is of another database or has another
// content. It is not known whether it is another event.
type ReusedIDError struct {
	Event
	Stored Event // what was handled
}

func (e *ReusedIDError) Error() string {
	differs := "another key or value"
	if e.Origin != e.Stored.Origin {
		differs = fmt.Sprintf("the origin %q (system id and database OID), not %q", e.Origin, e.Stored.Origin)
		if e.Content != e.Stored.Content {
			differs += ", and another key or value"
		}
	}
	return fmt.Sprintf("topic %q, id %q: an event with this id was handled, and this record has %s. If these are two events (two databases write to the topic, or "+
		"a sequence has gone back after a restore): set Store.Reused to HandleReused. If it is the same event (after a major upgrade or a move of the server, or "+
		"a change of the routing): set it to DropReused. A random UUID as id makes this impossible", e.Topic, e.ID, differs)
}
