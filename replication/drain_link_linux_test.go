package replication

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// BenchmarkLone commits one row every 20 to 30 ms and reports how long after its commit (the server's clock, the same
// machine) the whole transaction has been received.
func BenchmarkLone(b *testing.B) {
	const events = 50
	d := newDrain(b, 100, 1)
	intervals := []time.Duration{0, 5 * time.Millisecond}
	took := map[time.Duration][]time.Duration{}
	for range 2 {
		for _, interval := range intervals {
			d.runs++
			slot := fmt.Sprintf("lone%d", d.runs)
			exec := func(sql string) {
				if _, err := d.sql.Exec(b.Context(), sql); err != nil {
					b.Fatal(err)
				}
			}
			exec(`SELECT pg_create_logical_replication_slot('` + slot + `', 'pgoutput')`)
			source, err := NewSource(Config{
				URL: func() (string, error) { return d.url, nil }, Slot: slot, Publication: "pub", Schema: "public", Table: "outbox",
				WalSenderTimeout: time.Minute, ReadInterval: interval, ReceiveBuffer: AutoReceiveBuffer,
			})
			if err != nil {
				b.Fatal(err)
			}
			st, err := source.Open(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			got := make(chan time.Duration, 1)
			go func() {
				defer close(got)
				for {
					msg, err := st.Receive()
					if err != nil {
						return
					}
					if len(msg.Data) == 26 && msg.Data[0] == 'C' {
						at := time.UnixMicro(int64(be64(msg.Data[18:])) + postgresEpoch.UnixMicro())
						got <- time.Since(at)
					}
				}
			}()
			for i := range events {
				time.Sleep(time.Duration(20+i%10) * time.Millisecond)
				exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'x', '{}')`)
				took[interval] = append(took[interval], <-got)
			}
			st.Interrupt()
			for range got {
			}
			_ = st.Close(0, time.Now())
		}
	}
	for _, interval := range intervals {
		all := took[interval]
		slices.Sort(all)
		b.Logf("read_interval %s: p50 %s, p90 %s, p99 %s, least %s", interval, all[len(all)/2], all[len(all)*9/10], all[len(all)*99/100], all[0])
	}
}

func be64(b []byte) (n uint64) {
	for _, c := range b[:8] {
		n = n<<8 | uint64(c)
	}
	return n
}

type countedConn struct {
	*net.TCPConn
	reads *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.TCPConn.Read(p)
}

func countingDialer(reads *atomic.Int64, far bool) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if far {
			var err error
			if addr, err = farAway(addr); err != nil {
				return nil, err
			}
			time.Sleep(2 * farDelay) // what connecting would take
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return countedConn{conn.(*net.TCPConn), reads}, nil
	}
}

// A far link: 5 ms each way, 1 MB/s.
const (
	farDelay = 5 * time.Millisecond
	farRate  = 1e6
)

// farAway puts a far link in front of addr, for one connection.
func farAway(addr string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		near, err := l.Accept()
		_ = l.Close()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", addr)
		if err != nil {
			_ = near.Close()
			return
		}
		go carry(far, near)
		carry(near, far)
	}()
	return l.Addr().String(), nil
}

// carry takes bytes from one end to the other, late and slowly.
func carry(to, from net.Conn) {
	type piece struct {
		b   []byte
		due time.Time
	}
	way := make(chan piece, 64)
	go func() {
		defer close(way)
		sent := time.Now()
		for {
			b := make([]byte, 1400)
			n, err := from.Read(b)
			if n > 0 {
				if now := time.Now(); sent.Before(now) {
					sent = now
				}
				sent = sent.Add(time.Duration(float64(n) / farRate * 1e9))
				way <- piece{b[:n], sent.Add(farDelay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range way {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.b); err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close()
	for range way {
	}
}

// pemCertificate is what a server with ssl = on reads.
func pemCertificate(b *testing.B) map[string][]byte {
	c := certificate(b)
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		b.Fatal(err)
	}
	return map[string][]byte{
		"server.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		"server.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}
}
