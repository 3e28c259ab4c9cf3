package replication

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// endlessConn is a connection to a server that sends the same message without end.
type endlessConn struct {
	net.Conn
	message []byte
	at      int
}

func (e *endlessConn) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m := copy(p[n:], e.message[e.at:])
		n, e.at = n+m, (e.at+m)%len(e.message)
	}
	return n, nil
}

func (e *endlessConn) SetReadDeadline(time.Time) error { return nil }

// streamOver returns a stream that reads from conn.
func streamOver(t *testing.T, conn net.Conn) *Stream {
	t.Helper()
	cfg, err := pgconn.ParseConfig("host=localhost")
	must(t, err)
	pg, err := pgconn.Construct(&pgconn.HijackedConn{Conn: conn, Frontend: pgproto3.NewFrontend(conn, conn), Config: cfg})
	must(t, err)
	return &Stream{conn: pg}
}

// testMessage returns XLogData with this number of bytes of pgoutput.
func testMessage(n int) []byte {
	b := append([]byte{'d'}, binary.BigEndian.AppendUint32(nil, uint32(4+1+24+n))...)
	return append(append(b, 'w'), make([]byte, 24+n)...)
}

// TestMoreHasArrived: a message says whether bytes that follow it have arrived, and the last one that none have.
func TestMoreHasArrived(t *testing.T) {
	withPacedConn(t, func(t *testing.T, s *socket, c *pacedConn) {
		st := streamOver(t, c)
		c.tap = &st.tap
		for range 3 {
			const messages = 200
			s.arrive(bytes.Repeat(testMessage(300), messages))
			with, last := 0, false
			for range messages {
				msg, err := st.Receive()
				must(t, err)
				if last = msg.More; last {
					with++
				}
			}
			if last || with < messages*3/4 {
				t.Errorf("%d of %d messages, the last one: %v", with, messages, last)
			}
		}
	})
}

// TestReceiveDoesNotAllocate: reading a message from the socket does not allocate.
func TestReceiveDoesNotAllocate(t *testing.T) {
	b := testMessage(300)
	paced := newPacedConn(&endlessConn{message: b}, 0, &readTap{})
	paced.longest = testInterval
	paced.tryRead = func(p []byte) (int, error, bool) { n, err := paced.Conn.Read(p); return n, err, false }
	for name, conn := range map[string]net.Conn{
		"at once": newPacedConn(&endlessConn{message: b}, 0, &readTap{}),
		"paced":   paced,
	} {
		st := streamOver(t, conn)
		if n := testing.AllocsPerRun(10_000, func() {
			if msg, err := st.Receive(); err != nil || len(msg.Data) != 300 {
				t.Fatal(len(msg.Data), err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations per message", name, n)
		}
	}
}
