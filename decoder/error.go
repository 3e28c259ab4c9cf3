package decoder

import "fmt"

// Error is a message that could not be decoded. It ends the stream: the message may be an event, so no position after
// it may be confirmed.
type Error struct {
	What   string // kind of the message: "begin", "insert", "relation", …
	Offset int    // of the byte of the message that is wrong
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("decode %s at byte %d: %v", e.What, e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
