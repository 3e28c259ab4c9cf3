package awssink

import (
	"context"
	"net/http"
	"strings"
)

// Service is what takes the messages. Its name is the one in texts.
type Service string

// The services.
const (
	SQS Service = "SQS" // a topic of an event is the name of a FIFO queue
	SNS Service = "SNS" // it is the name of a FIFO topic of SNS
)

// what is the name of what takes messages.
func (s Service) what() string {
	if s == SNS {
		return "topic"
	}
	return "queue"
}

// permissions are those that the daemon needs.
func (s Service) permissions() string {
	if s == SNS {
		return "sns:Publish and sns:GetTopicAttributes"
	}
	return "sqs:SendMessage"
}

// maxMessage is the size from which on a message is refused. A topic of SNS may take more, if it says so.
func (s Service) maxMessage() int {
	if s == SNS {
		return 256 << 10
	}
	return 1 << 20
}

// client calls a service.
type client interface {
	// publish sends messages. Their ids in the answer are their places in the batch.
	publish(ctx context.Context, name string, batch []*message) (*outcome, error)
	// attributes reads those of a queue or topic.
	attributes(ctx context.Context, name string) (map[string]string, error)
}

// outcome is what an answer says about the messages of a batch.
type outcome struct {
	stored []storedEntry
	failed []failedEntry
}

type storedEntry struct {
	ID      string `xml:"Id"`
	Message string `xml:"MessageId"` // the id that the service has given
}

type failedEntry struct {
	ID          string `xml:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

func newClient(service Service, target *Target, at *address, transport *http.Transport, name string) client {
	h := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if service == SNS {
		return newSNS(target, at, h, name)
	}
	return newSQS(target, at, h, name)
}

// partition is that of the names of AWS in a region.
func partition(region string) string {
	switch {
	case strings.HasPrefix(region, "cn-"):
		return "aws-cn"
	case strings.HasPrefix(region, "us-gov-"):
		return "aws-us-gov"
	}
	return "aws"
}
