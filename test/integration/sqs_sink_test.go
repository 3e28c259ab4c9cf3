package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

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
	o.killsWith("ElasticMQ", o.sqsEnv(server.URL), streamOfTest{
		length:  func() int { return len(server.Read(queue)) },
		restart: func() { server.Kill(); server.Restart() },
		forgets: true,
		read:    func() []streamEntry { return queueEntries(t, server.Read(queue)) },
	})
}

// queueEntries are the events in the messages of a queue.
func queueEntries(t *testing.T, messages []types.Message) (all []streamEntry) {
	t.Helper()
	for _, m := range messages {
		var payload struct{ N int }
		must(t, json.Unmarshal([]byte(aws.ToString(m.Body)), &payload))
		all = append(all, streamEntry{id: aws.ToString(m.MessageAttributes["id"].StringValue), key: aws.ToString(m.MessageAttributes["outboxcdc-key"].StringValue), n: payload.N})
	}
	return all
}

// TestSNSSink: under load, the daemon and moto are killed again and again. A queue that subscribes to the topic has
// every row that was committed, and the rows of each key in their order. moto forgets what it has when it ends. Its
// queue drops a repeat only while it has the first message, so it is read when the daemon is cut off from it, and in
// the end.
func TestSNSSink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	server := sqstest.StartSNS(t)
	const topic = "order.fifo"
	server.Create(topic)
	o.killsWith("moto", o.sqsEnv(server.URL, "OUTBOXCDC_SINK=sns"), streamOfTest{
		length:  func() int { return server.Stored(topic) },
		restart: func() { server.Kill(); server.Restart() },
		forgets: true,
		slow:    true,
		read:    func() []streamEntry { return queueEntries(t, server.Read(topic)) },
	})
}
