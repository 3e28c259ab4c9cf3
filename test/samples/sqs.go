package main

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// queues is an ElasticMQ with a FIFO queue.
type queues struct {
	server *sqstest.Server
	queue  string
}

func openSQS(ctx context.Context, _, topic, _ string) (broker, error) {
	server, err := sqstest.Open()
	if err != nil {
		return nil, err
	}
	// After the visibility timeout, what a killed consumer has received is received again.
	_, err = server.Admin.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &topic, Attributes: map[string]string{"FifoQueue": "true", "VisibilityTimeout": "5"}})
	return &queues{server, topic}, err
}

func (q *queues) addr() string {
	addr, _, _ := strings.Cut(strings.TrimPrefix(q.server.URL, "http://"), "/")
	return addr
}

func (q *queues) config() string { return "sink: sqs\nreceiver:\n  url: " + q.server.URL + "\n" }

func (q *queues) env() []string {
	return []string{"AWS_REGION=" + sqstest.Region, "AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY=Geh3im"}
}

func (q *queues) client(addr string) []string {
	return []string{"AWS_DEFAULT_REGION=" + sqstest.Region, "AWS_ENDPOINT_URL_SQS=http://" + addr}
}

func (q *queues) left(ctx context.Context, _ bool) (int, error) { return q.server.Left(ctx, q.queue) }

func (q *queues) close() { q.server.Close() }
