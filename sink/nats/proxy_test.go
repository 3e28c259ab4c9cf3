package natssink

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// passing is a connection through the proxy.
type passing struct {
	client, server net.Conn

	mu      sync.Mutex
	answers map[string]func() (forward bool) // by the subject of the answer
}

// serve has faults at the messages of a topic.
func (s *store) serve(client, server net.Conn) {
	at := &passing{client: client, server: server, answers: map[string]func() bool{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		at.copyAnswers()
		_, _ = client.Close(), server.Close()
	}()
	from := bufio.NewReader(client)
	for {
		words, command, err := readCommand(from)
		if err != nil || !s.pass(at, words, command, ended) {
			break
		}
	}
	_, _ = client.Close(), server.Close()
	<-ended
}

// pass forwards a command. It reports false if the connection is to be cut.
func (s *store) pass(at *passing, words []string, command []byte, ended chan struct{}) bool {
	fault := sinktest.None
	if words[0] == "HPUB" && !strings.HasPrefix(words[1], "$") {
		fault = s.Fault()
	}
	answered := make(chan struct{})
	on := func(forward bool) {
		at.mu.Lock()
		defer at.mu.Unlock()
		at.answers[words[2]] = func() bool { close(answered); return forward }
	}
	switch fault {
	case sinktest.Lost:
		return false
	case sinktest.NoAnswer:
		return true
	case sinktest.Held:
		s.AwaitRelease()
	case sinktest.AckLost, sinktest.AckNeverComes:
		on(false)
	case sinktest.Unavailable:
		s.full(true)
		on(true)
	}
	_, err := at.server.Write(command)
	switch {
	case err != nil:
		return false
	case fault == sinktest.AckLost || fault == sinktest.Unavailable:
		select {
		case <-answered:
		case <-ended:
		}
		if fault == sinktest.AckLost {
			return false
		}
		s.full(false)
	}
	return true
}

func (at *passing) copyAnswers() {
	for from := bufio.NewReader(at.server); ; {
		words, command, err := readCommand(from)
		if err != nil {
			return
		}
		forward := true
		if words[0] == "MSG" || words[0] == "HMSG" {
			at.mu.Lock()
			if f := at.answers[words[1]]; f != nil {
				delete(at.answers, words[1])
				forward = f()
			}
			at.mu.Unlock()
		}
		if forward {
			if _, err := at.client.Write(command); err != nil {
				return
			}
		}
	}
}

// readCommand reads a command of either side, with its payload.
func readCommand(r *bufio.Reader) (words []string, command []byte, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, nil, err
	}
	words = strings.Fields(line)
	command = []byte(line)
	switch words[0] {
	case "PUB", "HPUB", "MSG", "HMSG":
		n, err := strconv.Atoi(words[len(words)-1])
		if err != nil {
			return nil, nil, err
		}
		payload := make([]byte, n+2)
		if _, err := io.ReadFull(r, payload); err != nil {
			return nil, nil, err
		}
		command = append(command, payload...)
	}
	return words, command, nil
}
