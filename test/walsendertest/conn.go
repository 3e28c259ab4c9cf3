package walsendertest

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
)

// errOver ends a connection without an error.
var errOver = errors.New("over")

// conn is one connection. Its own goroutine reads; writing is guarded, because a session's script sends as well.
type conn struct {
	s      *Server
	nc     net.Conn
	be     *pgproto3.Backend
	pid    uint32
	stream bool // opened with replication=database

	sendMu  sync.Mutex
	cutOnce sync.Once
	gone    chan struct{}

	prepared map[string]string // of the extended protocol: statement name → text
	portal   string
	params   [][]byte
	formats  []int16
}

func (c *conn) cut() {
	c.cutOnce.Do(func() {
		close(c.gone)
		_ = c.nc.Close()
	})
}

// limitWrite limits how long a client that does not read can block a write to it.
func (c *conn) limitWrite() { _ = c.nc.SetWriteDeadline(time.Now().Add(patience)) }

func (c *conn) send(msgs ...pgproto3.BackendMessage) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	for _, m := range msgs {
		c.be.Send(m)
	}
	c.limitWrite()
	if err := c.be.Flush(); err != nil {
		return errOver // the client is gone
	}
	return nil
}

// applyRule carries out the script's rule for text; done means that the query needs no further answer.
func (c *conn) applyRule(text string) (done bool, err error) {
	a := c.s.rule(text)
	if a.Delay > 0 {
		select {
		case <-time.After(a.Delay):
		case <-c.gone:
			return true, errOver
		}
	}
	switch {
	case a.Cut:
		return true, errOver
	case a.Hang:
		<-c.gone
		return true, errOver
	}
	if a.Notice != nil {
		if err := c.send(a.Notice); err != nil {
			return true, err
		}
	}
	if a.Err != nil {
		return true, c.send(a.Err)
	}
	return false, nil
}

func (c *conn) serve() error {
	params, err := c.startup()
	if err != nil {
		return err
	}
	c.prepared = map[string]string{}
	what := Connect
	if c.stream = params["replication"] != ""; c.stream {
		what = ConnectStream
	}
	c.s.edit(func() { c.s.startups = append(c.s.startups, params) })
	a := c.s.rule(what)
	version := c.s.Catalog().Version
	if a.Hang {
		<-c.gone
		return errOver
	}
	if a.Err != nil {
		_ = c.send(a.Err)
		return errOver
	}
	hello := []pgproto3.BackendMessage{&pgproto3.AuthenticationOk{}}
	if a.Notice != nil {
		hello = append(hello, a.Notice)
	}
	hello = append(hello,
		&pgproto3.ParameterStatus{Name: "server_version", Value: version},
		&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"},
		&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"},
		&pgproto3.BackendKeyData{ProcessID: c.pid, SecretKey: []byte{0, 0, 0, 1}},
		&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := c.send(hello...); err != nil {
		return err
	}
	for {
		msg, err := c.be.Receive()
		if err != nil {
			return errOver
		}
		if err := c.answer(msg); err != nil {
			return err
		}
	}
}

func (c *conn) startup() (map[string]string, error) {
	msg, err := c.be.ReceiveStartupMessage()
	if err != nil {
		return nil, errOver
	}
	m, ok := msg.(*pgproto3.StartupMessage)
	if !ok { // a CancelRequest, or a request for TLS, which the URL forbids
		return nil, errOver
	}
	params := map[string]string{}
	for k, v := range m.Parameters {
		params[k] = v
	}
	return params, nil
}

// answer handles one message. Of the extended protocol it knows what pgx sends: Parse and Describe of a statement, then
// Bind, Describe and Execute of the unnamed portal.
func (c *conn) answer(msg pgproto3.FrontendMessage) error {
	switch m := msg.(type) {
	case *pgproto3.Query:
		return c.simple(m.String)
	case *pgproto3.Parse:
		c.prepared[m.Name] = m.Query
		return c.send(&pgproto3.ParseComplete{})
	case *pgproto3.Bind:
		c.portal, c.formats, c.params = c.prepared[m.PreparedStatement], append([]int16(nil), m.ResultFormatCodes...), nil
		for _, p := range m.Parameters {
			c.params = append(c.params, append([]byte(nil), p...))
		}
		return c.send(&pgproto3.BindComplete{})
	case *pgproto3.Describe:
		if m.ObjectType == 'S' {
			q := c.find(c.prepared[m.Name])
			if q == nil {
				return fmt.Errorf("unknown query: %s", c.prepared[m.Name])
			}
			return c.send(&pgproto3.ParameterDescription{ParameterOIDs: q.params}, q.describe(nil))
		}
		return c.send(c.find(c.portal).describe(c.formats))
	case *pgproto3.Execute:
		if done, err := c.applyRule(c.portal); done {
			return err
		}
		return c.execute(c.portal, c.formats)
	case *pgproto3.Sync:
		return c.send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	case *pgproto3.Close:
		return c.send(&pgproto3.CloseComplete{})
	case *pgproto3.Flush:
		return nil
	case *pgproto3.Terminate:
		return errOver
	}
	return fmt.Errorf("unexpected message %T", msg)
}

// simple answers a query of the simple protocol, and the replication commands.
func (c *conn) simple(text string) error {
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	if done, err := c.applyRule(text); done {
		if err != nil {
			return err
		}
		return c.send(ready)
	}
	if strings.HasPrefix(text, "START_REPLICATION") {
		return c.startReplication(text)
	}
	if c.find(text) == nil {
		return fmt.Errorf("unknown query: %s", text)
	}
	if err := c.send(c.find(text).describe(nil)); err != nil {
		return err
	}
	if err := c.execute(text, nil); err != nil {
		return err
	}
	return c.send(ready)
}

// execute sends the rows of a query that was described.
func (c *conn) execute(text string, formats []int16) error {
	q := c.find(text)
	var rows [][]any
	c.s.mu.do(func() { rows = q.rows(&view{Server: c.s, params: c.params}) })
	types := pgtype.NewMap()
	for _, row := range rows {
		var out [][]byte
		for i, v := range row {
			b, err := types.Encode(q.columns[i], formatOf(formats, i), v, []byte{})
			if err != nil {
				return fmt.Errorf("encode column %d of %s: %w", i, text, err)
			}
			out = append(out, b)
		}
		if err := c.send(&pgproto3.DataRow{Values: out}); err != nil {
			return err
		}
	}
	return c.send(&pgproto3.CommandComplete{CommandTag: []byte(fmt.Sprintf("SELECT %d", len(rows)))})
}

func formatOf(formats []int16, i int) int16 {
	switch len(formats) {
	case 0:
		return pgtype.TextFormatCode
	case 1:
		return formats[0]
	}
	return formats[i]
}

func (q *query) describe(formats []int16) *pgproto3.RowDescription {
	d := &pgproto3.RowDescription{}
	for i, oid := range q.columns {
		d.Fields = append(d.Fields, pgproto3.FieldDescription{
			Name: []byte(fmt.Sprintf("c%d", i)), DataTypeOID: oid, DataTypeSize: -1, TypeModifier: -1, Format: formatOf(formats, i),
		})
	}
	return d
}

func (c *conn) find(text string) *query {
	for i := range queries {
		if strings.Contains(text, queries[i].part) {
			return &queries[i]
		}
	}
	return nil
}
