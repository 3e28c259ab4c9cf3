package recovery

import (
	"context"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// held does with the current event what holding its key means. An event whose key this run holds follows the letter of
// the run. If earlier letters hold the key, it is not known which of them are older than the event, so it is not sent.
// An event whose topic or key is not known holds nothing.
func (r *sending) held(ctx context.Context, p *router.Poison) error {
	topic, key := p.Topic, r.rec.Key
	if p.Cause == router.NoRoute || p.Cause == router.IllegalTopic {
		topic = ""
	}
	if topic == "" || key == nil || r.Held == nil {
		return r.deadLetter(ctx, p)
	}
	by, ours := r.Held.By(topic, key)
	switch {
	case by != "" && !ours:
		p.Message += "; open letters hold its key, and it is not sent, so that it does not overtake them: retry or drop them " +
			"(outboxcdc dlq list shows them), then run the command again"
		r.sent.Poisoned++
		return r.Poisoned(p)
	case by == "":
		// Otherwise a crash could leave the letter in Kafka, and an older event of the key not.
		if err := r.to.Wait(ctx); err != nil {
			return err
		}
		by = relay.HeldBy(p.ID, string(r.Mark.Value))
		r.Held.Hold(topic, key, by)
	}
	return r.deadLetter(ctx, p, router.Header{Name: relay.HeaderHeldBy, Value: []byte(by)})
}

// heldKeys reads which keys are held.
func heldKeys(ctx context.Context, read func(context.Context) (*checkpoint.OpenKeys, error)) (*checkpoint.OpenKeys, error) {
	if read == nil {
		return nil, nil
	}
	return read(ctx)
}
