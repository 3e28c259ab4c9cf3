package kafkatest

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// listen is kfake's way to listen: faults of an answer to a handled request happen in its connections.
func (f *faults) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return listener{l, f}, err
}

type listener struct {
	net.Listener
	f *faults
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &wire{Conn: c, f: l.f, asked: map[int32]kmsg.Key{}}, nil
}

// wire is a broker's end of a connection. It reads the incoming requests too, because an answer has only the number of
// its request, not the kind.
type wire struct {
	net.Conn
	f *faults

	// For the reader: the beginning of the present request, and how much of it is still to come.
	head []byte
	rest int

	mu    sync.Mutex
	asked map[int32]kmsg.Key // requests without an answer yet
}

// headSize is the size of a request (4 bytes, which do not count), its key, its version and its number.
const headSize = 4 + 2 + 2 + 4

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	for read := b[:n]; len(read) > 0; {
		if w.rest > 0 {
			skip := min(w.rest, len(read))
			w.rest -= skip
			read = read[skip:]
			continue
		}
		take := min(headSize-len(w.head), len(read))
		w.head = append(w.head, read[:take]...)
		read = read[take:]
		if len(w.head) == headSize {
			w.rest = max(0, int(binary.BigEndian.Uint32(w.head))-(headSize-4))
			w.mu.Lock()
			w.asked[int32(binary.BigEndian.Uint32(w.head[8:]))] = kmsg.Key(binary.BigEndian.Uint16(w.head[4:]))
			w.mu.Unlock()
			w.head = w.head[:0]
		}
	}
	return n, err
}

// Write gets one whole answer at a time.
func (w *wire) Write(b []byte) (int, error) {
	if len(b) < 8 {
		return w.Conn.Write(b)
	}
	number := int32(binary.BigEndian.Uint32(b[4:]))
	w.mu.Lock()
	key, known := w.asked[number]
	delete(w.asked, number)
	w.mu.Unlock()
	if !known {
		return w.Conn.Write(b)
	}
	if _, lost := w.f.first(key, func(f *Fault) bool { return f.LoseAnswers }); lost {
		_ = w.Close()
		return 0, errors.New("lost by request of the test")
	}
	if late, is := w.f.first(key, func(f *Fault) bool { return f.Delay > 0 }); is {
		time.Sleep(late.Delay)
	}
	return w.Conn.Write(b)
}
