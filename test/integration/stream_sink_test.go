package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// streamOfTest is a stream that refuses repeats, on a server that may be killed.
type streamOfTest struct {
	length  func() int // number of its messages
	restart func()     // kills the server and starts it
	read    func() []streamEntry
	forgets bool // a restart forgets what the stream has, so that it stores what is sent again a second time, and only then
	slow    bool // the server takes few messages a second, so fewer are between two kills
}

// sentAtOnce is the maximum number of messages without an acknowledgement.
const sentAtOnce = 1024

// killsWith kills the daemon and its server again and again, under load. The stream has every row that was committed
// once, and the rows of each key in their order.
func (o *outbox) killsWith(name string, env []string, s streamOfTest) {
	t := o.t
	kills := fullOrShort(70, 6)
	o.proves("F125", "kill -9 of the daemon and of %s, %d times", name, kills)
	args := slices.Concat(o.args, []string{"run"})
	r := o.startAs(args, env)

	const keys = 20
	part := 1
	if s.slow {
		part = 10
	}
	var n [keys]int
	var stop atomic.Bool
	done := make(chan error)
	insert := func() error {
		return o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				key := rand.IntN(keys)
				if err := insertRows(ctx, tx, "order", fmt.Sprint("k", key), n[key]+1, 5); err != nil {
					return err
				}
				n[key] += 5
				return nil
			})
		})
	}
	var written, counted atomic.Int64
	length := func() int {
		got := s.length()
		counted.Store(int64(got))
		return got
	}
	go func() {
		for !stop.Load() {
			if s.forgets && written.Load()-counted.Load() > int64(2*sentAtOnce/part) { // its reader is slower than the daemon
				time.Sleep(time.Millisecond)
				continue
			}
			written.Add(5)
			if err := insert(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	awaitMore := func(more int) {
		from := length()
		await(t, patience, fmt.Sprintf("%d more entries", more), func() error { return waitFor(length() >= from+more) })
	}
	daemonKills := 0
	for i := range kills {
		awaitMore((100 + rand.IntN(300)) / part)
		if i%7 < 5 { // 50 of the daemon and 20 of the server in the long form
			r.kill9()
			daemonKills++
			r = o.startAs(args, env)
		} else {
			s.restart()
		}
	}
	awaitMore(100 / part)
	stop.Store(true)
	must(t, <-done)

	var rows int
	must(t, o.admin.scan("SELECT count(*) FROM outbox", &rows))
	stored := func() int {
		got := length()
		if s.forgets && got >= rows { // its length counts repeats
			ids := map[string]bool{}
			for _, e := range s.read() {
				ids[e.id] = true
			}
			got = len(ids)
		}
		return got
	}
	for now := stored(); now < rows; now = stored() { // on a slow machine the rest may take long
		from := now
		await(t, patience, fmt.Sprintf("more than %d of %d rows in the stream", now, rows), func() error { return waitFor(stored() > from) })
	}
	r.term()
	seen, last, repeats := map[string]streamEntry{}, map[string]int{}, 0
	for _, e := range s.read() {
		first, again := seen[e.id]
		if again && e.life > first.life && e.once == first.once { // the server has forgotten the first one
			repeats++
			seen[e.id] = e
			continue
		} else if again {
			t.Errorf("row %d of key %s is stored twice: %+v, %+v", e.n, e.key, first, e)
		} else if e.n != last[e.key]+1 {
			t.Errorf("row %d of key %s is stored after row %d", e.n, e.key, last[e.key])
		}
		seen[e.id], last[e.key] = e, e.n
	}
	for key, count := range n {
		if last[fmt.Sprint("k", key)] != count {
			t.Errorf("key k%d: the last row is %d, not %d", key, last[fmt.Sprint("k", key)], count)
		}
	}
	if len(seen) != rows {
		t.Errorf("%d events of %d rows", len(seen), rows)
	}
	if most := (kills - daemonKills) * sentAtOnce; repeats > most {
		t.Errorf("%d rows are stored twice, more than %d that were in flight when %s was killed", repeats, most, name)
	}
	o.outcome("%d rows, none missing, %d twice", rows, repeats)
	t.Logf("%d rows, %d twice, after %d kills of the daemon and %d of %s", rows, repeats, daemonKills, kills-daemonKills, name)
}
