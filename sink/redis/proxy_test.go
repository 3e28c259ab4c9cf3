package redissink

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// serve reads single commands, and has faults at those that run the script.
func (s *store) serve(client, server net.Conn) {
	from, answers := bufio.NewReader(client), bufio.NewReader(server)
	for {
		command, err := readValue(from)
		if err != nil {
			return
		}
		fault := sinktest.None
		if isScript(command) {
			fault = s.Fault()
		}
		switch fault {
		case sinktest.Lost:
			return
		case sinktest.NoAnswer:
			_, _ = io.Copy(io.Discard, client)
			return
		case sinktest.Held:
			s.AwaitRelease()
		case sinktest.Unavailable:
			s.full(true)
		}
		_, err = server.Write(command)
		answer, err2 := readValue(answers)
		if fault == sinktest.Unavailable {
			s.full(false)
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
