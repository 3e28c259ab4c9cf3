package integration

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/test/rabbittest"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// TestSinkRates measures at which rate the daemon delivers a backlog to each sink, its processor time, and its memory.
// Rows of 200 bytes and of 1 KB, 1,000 keys, in the default format; the rounds of the sinks take turns. RabbitMQ is
// measured with a queue of each type, from which no consumer reads. A receiver of HTTP is not measured: its rate is
// that of its round trips.
func TestSinkRates(t *testing.T) {
	skipUnlessProving(t)
	if flag.Lookup("test.run").Value.String() == "" {
		t.Skip("it measures for ten minutes, and proves nothing: make prove RUN=TestSinkRates")
	}
	const rounds = 3
	for _, size := range []int{200, 1024} {
		all := map[string][]sinkCost{}
		sinks := []string{"kafka", "redis", "nats", "rabbitmq quorum", "rabbitmq stream", "rabbitmq classic"}
		for round := range rounds {
			for _, sink := range sinks {
				t.Run(fmt.Sprintf("%s_%d_%d", sink, size, round), func(t *testing.T) {
					c := sinkRate(t, sink, size)
					t.Logf("%+v", c)
					all[sink] = append(all[sink], c)
				})
			}
		}
		for _, sink := range sinks {
			if len(all[sink]) < rounds {
				return // a round has failed
			}
			middle := func(of func(c sinkCost) float64) string {
				var values []float64
				for _, c := range all[sink] {
					values = append(values, of(c))
				}
				sorted := slices.Sorted(slices.Values(values))
				return fmt.Sprintf("%.1f (%.1f)", sorted[rounds/2], values)
			}
			t.Logf("%d bytes, %s: %s events/s; for a million events %s s of processor time; at most %s MB of memory", size, sink,
				middle(func(c sinkCost) float64 { return c.rate }), middle(func(c sinkCost) float64 { return c.work }), middle(func(c sinkCost) float64 { return c.memory }))
		}
	}
}

// sinkCost has events a second, the daemon's processor time in seconds for a million events, and the most resident
// memory in MB.
type sinkCost struct{ rate, work, memory float64 }

// sinkRate measures one delivery of a backlog. The rate is that between the first and the last acknowledgement: the
// start of the daemon, and the time until the slot is moved, are the same whatever the sink is.
func sinkRate(t *testing.T, sink string, size int) sinkCost {
	const rows = 200_000
	o := newOutbox(t, options{})
	env := append(o.env(), atLeastOnce)
	sink, queue, _ := strings.Cut(sink, " ")
	switch sink {
	case "redis":
		env = o.redisEnv(redistest.Start(t).Addr)
	case "nats":
		env = o.natsEnv("nats://" + o.startNATS().Addr)
	case "rabbitmq":
		s := rabbittest.Start(t)
		must(t, s.Do(func(ch *amqp.Channel) error { return rabbittest.Declare(ch, o.name+".order", queue) }))
		env = slices.DeleteFunc(o.rabbitEnv(s), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_ROUTE_F") })
	}
	o.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT 'order', 'k' || g %% 1000, 'added', jsonb_build_object('n', g, 'pad', repeat('x', %d)), g FROM generate_series(1, %d) g`, size, rows))
	end := o.walFlushed()
	r := o.startAs(slices.Concat(o.args, []string{"run"}), env)
	first, began := r.delivered(1)
	last, ended := r.delivered(rows)
	work := serverCPU(t, r.pid())
	await(t, 10*patience, "all rows to be confirmed", func() error { return waitFor(o.confirmed() >= end) })
	memory := r.peakMemory()
	r.term()
	return sinkCost{(last - first) / ended.Sub(began).Seconds(), work.Seconds() / rows * 1e6, float64(memory) / 1e6}
}

// delivered waits until that many events are acknowledged, and returns how many are, and when it was seen.
func (r *relay) delivered(least float64) (n float64, at time.Time) {
	r.t.Helper()
	await(r.t, 10*patience, fmt.Sprintf("%.0f events to be delivered", least), func() error {
		at = time.Now()
		m, err := r.metrics()
		if n = 0; err != nil {
			return err
		}
		for series, value := range m {
			if strings.HasPrefix(series, "outboxcdc_events_delivered_total{") {
				n += value
			}
		}
		if n < least {
			return errors.New("it has delivered fewer")
		}
		return nil
	})
	return n, at
}
