package awssink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

var (
	errUnsubscribed = errors.New("it has no confirmed subscription, so SNS would acknowledge events and drop them")
	errUncounted    = errors.New("whether it has a subscription is not known: the answer has no number as SubscriptionsConfirmed")
)

// subscribed returns nil if the attributes of a topic of SNS say that it has a confirmed subscription.
func subscribed(attributes map[string]string) error {
	switch n, err := strconv.ParseUint(attributes["SubscriptionsConfirmed"], 10, 64); {
	case err != nil:
		return errUncounted
	case n == 0:
		return errUnsubscribed
	}
	return nil
}

// door lets messages through to a topic of SNS once a subscription was read.
type door struct {
	mu     sync.Mutex // held while the topic is read, so that there is one request, and further senders wait for it
	open   bool
	closed lane.Gate // why it is not, and when the topic is read again
}

// enter returns nil if messages may be published to a topic. It reads the topic before the first one of a session, and
// again after [door.note] has closed the door.
func (t *transport) enter(ctx context.Context, name string, d *door) *lane.Failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open || t.service != SNS { // a queue of SQS keeps what it acknowledges
		return nil
	}
	if why := d.closed.Pass(t.cfg.BackoffMin, t.cfg.BackoffMax/10); why != nil {
		return why
	}
	if d.closed.Why = t.unsubscribed(ctx, name); d.closed.Why != nil {
		return d.closed.Why
	}
	d.open, d.closed = true, lane.Gate{}
	return nil
}

// unsubscribed returns why nothing may be published to a topic: it has no confirmed subscription, or that could not be
// read.
func (t *transport) unsubscribed(ctx context.Context, name string) *lane.Failure {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	op := fmt.Sprintf("read whether the topic %s of %s at %s has a subscription", name, t.service, t.host)
	attributes, err := t.client.attributes(ctx, name)
	if err != nil {
		why := t.failure(op, err)
		if why.Meaning == lane.Refused { // the request has no event
			why.Meaning, why.Code = lane.Again, lane.CodeUnavailable
		}
		return why
	}
	switch err := subscribed(attributes); {
	case err == nil:
		return nil
	case errors.Is(err, errUnsubscribed):
		return &lane.Failure{Op: op, Code: lane.CodeMissing, Meaning: lane.Missing, Err: err, Remedy: "subscribe a FIFO queue to the topic (docs/sinks.md has the command); the events wait until then"}
	default:
		return &lane.Failure{Op: op, Code: lane.CodeUnavailable, Err: err}
	}
}

// note closes the door if the topic may be another one since it was read: it was missing, or an answer is missing,
// after which any time may have passed.
func (d *door) note(why *lane.Failure) {
	switch why.Code {
	case lane.CodeMissing, lane.CodeConnection, lane.CodeTimeout:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open = false
	}
}
