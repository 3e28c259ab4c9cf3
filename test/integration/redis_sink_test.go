package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

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
	life    int    // of a server that forgets what it has when it ends
	once    string // by what such a server knows a repeat
}

// streamEntries reads the stream from its beginning.
func streamEntries(t *testing.T, server *redistest.Server, stream string) (all []streamEntry) {
	t.Helper()
	entries, err := server.Entries(context.Background(), stream, "")
	must(t, err)
	for _, m := range entries {
		var payload struct{ N int }
		must(t, json.Unmarshal([]byte(fmt.Sprint(m.Values["value"])), &payload))
		all = append(all, streamEntry{id: fmt.Sprint(m.Values["id"]), key: fmt.Sprint(m.Values["key"]), n: payload.N})
	}
	return all
}

// TestRedisSink: under load, the daemon and Redis are killed again and again. The stream has every row that was
// committed once, and the rows of each key in their order.
func TestRedisSink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	server, stream := redistest.Start(t), o.name+".order"
	o.killsWith("Redis Streams", o.redisEnv(server.Addr), streamOfTest{
		length: func() int {
			count, err := server.Admin.XLen(context.Background(), stream).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Error(err)
			}
			return int(count)
		},
		restart: func() { server.Kill(); server.Start() },
		read:    func() []streamEntry { return streamEntries(t, server, stream) },
	})
}
