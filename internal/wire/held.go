package wire

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
)

// HeldKeys reads which keys open letters hold; nil: no policy holds keys.
func HeldKeys(ctx context.Context, cfg *config.Config) (*checkpoint.OpenKeys, error) {
	if p := PoisonPolicies(&cfg.Poison); !p.HoldsKeys() {
		return nil, nil
	}
	cluster, err := Cluster(Fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return heldKeys(ctx, cluster, cfg.Poison.Topic, cfg.Postgres.Slot)
}

// heldKeys reads which keys open letters of a slot hold.
func heldKeys(ctx context.Context, cluster *kafka.Cluster, topic, slot string) (*checkpoint.OpenKeys, error) {
	held := &checkpoint.OpenKeys{}
	letters, err := deadletter.Open(ctx, cluster, topic, deadletter.Group(slot))
	if errors.Is(err, deadletter.ErrNoTopic) {
		return held, nil
	}
	if err != nil {
		return nil, err
	}
	defer letters.Close()
	err = letters.Read(ctx, false, func(l *deadletter.Letter) error {
		of := map[string]string{}
		for _, h := range l.Headers { // the last one of a name is the daemon's
			of[h.Name] = string(h.Value)
		}
		other := of[relay.HeaderSlot] != "" && of[relay.HeaderSlot] != slot
		if by := of[relay.HeaderHeldBy]; by != "" && l.Key != nil && !l.Handled && !other {
			held.Note(of[relay.HeaderTopic], l.Key, by)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// openLetters reads which letters are handled, for an audit.
func (t *Servers) openLetters(ctx context.Context) (isOpen func(partition int32, offset int64) bool, err error) {
	letters, err := deadletter.Open(ctx, t.cluster, t.cfg.Poison.Topic, deadletter.Group(t.cfg.Postgres.Slot))
	if errors.Is(err, deadletter.ErrNoTopic) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer letters.Close()
	return letters.IsOpen(), nil
}

// heldKeys returns what reads which keys are held; nil: no policy holds keys.
func (t *Servers) heldKeys() func(context.Context) (*checkpoint.OpenKeys, error) {
	if !t.poison.HoldsKeys() {
		return nil
	}
	return func(ctx context.Context) (*checkpoint.OpenKeys, error) {
		return heldKeys(ctx, t.cluster, t.cfg.Poison.Topic, t.cfg.Postgres.Slot)
	}
}
