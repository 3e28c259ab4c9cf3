package decoder

import "fmt"

// Error says why a message could not be decoded. It ends the stream: what it was about is unknown, so nothing after it
// may be confirmed.
type Error struct {
	What   string // what was being decoded: "begin", "insert", "relation", …
	Offset int    // the byte of the message at which it went wrong
	Err    error  // why
}

func (e *Error) Error() string {
	return fmt.Sprintf("decode %s at byte %d: %v", e.What, e.Offset, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
