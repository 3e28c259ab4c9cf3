package main

import (
	"context"
	"fmt"

	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// streams is a Redis. The consumer creates stream and group.
type streams struct {
	server        *redistest.Node
	stream, group string
}

func openRedis(ctx context.Context, _, topic, group string) (broker, error) {
	server, err := redistest.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &streams{server, topic, group}, nil
}

func (r *streams) addr() string { return r.server.Addr }

func (r *streams) config() string {
	return "sink: redis\nreceiver:\n  url: redis://" + r.server.Addr + "\n"
}

func (r *streams) env() []string { return nil }

func (r *streams) client(addr string) []string { return []string{"REDIS_URL=redis://" + addr} }

func (r *streams) left(ctx context.Context, _ bool) (int, error) {
	groups, err := r.server.Admin.XInfoGroups(ctx, r.stream).Result()
	if err != nil {
		return 0, err
	}
	if len(groups) != 1 || groups[0].Name != r.group {
		return 0, fmt.Errorf("the stream has the groups %v", groups)
	}
	return int(groups[0].Pending + groups[0].Lag), nil
}

func (r *streams) close() { _ = r.server.Close() }
