package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// redisEnv returns the environment of a daemon that delivers to Redis.
func (o *outbox) redisEnv(addr string, more ...string) []string {
	env := slices.DeleteFunc(o.env(), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_KAFKA_") })
	return append(env, append([]string{"OUTBOXCDC_SINK=redis", "OUTBOXCDC_RECEIVER_URL=redis://" + addr, atLeastOnce}, more...)...)
}

// streamEntry is what a consumer of the stream reads.
type streamEntry struct {
	id, key string
	n       int
}

// streamEntries reads the stream from its beginning.
func streamEntries(t *testing.T, server *redistest.Server, stream string) (all []streamEntry) {
	t.Helper()
	for from := "-"; ; {
		page, err := server.Admin.XRangeN(context.Background(), stream, from, "+", 5000).Result()
		must(t, err)
		for _, m := range page {
			var payload struct{ N int }
			must(t, json.Unmarshal([]byte(fmt.Sprint(m.Values["value"])), &payload))
			all = append(all, streamEntry{id: fmt.Sprint(m.Values["id"]), key: fmt.Sprint(m.Values["key"]), n: payload.N})
			from = "(" + m.ID
		}
		if len(page) < 5000 {
			return all
		}
	}
}

// TestRedisSink: under load, the daemon and Redis are killed again and again. The stream has every row that was
// committed once, and the rows of each key in their order.
func TestRedisSink(t *testing.T) {
	t.Parallel()
	kills := fullOrShort(70, 6)
	o := newOutbox(t, options{})
	o.proves("F125", "kill -9 of the daemon and of Redis Streams, %d times", kills)
	server, stream := redistest.Start(t), o.name+".order"
	env, args := o.redisEnv(server.Addr), slices.Concat(o.args, []string{"run"})
	r := o.startAs(args, env)

	const keys = 20
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
	go func() {
		for !stop.Load() {
			if err := insert(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	length := func() int {
		count, err := server.Admin.XLen(context.Background(), stream).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
		return int(count)
	}
	awaitMore := func(more int) {
		from := length()
		await(t, patience, fmt.Sprintf("%d more entries", more), func() error { return waitFor(length() >= from+more) })
	}
	daemonKills := 0
	for i := range kills {
		awaitMore(100 + rand.IntN(300))
		if i%7 < 5 { // 50 of the daemon and 20 of Redis in the long form
			r.kill9()
			daemonKills++
			r = o.startAs(args, env)
		} else {
			server.Kill()
			server.Start()
		}
	}
	awaitMore(100)
	stop.Store(true)
	must(t, <-done)

	var rows int
	must(t, o.admin.scan("SELECT count(*) FROM outbox", &rows))
	await(t, patience, "all rows in the stream", func() error {
		if got := length(); got < rows {
			return fmt.Errorf("%d of %d", got, rows)
		}
		return nil
	})
	r.term()
	seen, last := map[string]bool{}, map[string]int{}
	for _, e := range streamEntries(t, server, stream) {
		if seen[e.id] {
			t.Errorf("row %d of key %s is stored twice", e.n, e.key)
		} else if e.n != last[e.key]+1 {
			t.Errorf("row %d of key %s is stored after row %d", e.n, e.key, last[e.key])
		}
		seen[e.id], last[e.key] = true, e.n
	}
	for key, count := range n {
		if last[fmt.Sprint("k", key)] != count {
			t.Errorf("key k%d: the last row is %d, not %d", key, last[fmt.Sprint("k", key)], count)
		}
	}
	if len(seen) != rows {
		t.Errorf("%d events of %d rows", len(seen), rows)
	}
	o.outcome("%d rows, none missing, none twice", rows)
	t.Logf("%d rows after %d kills of the daemon and %d of Redis", rows, daemonKills, kills-daemonKills)
}
