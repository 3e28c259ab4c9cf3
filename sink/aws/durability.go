package awssink

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// maxRetention is the longest time for which a queue keeps a message that is not read.
const maxRetention = 14 * 24 * time.Hour

// Durability reads what an acknowledgement of the queues means at present, and by what an acknowledged event can be
// lost, or lose its order. What cannot be read is among the risks, because nothing is known about it.
func (r *Receiver) Durability(ctx context.Context, topics []string) (means string, risks []string, err error) {
	t, err := r.Reach(ctx)
	if err != nil {
		return "", nil, err
	}
	defer t.Close()
	what := t.service.what()
	means = "the queue has the message; SQS itself says that several servers have it; a repeat within five minutes is not delivered again"
	if t.service == SNS {
		means = "the topic has the message, as SNS says; whether a subscriber gets it is a matter of its subscription, which was not read; a repeat within five minutes is not delivered again"
	}
	if len(topics) == 0 {
		return means + "; no " + what + " was examined, because the settings name none (use --topic)", nil, nil
	}
	var limits []string
	for _, name := range topics {
		limit, ofOne, why := t.examine(ctx, name)
		if why != nil {
			return "", nil, why
		}
		if limit != "" {
			limits = append(limits, name+" takes "+limit)
		}
		for _, risk := range ofOne {
			risks = append(risks, fmt.Sprintf("the %s %s: %s", what, name, risk))
		}
	}
	return strings.Join(append([]string{means}, limits...), "; "), risks, nil
}

// examine reads the attributes of a queue or topic.
func (t *transport) examine(ctx context.Context, name string) (limit string, risks []string, why *lane.Failure) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	what, flag, permission, unread, meaningOf := "queue", "FifoQueue", "sqs:GetQueueAttributes", "whether an event can be lost is not known", ofQueue
	if t.service == SNS {
		what, flag, permission, unread, meaningOf = "topic", "FifoTopic", "sns:GetTopicAttributes", "the daemon sends it nothing", ofTopic
	}
	if !fifoName.MatchString(name) {
		return "", []string{"it is no name of a FIFO " + what + ", so its events are poison"}, nil
	}
	attributes, err := t.client.attributes(ctx, name)
	if err == nil {
		limit, risks = meaningOf(attributes)
		return limit, risks, nil
	}
	switch why := t.failure(fmt.Sprintf("read the attributes of the %s %s of %s at %s", what, name, t.service, t.host), err); why.Meaning {
	case lane.Missing:
		return "", []string{"it does not exist, so its events wait; create it with " + flag + " true"}, nil
	case lane.Denied:
		return "", []string{"its attributes could not be read, so " + unread + "; allow " + permission}, nil
	default:
		return "", nil, why
	}
}

// ofTopic says what the attributes of a topic of SNS mean.
func ofTopic(a map[string]string) (limit string, risks []string) {
	switch a["FifoThroughputScope"] {
	case "MessageGroup":
		limit = "many messages a second (FifoThroughputScope MessageGroup)"
	case "Topic":
		limit = "3000 messages a second (FifoThroughputScope Topic)"
	}
	if a["FifoTopic"] != "true" {
		risks = append(risks, "it is no FIFO topic, so nothing is in order, and a repeat is delivered again; recreate it with FifoTopic true")
	}
	if err := subscribed(a); err != nil {
		risks = append(risks, err.Error()+"; the daemon waits until it has one: subscribe a FIFO queue")
	}
	return limit, risks
}

// ofQueue says what the attributes of a queue mean.
func ofQueue(a map[string]string) (limit string, risks []string) {
	number := func(name types.QueueAttributeName) int {
		n, err := strconv.Atoi(a[string(name)])
		if err != nil {
			return -1 // it is not known
		}
		return n
	}
	switch a[string(types.QueueAttributeNameFifoThroughputLimit)] {
	case "perMessageGroupId":
		limit = "many requests a second (FifoThroughputLimit perMessageGroupId)"
	case "perQueue":
		limit = "300 requests of ten messages a second (FifoThroughputLimit perQueue)"
	}
	if a[string(types.QueueAttributeNameFifoQueue)] != "true" {
		risks = append(risks, "it is no FIFO queue, so nothing is in order, and a repeat is delivered again; recreate it with FifoQueue true")
	}
	switch keeps := number(types.QueueAttributeNameMessageRetentionPeriod); {
	case keeps < 0:
		risks = append(risks, "how long it keeps an event that is not read is not known: the answer has no MessageRetentionPeriod")
	case time.Duration(keeps)*time.Second < maxRetention:
		risks = append(risks, fmt.Sprintf("it drops an event after %s, read or not; set MessageRetentionPeriod to 1209600, 14 days", time.Duration(keeps)*time.Second))
	}
	switch most := number(types.QueueAttributeNameMaximumMessageSize); {
	case most < 0:
		risks = append(risks, "the size from which on it refuses an event is not known: the answer has no MaximumMessageSize")
	case most < SQS.maxMessage():
		risks = append(risks, fmt.Sprintf("an event of more than %d bytes is poison; set MaximumMessageSize to %d", most, SQS.maxMessage()))
	}
	if text := a[string(types.QueueAttributeNameRedrivePolicy)]; text != "" {
		var policy struct {
			MaxReceiveCount json.Number `json:"maxReceiveCount"` // a number, or a text with one
		}
		_ = json.Unmarshal([]byte(text), &policy) // then the count is not known
		risks = append(risks, fmt.Sprintf("an event that was received %s times without being deleted is moved to another queue, and later ones of its key are then delivered without it (RedrivePolicy)",
			cmp.Or(policy.MaxReceiveCount.String(), "several")))
	}
	return limit, risks
}
