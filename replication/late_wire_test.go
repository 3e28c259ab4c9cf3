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
	"testing"
	"time"
)

// FuzzLate sends bytes in random pieces through a real connection and takes them in others, with deadlines that pass at
// any moment: what goes in comes out, plainly and beneath TLS. Without -fuzz it runs its seeds.
func FuzzLate(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, uint32(100_000<<(seed%5)), seed%2 == 1)
	}
	f.Fuzz(func(t *testing.T, seed uint64, size uint32, secure bool) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		sent := make([]byte, size%(4<<20))
		var key [32]byte
		key[0] = byte(seed)
		_, _ = rand.NewChaCha8(key).Read(sent)

		client, server := wire(t)
		inner := newLateConn(client, time.Millisecond, func() {})
		var conn net.Conn = inner
		if secure {
			server = tls.Server(server, &tls.Config{Certificates: []tls.Certificate{certificate(t)}})
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			conn = client
			go func() { _ = server.(*tls.Conn).Handshake() }()
			if err := client.Handshake(); err != nil { // before deadlines, which it does not survive
				t.Fatal(err)
			}
		}
		go func() {
			rnd := rand.New(rand.NewPCG(seed, 2))
			for rest := sent; len(rest) > 0; {
				n := min(1+rnd.IntN(piece(rnd)), len(rest))
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
				time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
				_ = conn.SetReadDeadline(time.Unix(1, 0))
			}
		}()
		var got []byte
		limit := time.Now().Add(20 * time.Second)
		p := make([]byte, 4<<20)
		for time.Now().Before(limit) {
			n, err := conn.Read(p[:1+rnd.IntN(piece(rnd))])
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

// piece is how large pieces are at most: mostly small ones, some larger than any buffer.
func piece(rnd *rand.Rand) int { return []int{50, 1000, 9000, 40_000, 600_000}[rnd.IntN(5)] }

// wire gives the two ends of a TCP connection.
func wire(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = (&net.Dialer{Control: limitSegments}).Dial("tcp", l.Addr().String()); err != nil {
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
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(crand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A deadline and a Close end a read that waits for the kernel, on a real connection.
func TestLateRealConnection(t *testing.T) {
	client, server := wire(t)
	c := newLateConn(client, 50*time.Millisecond, func() {})
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 10)
	if n, err := c.Read(p); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // behind the pause
	if _, err := c.Read(p); !isDeadline(err) {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	// The silence of a pause is over with it: a lone byte is noticed.
	for range 5 {
		time.AfterFunc(60*time.Millisecond, func() { _, _ = server.Write([]byte("y")) })
		start := time.Now()
		if n, err := c.Read(p); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Fatalf("noticed after %s", d)
		}
	}
	time.AfterFunc(60*time.Millisecond, func() { _ = c.Close() })
	if _, err := c.Read(p); err == nil || isTimeout(err) {
		t.Fatal(err)
	}
}

// Only what the settings ask for is between pgconn and the network.
func TestDialLate(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for interval, want := range map[time.Duration]bool{0: false, -1: false, testInterval: true} {
		cfg := Config{ReadInterval: interval, ReceiveBuffer: 8 << 10}
		conn, err := cfg.dialLate((&net.Dialer{}).DialContext, func() {})(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		late, ok := conn.(*lateConn)
		if ok != want || ok && late.interval != interval {
			t.Errorf("%s: %T", interval, conn)
		}
	}
	_ = l.Close()
	if _, err := (&Config{ReadInterval: testInterval}).dialLate((&net.Dialer{}).DialContext, func() {})(t.Context(), "tcp", l.Addr().String()); err == nil {
		t.Error("a refused connection is no error")
	}
}

// While the stream is behind, the kernel wakes nobody: it is told to keep quiet from the first full read on, not only
// during pauses, and to speak up again when there is nothing and we wait.
func TestLateHushedWhileBehind(t *testing.T) {
	client, server := wire(t)
	c := newLateConn(client, 20*time.Millisecond, func() {})
	if c.lowat == nil && runtime.GOOS == "linux" {
		t.Fatal("SO_RCVLOWAT is not used on a TCP connection")
	}
	if c.lowat == nil {
		t.Skip("SO_RCVLOWAT is used on Linux only")
	}
	var said []int
	inner := c.lowat
	c.lowat = func(bytes int) { said = append(said, bytes); inner(bytes) }
	const total = 4 << 20
	go func() {
		for range total / 1024 {
			_, _ = server.Write(make([]byte, 1024))
		}
	}()
	p := make([]byte, 64<<10)
	for got := 0; got < total; {
		n, err := c.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		got += n
		time.Sleep(100 * time.Microsecond) // the server is the faster one
	}
	if len(said) > 3 || len(said) == 0 {
		t.Errorf("changed its mind while there was a backlog: %v", said)
	}
	// Nothing is there: it must be told of a lone byte.
	time.AfterFunc(100*time.Millisecond, func() { _, _ = server.Write([]byte("z")) })
	if n, err := c.Read(p); n != 1 || err != nil || said[len(said)-1] != 1 {
		t.Errorf("%d %v %v", n, err, said)
	}
}
