package inbox

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// commitCutter breaks connections after the server has answered a COMMIT, and keeps the answer from the client.
type commitCutter struct {
	pool *pgxpool.Pool
	next atomic.Bool // the next COMMIT is cut
	cuts atomic.Int32
}

func newCommitCutter(t *testing.T, url string) *commitCutter {
	c := &commitCutter{}
	conf, err := pgxpool.ParseConfig(url)
	must(t, err)
	conf.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &cutConn{Conn: conn, cutter: c}, err
	}
	c.pool, err = pgxpool.NewWithConfig(t.Context(), conf)
	must(t, err)
	t.Cleanup(c.pool.Close)
	return c
}

type cutConn struct {
	net.Conn
	cutter *commitCutter
	isCut  atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("commit\x00")) && c.cutter.next.CompareAndSwap(true, false) {
		c.isCut.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.isCut.Load() {
		c.cutter.cuts.Add(1)
		_ = c.Close()
		return 0, errors.New("cut on purpose")
	}
	return n, err
}

func pgxTx(tx pgx.Tx) inbox.Tx { return pgxinbox.Tx(tx) }

func pgtestConn(t *testing.T, r *room) *pgx.Conn { return pgtest.Connect(t, r.Postgres) }
