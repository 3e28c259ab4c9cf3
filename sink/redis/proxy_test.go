package redissink

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// proxy is between the sink and a server. It reads single commands, and has faults at those that run the script.
type proxy struct {
	t      *testing.T
	l      net.Listener
	server string
	fault  func() sinktest.Fault // of the next script
	full   func(bool)            // has the server refuse writes
	held   chan struct{}

	mu    sync.Mutex
	conns []net.Conn
}

func startProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, l: l, server: server, fault: func() sinktest.Fault { return sinktest.None }, held: make(chan struct{})}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		p.cutAll()
		running.Wait()
	})
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(c) })
		}
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	from, answers := bufio.NewReader(client), bufio.NewReader(server)
	for {
		command, err := readValue(from)
		if err != nil {
			return
		}
		fault := sinktest.None
		if isScript(command) {
			fault = p.fault()
		}
		switch fault {
		case sinktest.Lost:
			return
		case sinktest.NoAnswer:
			_, _ = io.Copy(io.Discard, client)
			return
		case sinktest.Held:
			<-p.held
		case sinktest.Unavailable:
			p.full(true)
		}
		_, err = server.Write(command)
		answer, err2 := readValue(answers)
		if fault == sinktest.Unavailable {
			p.full(false)
		}
		if err != nil || err2 != nil || fault == sinktest.AckLost {
			return
		}
		if fault == sinktest.AckNeverComes {
			_, _ = io.Copy(io.Discard, client)
			return
		}
		if _, err := client.Write(answer); err != nil {
			return
		}
	}
}

func isScript(command []byte) bool {
	parts := strings.SplitN(string(command[:min(len(command), 64)]), "\r\n", 4)
	return len(parts) > 2 && strings.HasPrefix(strings.ToUpper(parts[2]), "EVAL")
}

// readValue reads a command, or an answer, of RESP2.
func readValue(r *bufio.Reader) ([]byte, error) {
	var b bytes.Buffer
	err := copyValue(&b, r)
	return b.Bytes(), err
}

func copyValue(b *bytes.Buffer, r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	b.WriteString(line)
	n := -1
	if line[0] == '$' || line[0] == '*' {
		if n, err = strconv.Atoi(strings.TrimSpace(line[1:])); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	switch {
	case n < 0:
	case line[0] == '$':
		_, err = io.CopyN(b, r, int64(n)+2)
		return err
	default:
		for range n {
			if err := copyValue(b, r); err != nil {
				return err
			}
		}
	}
	return nil
}
