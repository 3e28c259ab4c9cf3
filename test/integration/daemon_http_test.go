package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Four clients request metrics as fast as they can, and others request again and again without reading a single answer.
// Delivery is not affected, and afterwards nothing of them is left.
func TestMetricsHammered(t *testing.T) {
	t.Parallel()
	const timeout = 15 * time.Second // a slow machine is no effect of the clients
	lasts := fullOrShort(60*time.Second, 4*time.Second)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F76", "four clients ask for /metrics without a pause and eight never read the answers, for %v, wal_sender_timeout %v", lasts, timeout)
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming(fmt.Sprint("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=", timeout), steady)
	w.awaitCommits(50)
	o.awaitHealed()
	before := openFiles(t, r)

	stop := make(chan struct{})
	var answered, refused, slow atomic.Int64
	var all sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); all.Wait() })
	t.Cleanup(end)
	for range 4 {
		all.Go(func() { hammer(r.addr, stop, &answered, &refused) })
	}
	for range 8 {
		all.Go(func() { neverRead(r.addr, stop, &slow) })
	}
	begin, had := time.Now(), o.follow.records()
	await(t, patience, "clients whose answers are stuck", func() error {
		if n := slow.Load(); n < 8 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	for time.Since(begin) < lasts {
		w.awaitCommits(50)
		o.awaitHealed() // not affected by the clients
	}
	delivered := o.follow.records() - had
	end()
	o.awaitHealed()
	w.stop()
	noReconnects(t, r)
	o.repeatsAtMost(o.verify(patience), 0, "no session ended")
	await(t, patience, "the descriptors of the clients to be closed", func() error {
		if n := openFiles(t, r); n > before+2 { // our own client keeps one or two
			return fmt.Errorf("%d are open, %d were open before", n, before)
		}
		return nil
	})
	if answered.Load()+refused.Load() < 20 {
		t.Errorf("%d answers and %d refusals: this proves nothing", answered.Load(), refused.Load())
	}
	if refused.Load() > 0 {
		t.Errorf("%d scrapes were refused because of clients that do not read", refused.Load())
	}
	o.outcome("%d answers, %d refusals (503), %d events delivered meanwhile", answered.Load(), refused.Load(), delivered)
}

// hammer sends requests without a pause.
func hammer(addr string, stop <-chan struct{}, answered, refused *atomic.Int64) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-stop:
			return
		default:
		}
		res, err := client.Get("http://" + addr + "/metrics")
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode == http.StatusOK {
			answered.Add(1)
		} else {
			refused.Add(1)
		}
	}
}

// neverRead sends requests until unread answers have filled every buffer, and keeps the connection. When the daemon
// closes it, neverRead connects again.
func neverRead(addr string, stop <-chan struct{}, stuck *atomic.Int64) {
	ask := []byte(strings.Repeat("GET /metrics HTTP/1.1\r\nHost: slow\r\n\r\n", 100))
	var conn net.Conn
	counted := false
	for {
		var err error
		if conn == nil {
			if conn, err = net.Dial("tcp", addr); err != nil {
				conn = nil
			} else {
				_ = conn.(*net.TCPConn).SetReadBuffer(1) // the minimum of the kernel
			}
		}
		if err == nil {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, err = conn.Write(ask)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if !counted {
				counted = true
				stuck.Add(1)
			}
		} else if err != nil && conn != nil {
			_ = conn.Close()
			conn = nil
		}
		select {
		case <-stop:
			if conn != nil {
				_ = conn.Close()
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}
