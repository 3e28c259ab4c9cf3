package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/child"
)

// put sends an event as the relay does.
func put(ctx context.Context, b broker, r check.Row) error {
	switch b := b.(type) {
	case *rabbit:
		return b.Do(func(ch *amqp.Channel) error {
			if err := ch.Confirm(false); err != nil {
				return err
			}
			m := amqp.Publishing{MessageId: r.ID, DeliveryMode: amqp.Persistent, Headers: amqp.Table{"id": r.ID, "type": "t"}, Body: r.Value}
			d, err := ch.PublishWithDeferredConfirmWithContext(ctx, r.Topic, string(r.Key), true, false, m)
			if err != nil {
				return err
			}
			_, err = d.WaitContext(ctx)
			return err
		})
	case *streams:
		values := []any{"id", r.ID, "key", string(r.Key), "value", string(r.Value), "header.type", "t"}
		return b.Admin.XAdd(ctx, &redis.XAddArgs{Stream: r.Topic, Values: values}).Err()
	case *subjects:
		m := nats.NewMsg(r.Topic)
		m.Data = r.Value
		for name, value := range map[string]string{"id": r.ID, "outboxcdc-key": string(r.Key), "type": "t", "Nats-Msg-Id": r.ID} {
			m.Header.Set(name, value)
		}
		_, err := b.Admin.PublishMsg(ctx, m)
		return err
	case *receiver:
		body := fmt.Sprintf(`{"specversion":"1.0","id":%q,"type":"t","subject":%q,"data":%s}`, r.ID, r.Key, r.Value)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // the fault cuts connections
		res, err := client.Post("http://"+b.addr+"/"+r.Topic, "application/cloudevents+json", strings.NewReader(body))
		if err != nil {
			return err
		}
		if res.Body.Close(); res.StatusCode != http.StatusNoContent {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	}
	return fmt.Errorf("what is %T?", b)
}

// TestBrokers: what was sent to each broker is what the reader passes to the tally, byte for byte and in order, also
// after the broker's fault, which loses nothing.
func TestBrokers(t *testing.T) {
	for _, name := range []string{"http", "nats", "rabbitmq", "redis"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child.SkipShort(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*startPatience)
			defer cancel()
			d := &demo{
				out: &printer{w: io.Discard}, tally: newTally(targets[name]), relay: &relay{}, dir: t.TempDir(),
				second: time.NewTicker(time.Hour), failed: make(chan error, 1),
			}
			b, err := targets[name].start(ctx, d, options{})
			if b != nil {
				t.Cleanup(func() {
					if err := b.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			following, stop := context.WithCancel(ctx)
			followed := make(chan error, 1)
			go func() { followed <- b.follow(following, d.tally) }()
			for part := range 2 {
				for n := range 50 {
					p := purchase{id: uuid(), item: items[n%len(items)], events: []event{{uuid(), "order", ""}, {uuid(), "payment", ""}}}
					rows := p.rows(part*50+n+1, part*50+n+1)
					for _, r := range rows {
						if err := put(ctx, b, r); err != nil {
							t.Fatal(err)
						}
					}
					d.tally.addCommitted(rows, time.Now(), false)
				}
				for !d.tally.isSettled() && ctx.Err() == nil {
					time.Sleep(readEvery)
				}
				if part == 0 {
					f := b.fault()
					d.tally.setFault(f.cause)
					if err := f.inject(ctx, d); err != nil {
						t.Fatal(err)
					}
					if err := f.fix(ctx, d); err != nil {
						t.Fatal(err)
					}
				}
			}
			stored, err := b.count(ctx, d.tally)
			if err != nil {
				t.Fatal(err)
			}
			stop()
			if err := <-followed; err != nil {
				t.Error(err)
			}
			if v := d.tally.verdict(ending{stored: stored}); !v.ok() {
				t.Errorf("%+v", v)
			}
			if n := d.tally.repeatsAfter(brokerDown); n > 0 && name != "rabbitmq" {
				t.Errorf("%d events were read twice", n)
			}
		})
	}
}

// TestMissingServer: the demo says what to install.
func TestMissingServer(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	t.Setenv(child.CacheEnv, t.TempDir())
	installed, _ := filepath.Glob("/usr/lib/rabbitmq/lib/*") // it needs no PATH
	for name, remedy := range map[string]string{
		"rabbitmq": "install rabbitmq-server, or let apt-get reach its archive", "redis": "install redis-server, or let apt-get reach its archive",
		"nats": "go install must reach a proxy of Go modules",
	} {
		if name == "rabbitmq" && len(installed) > 0 {
			continue
		}
		d := &demo{out: &printer{w: io.Discard}, tally: newTally(targets[name]), dir: t.TempDir()}
		b, err := targets[name].start(t.Context(), d, options{})
		if b != nil || err == nil || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%s: %v, %v", name, b, err)
		}
	}
}
