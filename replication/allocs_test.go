package replication

import (
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
	if err != nil {
		t.Fatal(err)
	}
	pg, err := pgconn.Construct(&pgconn.HijackedConn{Conn: conn, Frontend: pgproto3.NewFrontend(conn, conn), Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return &Stream{conn: pg}
}

// TestReceiveDoesNotAllocate: reading a message from the socket does not allocate.
func TestReceiveDoesNotAllocate(t *testing.T) {
	const size = 1 + 24 + 300
	b := append([]byte{'d'}, binary.BigEndian.AppendUint32(nil, 4+size)...)
	b = append(append(b, 'w'), make([]byte, size-1)...)
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
