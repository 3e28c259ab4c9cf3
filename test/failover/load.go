package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	writers = 10
	keys    = 5 // of each writer: a key has one writer, so the order of its events is known
	topic   = "outbox.event.order"
)

// load is the application: it commits one event per transaction, at a fixed rate while there is a primary.
type load struct {
	url     string
	arrived *arrivals
	stop    context.CancelFunc
	wg      sync.WaitGroup
	failed  chan error // errors that no new primary resolves, at most one of each writer

	committed atomic.Int64
}

// startLoad starts the writers, which together commit rate transactions per second.
func startLoad(ctx context.Context, url string, rate int, a *arrivals) *load {
	l := &load{url: url, arrived: a, failed: make(chan error, writers)}
	ctx, l.stop = context.WithCancel(ctx)
	for i := range writers {
		l.wg.Go(func() { l.write(ctx, i, time.Second*writers/time.Duration(rate)) })
	}
	return l
}

// close stops the writers. When it returns, every transaction has ended on the server, too.
func (l *load) close() {
	l.stop()
	l.wg.Wait()
}

// write commits a transaction every interval, late ones at once, but not those of the time without a primary.
func (l *load) write(ctx context.Context, writer int, every time.Duration) {
	for n := 0; ctx.Err() == nil; {
		conn, err := pgx.Connect(ctx, l.url)
		if err == nil {
			due := time.Now()
			for err == nil && ctx.Err() == nil {
				n++ // never used again: of a COMMIT without an answer it is unknown whether it has happened
				err = l.insert(ctx, conn, writer, n)
				due = due.Add(every)
				pause(ctx, time.Until(due))
			}
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		if err != nil && ctx.Err() == nil && !isTransient(err) {
			l.failed <- fmt.Errorf("the load: %w", err)
			return
		}
		pause(ctx, pollEvery)
	}
}

// insert commits one event. Its number orders the events of a writer, and so those of its keys. The end of ctx does
// not cancel it: the server would commit all the same, after the rows were counted, and the event would look like a
// phantom.
func (l *load) insert(ctx context.Context, conn *pgx.Conn, writer, n int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	id := uuid.NewString()
	_, err := conn.Exec(ctx, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'order', $2, 'OrderPlaced', $3)`,
		id, fmt.Sprintf("%d-%d", writer, n%keys), `{"n": `+strconv.Itoa(n)+`}`)
	if err != nil {
		return err
	}
	l.arrived.committed(id, conn.PgConn().Conn().RemoteAddr().String())
	l.committed.Add(1)
	return nil
}

// isTransient reports whether there is no primary now: any error except one that blames the statement.
func isTransient(err error) bool {
	var pg *pgconn.PgError
	return !errors.As(err, &pg) || strings.HasPrefix(pg.Code, "57") || strings.HasPrefix(pg.Code, "25") // shutting down or starting; read-only
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// arrivals find the first event that arrives in Kafka of those that a new primary has committed.
type arrivals struct {
	mu     sync.Mutex
	server map[string]string    // where an event was committed that has not arrived, by id
	early  map[string]time.Time // when an event has arrived whose COMMIT has not been answered
	read   int

	watched string // the new primary
	first   time.Time
}

func newArrivals() *arrivals {
	return &arrivals{server: map[string]string{}, early: map[string]time.Time{}}
}

// committed notes that a server has answered the COMMIT of an event.
func (a *arrivals) committed(id, server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok := a.early[id]; ok {
		delete(a.early, id)
		a.note(server, at)
		return
	}
	a.server[id] = server
}

// arrive notes that an event was read from Kafka.
func (a *arrivals) arrive(id string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read++
	if server, ok := a.server[id]; ok {
		delete(a.server, id)
		a.note(server, at)
		return
	}
	a.early[id] = at
}

func (a *arrivals) note(server string, at time.Time) {
	if server == a.watched && (a.first.IsZero() || at.Before(a.first)) {
		a.first = at
	}
}

// watch forgets earlier arrivals and waits for the first from a server.
func (a *arrivals) watch(server string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watched, a.first = server, time.Time{}
}

// firstArrival returns when the first event of the watched server arrived; zero if none has.
func (a *arrivals) firstArrival() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.first
}

// records returns how many records were read.
func (a *arrivals) records() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.read
}
