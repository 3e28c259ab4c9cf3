package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/outboxcdc/outboxcdc/outbox"
)

// fakeServer is a driver whose connections count statements and do nothing else, so that a benchmark measures only
// what Emit and database/sql do.
type fakeServer struct{ statements atomic.Int64 }

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *fakeServer) Driver() driver.Driver                        { return nil }
func (s *fakeServer) Begin() (driver.Tx, error)                    { return s, nil }
func (s *fakeServer) Commit() error                                { return nil }
func (s *fakeServer) Rollback() error                              { return nil }
func (s *fakeServer) Close() error                                 { return nil }
func (s *fakeServer) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not used") }

func (s *fakeServer) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	s.statements.Add(1)
	return driver.RowsAffected(1), nil
}

// fakeTx returns a transaction of a fake server.
func fakeTx(t testing.TB) (*fakeServer, *sql.Tx) {
	t.Helper()
	server := &fakeServer{}
	db := sql.OpenDB(server)
	t.Cleanup(func() { _ = db.Close() })
	return server, begin(t, db)
}

// 100 events are one statement, and with DeleteRows two.
func TestOneStatement(t *testing.T) {
	events := make([]outbox.Event, 100)
	for i := range events {
		events[i] = event()
	}
	for want, c := range map[int64]outbox.Config{1: {}, 2: {DeleteRows: true}} {
		server, tx := fakeTx(t)
		if err := newWriter(t, c).Emit(context.Background(), tx, events...); err != nil {
			t.Fatal(err)
		}
		if n := server.statements.Load(); n != want {
			t.Errorf("DeleteRows %t: %d statements for 100 events, want %d", c.DeleteRows, n, want)
		}
	}
}

// benchmarked is an event of usual size: a payload of 200 bytes and a trace context.
func benchmarked() (*outbox.Config, outbox.Event) {
	c := &outbox.Config{Inject: func(_ context.Context, headers map[string]string) {
		headers["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	}}
	return c, outbox.Event{AggregateType: "order", AggregateID: "42", Type: "OrderPaid", Payload: json.RawMessage(
		`{"order":42,"customer":"c-1234567890","lines":[{"sku":"abc","qty":2,"price":"9.50"},{"sku":"def","qty":1,"price":"19.50"}],` +
			`"address":{"street":"Long Street 1","city":"Berlin","zip":"10115"},"total":"38.50"}`)}
}

// Emit allocates at most 8 times more than the statement alone. This includes the map for injected headers.
func TestAllocations(t *testing.T) {
	c, e := benchmarked()
	w := newWriter(t, *c)
	_, tx := fakeTx(t)
	ctx := context.Background()
	emit := testing.AllocsPerRun(1000, func() {
		if err := w.Emit(ctx, tx, e); err != nil {
			t.Fatal(err)
		}
	})
	statements, _ := w.Statements(ctx, e)
	exec := testing.AllocsPerRun(1000, func() { _, _ = tx.ExecContext(ctx, statements[0].SQL, statements[0].Args...) })
	t.Logf("%.0f allocations of Emit, %.0f of them by database/sql", emit, exec)
	if emit-exec > 8 {
		t.Errorf("Emit allocates %.0f times more than its statement alone, want 8 at most", emit-exec)
	}
}
