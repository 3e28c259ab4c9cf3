package main

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/natstest"
)

// subjects is a NATS with a stream that has all topics.
type subjects struct{ *natstest.Node }

func startNATS(ctx context.Context, d *demo, _ options) (broker, error) {
	var b broker
	err := d.out.step("NATS: started; built if not in the cache (a minute)", func() (string, error) {
		n, err := natstest.Open(ctx, nil)
		if err != nil {
			return "", err
		}
		b = &subjects{n}
		_, err = n.Admin.CreateStream(ctx, jetstream.StreamConfig{Name: natstest.Stream, Subjects: topics})
		return n.Addr, err
	})
	return b, err
}

func (b *subjects) settings() string {
	return receiverSettings("nats", "nats://"+b.Addr, "  stream: "+natstest.Stream)
}

func (b *subjects) fault() act { return killed("NATS", b) }

func (b *subjects) follow(ctx context.Context, t *tally) error {
	_ = b.Follow(ctx, 0, func(m jetstream.Msg) { // an error: the server was away
		at, err := m.Metadata()
		if err != nil {
			return
		}
		all := map[string]string{}
		for name, values := range m.Headers() {
			if !strings.HasPrefix(name, "Nats-") && name != "outboxcdc-key" {
				all[name] = strings.Join(values, "\n")
			}
		}
		t.addRead(check.Record{
			Topic: m.Subject(), Offset: int64(at.Sequence.Stream), Key: []byte(m.Headers().Get("outboxcdc-key")), Value: m.Data(),
			Headers: headers(m.Headers().Get("id"), all),
		}, time.Now())
	})
	return nil
}

func (b *subjects) count(ctx context.Context, _ *tally) (int, error) { return b.Count(ctx) }

func (b *subjects) look() string {
	return "NATS      nats -s nats://" + b.Addr + " stream view " + natstest.Stream
}
