package redissink

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// client has the connections to a server. It speaks RESP2, and sends nothing twice.
type client struct {
	addr           string
	login          bool // with user and password
	user, password string
	db             int
	tls            *tls.Config // nil: without TLS
	timeout        time.Duration
	slots          chan struct{} // one for each connection in use

	mu   sync.Mutex
	idle []*conn
}

type conn struct {
	net.Conn
	r   *bufio.Reader
	w   *bufio.Writer
	few texts // what write writes itself
}

// serverError is an answer that is an error.
type serverError string

func (e serverError) Error() string { return string(e) }

// errProtocol means that the other side does not speak RESP2.
var errProtocol = errors.New("the answer is not one of Redis")

// do sends commands over one connection, and returns their answers: string, int64, []any, nil or serverError. A
// connection whose answers were not all read is closed. It ends with ctx, or after the timeout.
func (c *client) do(ctx context.Context, commands ...[]any) (answers []any, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = ctx.Err() // and not that the connection is closed
		}
	}()
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	cn := c.take()
	if cn == nil {
		if cn, err = c.dial(ctx); err != nil {
			return nil, err
		}
	}
	if answers, err = cn.exchange(ctx, commands); err != nil {
		c.Close() // the server may have ended: then the idle ones are closed too
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, cn)
	return answers, nil
}

func (c *client) take() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.idle)
	if n == 0 {
		return nil
	}
	cn := c.idle[n-1]
	c.idle = c.idle[:n-1]
	return cn
}

// Close closes the connections that are not in use.
func (c *client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cn := range c.idle {
		_ = cn.Conn.Close()
	}
	c.idle = nil
}

// dial connects and logs in.
func (c *client) dial(ctx context.Context) (*conn, error) {
	var d interface {
		DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	} = &net.Dialer{}
	if c.tls != nil {
		d = &tls.Dialer{Config: c.tls}
	}
	raw, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	cn := &conn{Conn: raw, r: bufio.NewReaderSize(raw, 32<<10), w: bufio.NewWriterSize(raw, 32<<10)}
	var commands [][]any
	switch {
	case c.login && c.user != "":
		commands = append(commands, []any{"AUTH", c.user, c.password})
	case c.login:
		commands = append(commands, []any{"AUTH", c.password})
	}
	if c.db > 0 {
		commands = append(commands, []any{"SELECT", c.db})
	}
	answers, err := cn.exchange(ctx, commands)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if e, is := a.(serverError); is {
			_ = raw.Close()
			return nil, e
		}
	}
	return cn, nil
}

// exchange sends commands and reads their answers. After an error the connection is closed.
func (c *conn) exchange(ctx context.Context, commands [][]any) (answers []any, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Conn.Close() })
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			_ = c.Conn.Close()
		}
	}()
	for _, command := range commands {
		c.write(command)
	}
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	for range commands {
		a, err := c.read()
		if e, is := a.(serverError); is && strings.HasPrefix(string(e), "ERR Protocol error") {
			err = e // the server closes the connection
		}
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// texts are a part of a command, as it is sent.
type texts struct {
	count int
	sent  []byte
}

// addText adds a text. It is a function, because a method cannot take both types.
func addText[T string | []byte](to *texts, text T) {
	to.count++
	to.sent = strconv.AppendInt(append(to.sent, '$'), int64(len(text)), 10)
	to.sent = append(append(append(to.sent, "\r\n"...), text...), "\r\n"...)
}

// write writes a command of texts and numbers. Flush returns the first error.
func (c *conn) write(command []any) {
	count, few := len(command), &c.few
	for _, arg := range command {
		if many, are := arg.(*texts); are {
			count += many.count - 1
		}
	}
	few.sent = append(strconv.AppendInt(append(few.sent[:0], '*'), int64(count), 10), "\r\n"...)
	for _, arg := range command {
		switch a := arg.(type) {
		case int:
			addText(few, strconv.Itoa(a))
		case string:
			addText(few, a)
		case *texts:
			_, _ = c.w.Write(few.sent)
			_, _ = c.w.Write(a.sent)
			few.sent = few.sent[:0]
		}
	}
	_, _ = c.w.Write(few.sent)
}

// maxAnswer is the largest length in an answer. No answer that is asked for is longer.
const maxAnswer = 1 << 20

// read reads an answer.
func (c *conn) read() (any, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: %.40q", errProtocol, line)
	}
	kind, text := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+':
		return text, nil
	case '-':
		return serverError(text), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || kind != ':' && (n < -1 || n > maxAnswer) {
		return nil, fmt.Errorf("%w: %.40q", errProtocol, text)
	}
	switch {
	case kind == ':':
		return n, nil
	case n == -1 && (kind == '$' || kind == '*'):
		return nil, nil
	case kind == '$':
		b := make([]byte, n+2)
		_, err := io.ReadFull(c.r, b)
		return string(b[:n]), err
	case kind == '*':
		var all []any
		for range n {
			a, err := c.read()
			if err != nil {
				return nil, err
			}
			all = append(all, a)
		}
		return all, nil
	}
	return nil, fmt.Errorf("%w: %q", errProtocol, kind)
}
