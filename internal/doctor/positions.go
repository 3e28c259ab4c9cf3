package doctor

import (
	"context"
	"errors"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/kafka"
)

// checkPositions checks the position topic, which delivery.mode deduplicated needs.
func (e *examination) checkPositions(ctx context.Context, x *kafka.Examination) {
	if e.Positions == "" {
		e.skip(topicPositions, "delivery.mode needs none")
		return
	}
	err := e.Kafka.CheckPositionTopic(ctx, e.Positions)
	var bad *checkpoint.Unusable
	switch {
	case err == nil:
		e.ok(topicPositions, "%s can be read and written", e.Positions)
	case !errors.As(err, &bad):
		e.cannot(topicPositions, err)
	default:
		remedy := []Remedy{advicef("%s", bad.Remedy)}
		if bad.Missing {
			remedy = []Remedy{e.createPositions(x)}
		}
		exit := Wrong
		if bad.Denied {
			exit = Denied
		}
		e.fail(topicPositions, exit, remedy, "%s", cause(err))
	}
}
