package doctor

import (
	"context"
	"errors"
)

// receiverUnready is the reason of an error of the receiver that has its cause in our settings.
const receiverUnready = "SECRET"

// checkReceiver connects to the receiver of events. It sends none.
func (e *examination) checkReceiver(ctx context.Context) {
	err := e.Receiver(ctx)
	var r interface{ Reason() string }
	switch {
	case err == nil && e.Durability != nil:
		e.checkDurability(ctx)
	case err == nil:
		e.ok(receiverReached, "%s accepts a connection; whether it takes events, only an event can show", e.ReceiverName)
	case errors.As(err, &r) && r.Reason() == receiverUnready:
		e.fail(receiverReached, Wrong, []Remedy{advicef("see docs/sinks.md: receiver.url_file, receiver.secret_file, tls.*_file")}, "%s", cause(err))
	default:
		e.fail(receiverReached, Unavailable, []Remedy{advicef("check that the receiver is running, that receiver.url has its address, that its certificate is one of tls.ca_file, and that no firewall blocks the connection")},
			"%s", cause(err))
	}
}

// checkDurability says what an acknowledgement means.
func (e *examination) checkDurability(ctx context.Context) {
	means, risks, err := e.Durability(ctx)
	if err != nil {
		e.cannot(receiverReached, err)
		return
	}
	e.ok(receiverReached, "%s accepts a login; an acknowledgement means: %s", e.ReceiverName, means)
	for _, risk := range risks {
		e.warn(receiverReached, []Remedy{advicef("see docs/sinks.md, what an acknowledgement means")}, "%s: %s", e.ReceiverName, risk)
	}
}

// catalogue returns the checks that there are for the sink.
func (c *Config) catalogue() []Check {
	var all []Check
	for _, check := range Checks() {
		if ofKafka := check.Group == groupKafka || check.Group == groupTopics; c.Receiver == nil && check.Group != groupReceiver || c.Receiver != nil && !ofKafka {
			all = append(all, check)
		}
	}
	return all
}
