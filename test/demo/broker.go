package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/check"
)

// broker is what the relay delivers to: a server on this machine that the demo starts, breaks and reads.
type broker interface {
	// settings are those of the relay, in YAML.
	settings() string
	// fault is what happens to the broker in the story.
	fault() act
	// follow reads as any consumer would and passes the records to the tally, until ctx is done. It is an independent
	// witness: it shares no code with the relay.
	follow(ctx context.Context, t *tally) error
	// count returns how many records the broker has got and kept. It is called when all writing has ended.
	count(ctx context.Context, t *tally) (int, error)
	// look is a line that says how a person can look at the broker.
	look() string
	Close() error
}

// target is a sink, and what docs/sinks.md promises of it.
type target struct {
	name    string
	place   string // where its events are
	repeats bool   // whether a fault may repeat events
	restart string // what a relay does after its kill -9
	start   func(context.Context, *demo, options) (broker, error)
}

// targets are the sinks that the demo has. One that promises no repeats within a window is not down for so long.
var targets = map[string]target{
	"kafka": {
		name: "Kafka", place: "Kafka", start: startKafka,
		restart: "it waits 5 s for requests of the dead one, then reads what Kafka has.",
	},
	"rabbitmq": {name: "RabbitMQ", place: "RabbitMQ", repeats: true, restart: sendsAgain + ".", start: startRabbit},
	"redis":    {name: "Redis", place: "Redis", restart: sendsAgain + "; Redis drops what it has.", start: startRedis},
	"nats":     {name: "NATS", place: "NATS", restart: sendsAgain + "; NATS drops what it has.", start: startNATS},
	"http":     {name: "a receiver of HTTP", place: "the receiver", repeats: true, restart: sendsAgain + ".", start: startReceiver},
}

const sendsAgain = "it sends again what was not confirmed"

// intro says what is about to happen.
func (t target) intro() []string {
	if t.name == "Kafka" {
		return []string{
			"A shop writes orders and their events to PostgreSQL, in one transaction each. outboxcdc delivers",
			"the events to Kafka, and a ledger books each order in a database of its own. Four things break on",
			"the way; at the end every event and every amount is accounted for. All of it runs on this machine,",
			"takes about a minute and a half, and is removed afterwards, except for a cache of downloads.",
			"",
		}
	}
	repeats := "No event may arrive twice."
	if t.repeats {
		repeats = "After a fault an event may arrive again, with the same id, by which a consumer knows it."
	}
	text := "A shop writes orders and their events to PostgreSQL, in one transaction each. outboxcdc delivers the events to " + t.name +
		". Three things break on the way; at the end every event is accounted for. " + repeats + " All of it runs on this machine, " +
		"takes about a minute, and is removed afterwards, except for a cache of downloads."
	return append(wrap(text, width), "")
}

// countAll returns how many records the broker has got, after the reader had time to read as many. It would miss a
// phantom or a repeat at the very end otherwise.
func (d *demo) countAll(ctx context.Context) (int, error) {
	stored, err := d.broker.count(ctx, d.tally)
	if err != nil {
		return 0, fmt.Errorf("count what %s holds: %w", d.tally.target.place, err)
	}
	for range 100 {
		if d.tally.recordsRead() >= stored {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return stored, nil // the verdict reports a reader that has not caught up
}

// node is a server as a process.
type node interface {
	Kill() error
	StartAgain(ctx context.Context) error
}

// killed is the fault of a broker that is killed and started again.
func killed(name string, n node) act {
	return act{
		cause:    brokerDown,
		before:   name + " is killed with kill -9.",
		inject:   func(context.Context, *demo) error { return n.Kill() },
		duration: 2 * time.Second,
		after:    name + " is started again, with what it had on its disk.",
		fix: func(ctx context.Context, d *demo) error {
			return d.runWithLiveLines(ctx, func() error { return n.StartAgain(ctx) })
		},
	}
}

// receiverSettings are the settings of a sink that is not Kafka.
func receiverSettings(sink, url string, more ...string) string {
	lines := []string{"sink: " + sink, "delivery: {mode: at_least_once}", "receiver:", "  url: " + url}
	return strings.Join(append(lines, more...), "\n")
}

// headers are those of a record whose broker keeps no order of them: the id first.
func headers(id string, all map[string]string) []check.Header {
	h := []check.Header{{Name: "id", Value: []byte(id)}}
	for name, value := range all {
		if name != "id" {
			h = append(h, check.Header{Name: name, Value: []byte(value)})
		}
	}
	slices.SortFunc(h[1:], func(a, b check.Header) int { return strings.Compare(a.Name, b.Name) })
	return h
}

// readEvery is the pause of a reader that has read everything, or whose broker is away.
const readEvery = 10 * time.Millisecond

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(readEvery):
	}
}
