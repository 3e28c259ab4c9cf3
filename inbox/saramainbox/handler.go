package saramainbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/internal/engine"
)

// handler is a sarama.ConsumerGroupHandler.
type handler struct {
	client sarama.Client
	group  string
	engine *engine.Engine[*sarama.ConsumerMessage]
	fail   context.CancelCauseFunc // ends Run
	log    *slog.Logger

	// Of the session.
	endSession context.CancelFunc
	partitions map[inbox.Place]*engine.Partition[*sarama.ConsumerMessage] // read only after Setup
}

// session consumes until the group is balanced again.
func (h *handler) session(ctx context.Context, group sarama.ConsumerGroup, topics []string) {
	sessionCtx, end := context.WithCancel(ctx)
	defer end()
	h.endSession = end
	if err := group.Consume(sessionCtx, topics, h); err != nil && ctx.Err() == nil {
		h.log.Warn("the consumer group failed: trying again", "group", h.group, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Setup replaces the offsets of the group by those of the marks.
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	h.partitions = map[inbox.Place]*engine.Partition[*sarama.ConsumerMessage]{}
	committed, err := h.committed(session.Claims())
	if err != nil {
		return err
	}
	for topic, ids := range session.Claims() {
		for _, id := range ids {
			at := inbox.Place{Topic: topic, Partition: id}
			mark, err := h.engine.ReadMark(session.Context(), at)
			if err != nil {
				return h.refuse(session.Context(), err)
			}
			log, err := h.logRange(topic, id)
			if err != nil {
				return err
			}
			p, next, _, err := h.engine.Assign(session.Context(), at, mark, log, committed[at])
			if err != nil {
				return h.refuse(session.Context(), err)
			}
			h.partitions[at] = p
			h.log.Info("partition assigned", "topic", topic, "partition", id)
			session.MarkOffset(topic, id, next, "") // moves forward only
			session.ResetOffset(topic, id, next, "")
		}
	}
	return nil
}

// refuse ends the consumer if the error cannot pass. Otherwise the client assigns again.
func (h *handler) refuse(ctx context.Context, err error) error {
	if !engine.IsTransient(err) && ctx.Err() == nil {
		h.fail(err)
	}
	return err
}

// Cleanup does nothing.
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim handles a partition's records in batches: what has arrived, up to the size of a batch.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	ctx := session.Context()
	p := h.partitions[inbox.Place{Topic: claim.Topic(), Partition: claim.Partition()}]
	for {
		batch, isOpen := next(claim.Messages())
		if len(batch) > 0 {
			switch err := p.HandleAll(ctx, "", batch); {
			case err == nil:
			case ctx.Err() != nil:
				return nil
			case errors.Is(err, engine.ErrRewound):
				h.log.Warn("the consumer begins again at the stored offsets", "err", err)
				h.endSession()
				return nil
			default:
				h.fail(err)
				return nil
			}
			session.MarkMessage(batch[len(batch)-1], "")
		}
		if !isOpen {
			h.endSession() // Setup finds out why: after an offset out of range, sarama reads the partition no more
			return nil
		}
	}
}

// next waits for a message, and returns it with those that have arrived.
func next(messages <-chan *sarama.ConsumerMessage) (batch []*sarama.ConsumerMessage, isOpen bool) {
	m, isOpen := <-messages
	for isOpen {
		if batch = append(batch, m); len(batch) == engine.BatchSize {
			return batch, true
		}
		select {
		case m, isOpen = <-messages:
		default:
			return batch, true
		}
	}
	return batch, false
}

// committed returns the group's offsets in Kafka, -1 for none.
func (h *handler) committed(claims map[string][]int32) (map[inbox.Place]int64, error) {
	broker, err := h.client.Coordinator(h.group)
	if err != nil {
		return nil, fmt.Errorf("look up the coordinator of group %q: %w", h.group, err)
	}
	req := sarama.NewOffsetFetchRequest(h.client.Config().Version, h.group, claims)
	res, err := broker.FetchOffset(req)
	if err != nil {
		return nil, fmt.Errorf("look up the offsets of group %q: %w", h.group, err)
	}
	offsets := map[inbox.Place]int64{}
	for topic, ids := range claims {
		for _, id := range ids {
			block := res.GetBlock(topic, id)
			if block == nil || block.Err != sarama.ErrNoError {
				return nil, fmt.Errorf("look up the offset of group %q, topic %q, partition %d: no answer", h.group, topic, id)
			}
			offsets[inbox.Place{Topic: topic, Partition: id}] = block.Offset
		}
	}
	return offsets, nil
}

func (h *handler) logRange(topic string, id int32) (r engine.Range, err error) {
	if r.First, err = h.client.GetOffset(topic, id, sarama.OffsetOldest); err == nil {
		r.End, err = h.client.GetOffset(topic, id, sarama.OffsetNewest)
	}
	if err != nil {
		return r, fmt.Errorf("look up the offsets of topic %q, partition %d: %w", topic, id, err)
	}
	return r, nil
}

// describe is engine.Describe. It asks after the records have arrived, so they cannot be from a topic that was
// created later.
func (h *handler) describe(_ context.Context, topic string) (engine.Topic, error) {
	broker := h.client.LeastLoadedBroker()
	if broker == nil {
		return engine.Topic{}, fmt.Errorf("look up topic %q: no broker is known", topic)
	}
	_ = broker.Open(h.client.Config()) // it may be open already
	res, err := broker.GetMetadata(sarama.NewMetadataRequest(h.client.Config().Version, []string{topic}))
	if err != nil {
		return engine.Topic{}, fmt.Errorf("look up topic %q: %w", topic, err)
	}
	for _, md := range res.Topics {
		if md.Name != topic {
			continue
		}
		if md.Err != sarama.ErrNoError {
			return engine.Topic{}, fmt.Errorf("look up topic %q: %w", topic, md.Err)
		}
		t := engine.Topic{Partitions: int32(len(md.Partitions))}
		if md.Uuid != (sarama.Uuid{}) {
			t.ID = fmt.Sprintf("%x", md.Uuid[:])
		}
		return t, nil
	}
	return engine.Topic{}, fmt.Errorf("look up topic %q: the brokers do not answer", topic)
}
