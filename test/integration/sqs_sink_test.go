package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// sqsEnv returns the environment of a daemon that delivers to SQS.
func (o *outbox) sqsEnv(url string, more ...string) []string {
	env := slices.DeleteFunc(o.env(), func(kv string) bool { return strings.HasPrefix(kv, "OUTBOXCDC_KAFKA_") })
	return append(env, append([]string{
		"OUTBOXCDC_SINK=sqs", "OUTBOXCDC_RECEIVER_URL=" + url, "OUTBOXCDC_ROUTE_TOPIC={aggregate_type}.fifo", atLeastOnce,
		"AWS_REGION=" + sqstest.Region, "AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY=Geh3im",
	}, more...)...)
}

// TestSQSSink: under load, the daemon and ElasticMQ are killed again and again. The queue has every row that was
// committed, and the rows of each key in their order. A kill of the daemon repeats nothing; ElasticMQ forgets what it
// has when it ends.
func TestSQSSink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	server := sqstest.Start(t)
	const queue = "order.fifo"
	server.Create(queue)
	s := streamOfQueue(t, server, queue)
	s.length = func() int { return len(server.Read(queue)) }
	o.killsWith("ElasticMQ", o.sqsEnv(server.URL), s)
}

// streamOfQueue is a queue as a stream.
func streamOfQueue(t *testing.T, server *sqstest.Server, queue string) streamOfTest {
	var ends []int // number of messages when the server was killed
	return streamOfTest{
		length: func() int { return server.Stored(queue) },
		restart: func() {
			server.Kill()
			ends = append(ends, len(server.Read(queue)))
			server.Restart()
		},
		forgets: true,
		read: func() []streamEntry {
			all := queueEntries(t, server.Read(queue))
			for _, end := range ends {
				for i := range all[end:] {
					all[end+i].life++
				}
			}
			return all
		},
	}
}

// queueEntries are the events in the messages of a queue.
func queueEntries(t *testing.T, messages []types.Message) (all []streamEntry) {
	t.Helper()
	for _, m := range messages {
		var payload struct{ N int }
		must(t, json.Unmarshal([]byte(aws.ToString(m.Body)), &payload))
		all = append(all, streamEntry{
			id: aws.ToString(m.MessageAttributes["id"].StringValue), key: aws.ToString(m.MessageAttributes["outboxcdc-key"].StringValue), n: payload.N,
			once: m.Attributes["MessageDeduplicationId"],
		})
	}
	return all
}

// TestSNSSink: under load, the daemon and moto are killed again and again. A queue that subscribes to the topic has
// every row that was committed, and the rows of each key in their order. moto forgets what it has when it ends, and the
// daemon reaches it before the topic exists. Its queue drops a repeat only while it has the first message, so it is
// read when the daemon is cut off from it, and in the end.
func TestSNSSink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	server := sqstest.StartSNS(t)
	const topic = "order.fifo"
	server.Create(topic)
	s := streamOfQueue(t, server, topic)
	s.slow = true
	o.killsWith("moto", o.sqsEnv(server.URL, "OUTBOXCDC_SINK=sns", "OUTBOXCDC_RECEIVER_TIMEOUT=5m"), s) // on a busy machine it takes seconds for a request
}

// TestSNSWaits: an event waits while its topic is missing, and while it has no subscription, and the daemon names the
// topic, the cause and the remedy. It is delivered when a queue has subscribed.
func TestSNSWaits(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	server := sqstest.StartSNS(t)
	const topic = "order.fifo"
	r := o.startAs(slices.Concat(o.args, []string{"run"}), o.sqsEnv(server.URL, "OUTBOXCDC_SINK=sns"))
	must(t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return insertRows(ctx, tx, "order", "k", 1, 3) })
	}))
	awaitTrouble := func(words ...string) {
		t.Helper()
		await(t, patience, strings.Join(words, ", "), func() error {
			st, err := r.status()
			if err != nil {
				return err
			}
			missing := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(st.Sink, w) })
			if missing || !slices.Equal(st.WaitingForTopics, []string{topic}) || st.State != "waiting_for_sink" {
				return fmt.Errorf("%s, topics %q: %s", st.State, st.WaitingForTopics, st.Sink)
			}
			return nil
		})
	}
	awaitTrouble(topic, "NotFound", "create the FIFO topic")
	server.SNS("sns", "Action", "CreateTopic", "Name", topic, "Attributes.entry.1.key", "FifoTopic", "Attributes.entry.1.value", "true")
	awaitTrouble(topic, "no confirmed subscription", "subscribe a FIFO queue")
	server.Create(topic)
	await(t, patience, "the events", func() error { return waitFor(server.Stored(topic) == 3) })
	r.term()
	for i, e := range queueEntries(t, server.Read(topic)) {
		if e.n != i+1 {
			t.Errorf("row %d is at place %d", e.n, i+1)
		}
	}
}
