package doctor

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// unready is an error that has its cause in our settings.
type unready struct{ error }

func (unready) Reason() string { return receiverUnready }

func receiverOutcomes(t *testing.T, w *world) {
	good := w.newPlace(t, w.pg).make()
	with := func(t *testing.T, err error) *place {
		p := good.in(t)
		p.cfg.Receiver, p.cfg.ReceiverName = func(context.Context) error { return err }, "https://shop.example/xxxxx"
		return p
	}
	t.Run("unreachable", func(t *testing.T) {
		with(t, errors.New("connection refused")).wants(outcome{receiverReached, "FAIL 69", "refused"})
	})
	t.Run("no secret", func(t *testing.T) {
		with(t, unready{errors.New("open secret: no such file")}).wants(outcome{receiverReached, "FAIL 78", "no such file"})
	})
	t.Run("an acknowledged event can be lost", func(t *testing.T) {
		p := with(t, nil)
		p.cfg.Durability = func(context.Context) (string, []string, error) {
			return "the event is in the memory", []string{"a crash loses it"}, nil
		}
		p.wants(outcome{receiverReached, "WARN", "a crash loses it"})
	})
}

// TestCatalogueOfASink: a report has the checks of its sink, and no others.
func TestCatalogueOfASink(t *testing.T) {
	has := func(c *Config, check string) bool {
		return slices.ContainsFunc(c.catalogue(), func(k Check) bool { return k.Name == check })
	}
	toKafka, toHTTP := &Config{}, &Config{Receiver: func(context.Context) error { return nil }}
	for check, kafka := range map[string]bool{kafkaReached: true, topicExists: true, receiverReached: false} {
		if has(toKafka, check) != kafka || has(toHTTP, check) == kafka {
			t.Errorf("%s: %v for Kafka, %v for HTTP", check, has(toKafka, check), has(toHTTP, check))
		}
	}
	if !has(toKafka, slotExists) || !has(toHTTP, slotExists) {
		t.Error("the slot is not checked")
	}
}
