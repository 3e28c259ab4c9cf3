package kafkatest

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
)

// A client that connects through a proxy never bypasses it, and other clients are not disturbed.
func testProxiedClient(t *testing.T, ctx context.Context, c *Real, p *faultproxy.Proxy) {
	p.Target(c.ProxiedBackend(0))
	must(t, CreateTopic(ctx, c.Brokers(), "proxied", 1, nil))
	client, err := newClient([]string{p.Addr()}, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	defer client.Close()
	produce(t, ctx, client, &kgo.Record{Topic: "proxied", Value: []byte("through")})
	if n := p.Connections(); n < 2 {
		t.Errorf("%d connections; want one for metadata and another to produce", n)
	}
	must(t, p.Set(faultproxy.Faults{Refuse: true}))
	p.CutAll(true)
	away, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if err := client.Ping(away); err == nil {
		t.Error("it bypassed the proxy")
	}
	direct := producer(t, c)
	produce(t, ctx, direct, &kgo.Record{Topic: "proxied", Value: []byte("direct")})
	got, err := ReadAll(ctx, c.Brokers(), "proxied")
	must(t, err)
	if want := "0/0:through 0/1:direct"; values(got) != want {
		t.Errorf("got %s, want %s", values(got), want)
	}
}
