package integration

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

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
		read: func() (all []streamEntry) {
			for _, m := range server.Read(queue) {
				var payload struct{ N int }
				must(t, json.Unmarshal([]byte(aws.ToString(m.Body)), &payload))
				all = append(all, streamEntry{id: aws.ToString(m.MessageAttributes["id"].StringValue), key: aws.ToString(m.MessageAttributes["outboxcdc-key"].StringValue), n: payload.N})
			}
			return all
		},
	})
}
