package recovery

import (
	"context"
	"fmt"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// held does with the current event what holding its key means. An event whose key this run holds follows the letter of
// the run. If earlier letters hold the key, it is not known which of them are older than the event, so it is not sent.
// If its letter is refused, the key is blocked. An event whose topic or key is not known holds nothing.
func (r *sending) held(ctx context.Context, p *router.Poison) error {
	topic, key := heldTopic(p), r.rec.Key
	if topic == "" || key == nil || r.Held == nil {
		_, err := r.deadLetter(ctx, p)
		return err
	}
	by, ours := r.Held.By(topic, key)
	first, blocked := r.blocked[checkpoint.KeyOf(topic, key)]
	switch {
	case blocked:
		p.Message += fmt.Sprintf("; the earlier event %q of its key could not be delivered, so that this one is not sent", first)
		r.sent.Poisoned++
		return r.Poisoned(p)
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
	}
	refused, err := r.deadLetter(ctx, p, router.Header{Name: relay.HeaderHeldBy, Value: []byte(by)})
	switch {
	case err != nil:
		return err
	case refused:
		r.blocked[checkpoint.KeyOf(topic, key)] = p.ID
	default:
		r.Held.Hold(topic, key, by)
	}
	return nil
}

// follows reports whether the key of the current event is held in a topic, or blocked. by is the event that holds it.
func (r *sending) follows(topic string) (by string, is bool) {
	if topic == "" || r.rec.Key == nil {
		return "", false
	}
	by, _ = r.Held.By(topic, r.rec.Key)
	_, blocked := r.blocked[checkpoint.KeyOf(topic, r.rec.Key)]
	return by, by != "" || blocked
}

// heldTopic is the topic in which an event would hold its key; "": it holds none.
func heldTopic(p *router.Poison) string {
	if p.Cause == router.NoRoute || p.Cause == router.IllegalTopic {
		return ""
	}
	return p.Topic
}

// heldKeys reads which keys are held.
func heldKeys(ctx context.Context, read func(context.Context) (*checkpoint.OpenKeys, error)) (*checkpoint.OpenKeys, error) {
	if read == nil {
		return nil, nil
	}
	return read(ctx)
}
