package doctor

import (
	"context"
	"errors"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// checkPositions checks the position topic, which delivery.mode deduplicated needs.
func (k *brokers) checkPositions(ctx context.Context, x *kafka.Examination) {
	if k.Positions == "" {
		k.skip(topicPositions, "delivery.mode needs none")
		return
	}
	err := k.Kafka.CheckPositionTopic(ctx, k.Positions)
	var bad *checkpoint.Unusable
	switch {
	case err == nil:
		k.ok(topicPositions, "%s can be read and written", k.Positions)
	case !errors.As(err, &bad):
		k.cannot(topicPositions, err)
	default:
		remedy := []Remedy{advicef("%s", bad.Remedy)}
		if bad.Missing {
			remedy = []Remedy{k.createOwn(x, k.Positions, 1, 0, kafka.PositionTopic(-1))}
		}
		exit := Wrong
		if bad.Denied {
			exit = Denied
		}
		k.fail(topicPositions, exit, remedy, "%s", cause(err))
	}
}
