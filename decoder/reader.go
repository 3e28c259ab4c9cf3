package decoder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

var errShort = errors.New("message ends early")

// reader takes fields off one message. The first field that does not fit is remembered with its offset and every later
// one is zero, so that a message is read straight through and asked once, at its end, whether all was well. A length or
// a count from the wire is compared with the bytes that are there before anything is sized by it.
type reader struct {
	what string
	b    []byte
	off  int
	err  error
	bad  int // where err was
}

func (r *reader) fail(at int, err error) {
	if r.err == nil {
		r.err, r.bad = err, at
	}
}

// next takes n bytes, or returns nil when there are fewer.
func (r *reader) next(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n > len(r.b)-r.off {
		r.fail(r.off, errShort)
		return nil
	}
	// The capacity ends with the field: an append by a user of the value must not run into its neighbour.
	p := r.b[r.off : r.off+n : r.off+n]
	r.off += n
	return p
}

func (r *reader) uint8() byte {
	if p := r.next(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if p := r.next(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if p := r.next(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if p := r.next(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (r *reader) lsn() pglogrepl.LSN { return pglogrepl.LSN(r.uint64()) }

// epoch is 2000-01-01 in Unix microseconds, from where PostgreSQL counts.
const epoch = 946684800 * 1_000_000

func (r *reader) time() time.Time {
	return time.UnixMicro(int64(r.uint64()) + epoch).UTC()
}

// string copies a zero-terminated string out of the message.
func (r *reader) string() string {
	return string(r.zeroTerminated())
}

// zeroTerminated is string without the copy.
func (r *reader) zeroTerminated() []byte {
	if r.err != nil {
		return nil
	}
	n := bytes.IndexByte(r.b[r.off:], 0)
	if n < 0 {
		r.fail(r.off, errors.New("string without its terminating zero"))
		return nil
	}
	s := r.b[r.off : r.off+n]
	r.off += n + 1
	return s
}

// end is asked once, last: the message must have been well-formed and nothing may be left of it.
func (r *reader) end() error {
	if left := len(r.b) - r.off; left > 0 {
		r.fail(r.off, fmt.Errorf("%d bytes left over", left))
	}
	if r.err != nil {
		return &Error{What: r.what, Offset: r.bad, Err: r.err}
	}
	return nil
}
