package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/test/rabbittest"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// TestSinkRates measures how long the daemon takes to deliver a backlog to each sink, and its processor time. Rows of
// 200 bytes and of 1 KB, 1,000 keys; the rounds of the sinks take turns. A receiver of HTTP is not measured: its rate
// is that of its round trips.
func TestSinkRates(t *testing.T) {
	skipUnlessProving(t)
	const rows, rounds = 100_000, 3
	for _, size := range []int{200, 1024} {
		rates, work := map[string][]float64{}, map[string][]float64{}
		sinks := []string{"kafka", "redis", "rabbitmq", "nats"}
		for round := range rounds {
			for _, sink := range sinks {
				t.Run(fmt.Sprintf("%s_%d_%d", sink, size, round), func(t *testing.T) {
					rate, worked := sinkRate(t, sink, rows, size)
					rates[sink], work[sink] = append(rates[sink], rate), append(work[sink], worked)
				})
			}
		}
		for _, sink := range sinks {
			if len(rates[sink]) < rounds {
				return // a round has failed
			}
			slices.Sort(rates[sink])
			slices.Sort(work[sink])
			t.Logf("%d bytes, %s: %.0f events/s (%.0f), %.2f s of processor time for a million events (%.2f)", size, sink, rates[sink][rounds/2], rates[sink], work[sink][rounds/2], work[sink])
		}
	}
}

// sinkRate returns events a second, and the daemon's processor time in seconds for a million events.
func sinkRate(t *testing.T, sink string, rows, size int) (rate, worked float64) {
	o := newOutbox(t, options{})
	env := append(o.env(), atLeastOnce)
	switch sink {
	case "redis":
		env = o.redisEnv(redistest.Start(t).Addr)
	case "nats":
		env = o.natsEnv("nats://" + o.startNATS().Addr)
	case "rabbitmq":
		s := rabbittest.Start(t)
		must(t, s.Do(func(ch *amqp.Channel) error { return rabbittest.Declare(ch, o.name+".order", "classic") }))
		env = o.rabbitEnv(s)
	}
	o.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT 'order', 'k' || g %% 1000, 'added', jsonb_build_object('n', g, 'pad', repeat('x', %d)), g FROM generate_series(1, %d) g`, size, rows))
	end := o.walFlushed()
	began := time.Now()
	r := o.startAs(slices.Concat(o.args, []string{"run"}), env)
	await(t, 10*patience, "all rows to be confirmed", func() error { return waitFor(o.confirmed() >= end) })
	took, work := time.Since(began), serverCPU(t, r.pid())
	r.term()
	return float64(rows) / took.Seconds(), work.Seconds() / float64(rows) * 1e6
}
