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

// reader reads the fields of one message. It stores the first error with its offset; every later field is zero. So a
// message is read without checks, and end returns the error. A length or a count is compared with the number of bytes
// left before memory is allocated for it.
type reader struct {
	what      string
	b         []byte
	off       int
	err       error
	errOffset int // where err was
}

func (r *reader) fail(at int, err error) {
	if r.err == nil {
		r.err, r.errOffset = err, at
	}
}

// next returns the next n bytes, or nil if there are fewer.
func (r *reader) next(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n > len(r.b)-r.off {
		r.fail(r.off, errShort)
		return nil
	}
	// The capacity ends with the field, so that an append does not overwrite the next field.
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

// postgresEpoch is 2000-01-01 in Unix microseconds.
const postgresEpoch = 946684800 * 1_000_000

func (r *reader) time() time.Time {
	return time.UnixMicro(int64(r.uint64()) + postgresEpoch).UTC()
}

// string copies a zero-terminated string out of the message.
func (r *reader) string() string {
	return string(r.zeroTerminated())
}

// zeroTerminated returns a zero-terminated string without copying it.
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

// end returns the first error, or an error if there are bytes left.
func (r *reader) end() error {
	if left := len(r.b) - r.off; left > 0 {
		r.fail(r.off, fmt.Errorf("%d bytes left over", left))
	}
	if r.err != nil {
		return &Error{What: r.what, Offset: r.errOffset, Err: r.err}
	}
	return nil
}
