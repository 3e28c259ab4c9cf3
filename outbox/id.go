package outbox

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// ID is a UUID. Values of other libraries whose type is a [16]byte can be converted.
type ID [16]byte

// lastTime is the time in the last ID of this process.
var lastTime struct {
	sync.Mutex
	ticks uint64
}

// ticks is the number of units of a UUIDv7's time in a millisecond: RFC 9562 allows to use the 12 bits after the
// milliseconds for a fraction of one.
const ticks = 1 << 12

// NewID returns a UUIDv7. Each ID of a process is greater than those before it, also if the clock steps back.
func NewID() ID {
	now := time.Now().UnixNano()
	t := uint64(now/1e6)*ticks + uint64(now%1e6)*ticks/1e6
	lastTime.Lock()
	t = max(t, lastTime.ticks+1)
	lastTime.ticks = t
	lastTime.Unlock()

	const version, variant = 0x7000, 1 << 63
	var id ID
	binary.BigEndian.PutUint64(id[:8], t/ticks<<16|version|t%ticks)
	binary.BigEndian.PutUint64(id[8:], variant|rand.Uint64()>>2)
	return id
}

// ParseID parses the text of a UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
func ParseID(s string) (ID, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != len(ID{}) || ID(b).String() != strings.ToLower(s) {
		return ID{}, fmt.Errorf("outbox: %q is not a UUID", s)
	}
	return ID(b), nil
}

// String returns the text of the UUID.
func (id ID) String() string {
	b := id.text()
	return string(b[:])
}

func (id ID) text() (b [36]byte) {
	at := 0
	for _, group := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10], id[10:]} {
		if at > 0 {
			b[at] = '-'
			at++
		}
		at += hex.Encode(b[at:], group)
	}
	return b
}
