package replication

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// FuzzPacedConn sends bytes in random pieces through a real connection and reads them in other pieces, with and
// without TLS, while deadlines pass at random. The bytes must be the same. Without -fuzz it runs its seeds.
func FuzzPacedConn(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, uint32(100_000<<(seed%5)), seed%2 == 1)
	}
	f.Fuzz(func(t *testing.T, seed uint64, size uint32, secure bool) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		sent := make([]byte, size%(4<<20))
		var key [32]byte
		key[0] = byte(seed)
		_, _ = rand.NewChaCha8(key).Read(sent)

		client, server := tcpPair(t)
		inner := newPacedConn(client, time.Millisecond, &readTap{})
		var conn net.Conn = inner
		if secure {
			server = tls.Server(server, &tls.Config{Certificates: []tls.Certificate{certificate(t)}})
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			conn = client
			go func() { _ = server.(*tls.Conn).Handshake() }()
			if err := client.Handshake(); err != nil { // a deadline would end the handshake
				t.Fatal(err)
			}
		}
		go func() {
			rnd := rand.New(rand.NewPCG(seed, 2))
			for rest := sent; len(rest) > 0; {
				n := min(1+rnd.IntN(maxPiece(rnd)), len(rest))
				if _, err := server.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
				if rnd.IntN(200) == 0 {
					time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
				}
			}
			_ = server.Close()
		}()
		// Another goroutine interrupts, as the relay's do.
		var stop atomic.Bool
		defer stop.Store(true)
		go func() {
			rnd := rand.New(rand.NewPCG(seed, 3))
			for !stop.Load() {
				inner.setAge(time.Duration(rnd.IntN(20)) * time.Millisecond)
				time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
				_ = conn.SetReadDeadline(time.Unix(1, 0))
			}
		}()
		var got []byte
		limit := time.Now().Add(20 * time.Second)
		p := make([]byte, 4<<20)
		for time.Now().Before(limit) {
			n, err := conn.Read(p[:1+rnd.IntN(maxPiece(rnd))])
			got = append(got, p[:n]...)
			if err == nil {
				continue
			}
			if !isTimeout(err) { // the end
				break
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Duration(1+rnd.IntN(5000)) * time.Microsecond))
		}
		if !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes sent, %d got (sums %x, %x)", len(sent), len(got), sha256.Sum256(sent), sha256.Sum256(got))
		}
	})
}

// maxPiece returns a random maximum size of pieces: mostly small, sometimes larger than any buffer.
func maxPiece(rnd *rand.Rand) int { return []int{50, 1000, 9000, 40_000, 600_000}[rnd.IntN(5)] }

// tcpPair returns the two ends of a TCP connection with the segments of the replication connection.
func tcpPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	return tcpPairWith(t, limitSegments)
}

// tcpPairWith is tcpPair with another Control of the client's dialer.
func tcpPairWith(t testing.TB, control func(network, addr string, raw syscall.RawConn) error) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	if client, err = (&net.Dialer{Control: control}).Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// On a real connection, a deadline and a Close end a read that waits.
func TestPacedRealConnection(t *testing.T) {
	client, server := tcpPair(t)
	c := newPacedConn(client, 50*time.Millisecond, &readTap{})
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 10)
	if n, err := c.Read(p); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // after the pause
	if _, err := c.Read(p); !isDeadline(err) {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	// After a pause the low watermark is reset: a lone byte is received.
	for range 5 {
		time.AfterFunc(60*time.Millisecond, func() { _, _ = server.Write([]byte("y")) })
		start := time.Now()
		if n, err := c.Read(p); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Fatalf("received after %s", d)
		}
	}
	time.AfterFunc(60*time.Millisecond, func() { _ = c.Close() })
	if _, err := c.Read(p); err == nil || isTimeout(err) {
		t.Fatal(err)
	}
}

// The dialer returns a connection with the configured pauses. A receive buffer without pauses stays the kernel's.
func TestPacedDialer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	for _, interval := range []time.Duration{0, testInterval} {
		cfg := Config{ReadInterval: interval, ReceiveBuffer: 1 << 20} // larger than two segments
		conn, err := cfg.pacedDialer((&net.Dialer{}).DialContext, &readTap{})(t.Context(), "tcp", l.Addr().String())
		must(t, err)
		defer conn.Close()
		paced := conn.(*pacedConn)
		narrow := interval > 0 && bufferSetter(paced.Conn, 1<<20) != nil
		if paced.longest != interval || (paced.buffer.narrow != nil) != narrow {
			t.Errorf("%s: pauses of %s, narrow buffer: %v", interval, paced.longest, paced.buffer.narrow != nil)
		}
	}
	_ = l.Close()
	if _, err := (&Config{ReadInterval: testInterval}).pacedDialer((&net.Dialer{}).DialContext, &readTap{})(t.Context(), "tcp", l.Addr().String()); err == nil {
		t.Error("no error although the connection was refused")
	}
}

// awaitBytes returns when the connection has bytes to read, which it leaves there.
func awaitBytes(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err)
	for n := 0; n <= 0; time.Sleep(20 * time.Microsecond) {
		// Not raw.Read: it waits for as many bytes as the low watermark.
		must(t, raw.Control(func(fd uintptr) { n, _, _ = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK) }))
	}
}

// During a backlog the low watermark is quietBytes from the first full read on, not only during pauses. It is reset
// when no bytes are available and a read waits.
func TestPacedLowWatermarkDuringBacklog(t *testing.T) {
	client, server := tcpPair(t)
	c := newPacedConn(client, 20*time.Millisecond, &readTap{})
	if c.setLowat == nil && runtime.GOOS == "linux" {
		t.Fatal("SO_RCVLOWAT is not used on a TCP connection")
	}
	if c.setLowat == nil {
		t.Skip("SO_RCVLOWAT is used on Linux only")
	}
	var marks []int
	inner := c.setLowat
	c.setLowat = func(bytes int) { marks = append(marks, bytes); inner(bytes) }
	const total = 4 << 20
	go func() {
		for range total / 1024 {
			_, _ = server.Write(make([]byte, 1024))
		}
	}()
	p := make([]byte, maxRead) // nothing is left in a buffer
	for got := 0; got < total; {
		awaitBytes(t, client) // it is a backlog: no read waits
		n, err := c.Read(p)
		must(t, err)
		got += n
	}
	if len(marks) > 3 || len(marks) == 0 {
		t.Errorf("the low watermark was changed during the backlog: %v", marks)
	}
	// After the backlog a lone byte must be received.
	time.AfterFunc(100*time.Millisecond, func() { _, _ = server.Write([]byte("z")) })
	if n, err := c.Read(p); n != 1 || err != nil || marks[len(marks)-1] != 1 {
		t.Errorf("%d %v %v", n, err, marks)
	}
}
