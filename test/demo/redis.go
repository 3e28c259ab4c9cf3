package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// streams is a Redis with a stream for each topic.
type streams struct{ *redistest.Node }

func startRedis(ctx context.Context, d *demo, _ options) (broker, error) {
	var b broker
	err := d.out.step("Redis: started; fetched if not in the cache (2 MB)", func() (string, error) {
		n, err := redistest.Open(ctx)
		if err != nil {
			return "", err
		}
		b = &streams{n}
		return n.Addr, nil
	})
	return b, err
}

func (b *streams) settings() string { return receiverSettings("redis", "redis://"+b.Addr) }

func (b *streams) fault() act { return killed("Redis", b) }

func (b *streams) follow(ctx context.Context, t *tally) error {
	last, number := map[string]string{}, int64(0)
	for ; ctx.Err() == nil; pause(ctx) {
		for _, topic := range topics {
			entries, err := b.Entries(ctx, topic, last[topic])
			if err != nil {
				continue // the server is away
			}
			for _, e := range entries {
				number++
				last[topic] = e.ID
				r := check.Record{Topic: topic, Offset: number}
				all := map[string]string{}
				for name, value := range e.Values {
					text := fmt.Sprint(value)
					if header, is := strings.CutPrefix(name, "header."); is {
						all[header] = text
					} else if name == "key" {
						r.Key = []byte(text)
					} else if name == "value" {
						r.Value = []byte(text)
					}
				}
				r.Headers = headers(fmt.Sprint(e.Values["id"]), all)
				t.addRead(r, time.Now())
			}
		}
	}
	return nil
}

func (b *streams) count(ctx context.Context, _ *tally) (int, error) {
	sum := 0
	for _, topic := range topics {
		n, err := b.Admin.XLen(ctx, topic).Result()
		if err != nil {
			return 0, err
		}
		sum += int(n)
	}
	return sum, nil
}

func (b *streams) look() string {
	_, port, _ := strings.Cut(b.Addr, ":")
	return "Redis     redis-cli -p " + port + " XREVRANGE " + orderTopic + " + - COUNT 3"
}
