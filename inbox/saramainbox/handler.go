package saramainbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

	askedMu     sync.Mutex
	askedBroker *sarama.Broker // see asked

	// Of the session.
	endSession context.CancelFunc
	partitions map[inbox.Place]*partition // read only after Setup
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

// partition is an assigned partition.
type partition struct {
	*engine.Partition[*sarama.ConsumerMessage] // nil: its range is not known yet

	at        inbox.Place
	mark      engine.Stored
	committed int64         // the group's offset in Kafka
	found     chan struct{} // closed when the range is known
}

// Setup replaces the offsets of the group by those of the marks. The range of a partition without a leader is looked
// up later: sarama consumes it when it has one.
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	h.partitions = map[inbox.Place]*partition{}
	committed, err := h.committed(session.Claims())
	if err != nil {
		return err
	}
	for topic, ids := range session.Claims() {
		for _, id := range ids {
			p := &partition{at: inbox.Place{Topic: topic, Partition: id}, found: make(chan struct{})}
			p.committed = committed[p.at]
			if p.mark, err = h.engine.ReadMark(session.Context(), p.at); err != nil {
				return h.refuse(session.Context(), err)
			}
			h.partitions[p.at] = p
		}
	}
	var finding sync.WaitGroup
	var mu sync.Mutex
	for _, p := range h.partitions {
		finding.Go(func() {
			if e := h.find(p); e != nil {
				mu.Lock()
				defer mu.Unlock()
				err = e
			}
		})
	}
	if finding.Wait(); err != nil {
		return h.refuse(session.Context(), err)
	}
	for at, p := range h.partitions {
		h.log.Info("partition assigned", "topic", at.Topic, "partition", at.Partition)
		next, _, isKnown := p.mark.Begin(p.committed)
		if p.Partition != nil {
			next, isKnown = p.Next(), true
			close(p.found)
		} else {
			go h.awaitRange(session.Context(), p)
		}
		if isKnown {
			session.MarkOffset(at.Topic, at.Partition, next, "") // moves forward only
			session.ResetOffset(at.Topic, at.Partition, next, "")
		}
	}
	return nil
}

// find makes the partition, if its range is known.
func (h *handler) find(p *partition) error {
	log, err := h.logRange(p.at.Topic, p.at.Partition)
	if err != nil {
		h.log.Warn("the offsets of a partition cannot be looked up: trying again", "topic", p.at.Topic, "partition", p.at.Partition, "err", err)
		return nil
	}
	p.Partition, err = h.engine.Assign(p.at, p.mark, log, p.committed)
	return err
}

// findAgain is how often the range of a partition is looked for.
const findAgain = time.Second

// awaitRange looks for the range of a partition until it is known. That also tells sarama that it has a leader.
func (h *handler) awaitRange(ctx context.Context, p *partition) {
	for p.Partition == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(findAgain):
		}
		if err := h.find(p); err != nil {
			_ = h.refuse(ctx, err)
			return
		}
	}
	close(p.found)
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
	select {
	case <-ctx.Done():
		return nil
	case <-p.found:
	}
	if at := claim.InitialOffset(); at != p.Next() && at != sarama.OffsetOldest {
		h.endSession() // Setup replaces the offset
		return nil
	}
	for {
		batch, isOpen := next(claim.Messages(), p.BatchSize)
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
func next(messages <-chan *sarama.ConsumerMessage, limit int) (batch []*sarama.ConsumerMessage, isOpen bool) {
	m, isOpen := <-messages
	for isOpen {
		if batch = append(batch, m); len(batch) == limit {
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

// asked returns a broker on a connection of its own: on that of the consumer, an answer waits behind a fetch that waits
// for records.
func (h *handler) asked() (*sarama.Broker, error) {
	h.askedMu.Lock()
	defer h.askedMu.Unlock()
	if h.askedBroker != nil {
		return h.askedBroker, nil
	}
	known := h.client.LeastLoadedBroker()
	if known == nil {
		return nil, errors.New("no broker is known")
	}
	broker := sarama.NewBroker(known.Addr())
	if err := broker.Open(h.client.Config()); err != nil {
		return nil, err
	}
	h.askedBroker = broker
	return broker, nil
}

// forget closes the connection of asked, after an error or at the end.
func (h *handler) forget(broker *sarama.Broker) {
	h.askedMu.Lock()
	defer h.askedMu.Unlock()
	if h.askedBroker == broker {
		h.askedBroker = nil
	}
	if broker != nil {
		_ = broker.Close()
	}
}

// describe is engine.Describe. It asks after the records have arrived, so they cannot be from a topic that was
// created later.
func (h *handler) describe(_ context.Context, topic string) (string, error) {
	broker, err := h.asked()
	if err != nil {
		return "", fmt.Errorf("look up topic %q: %w", topic, err)
	}
	res, err := broker.GetMetadata(sarama.NewMetadataRequest(h.client.Config().Version, []string{topic}))
	if err != nil {
		h.forget(broker)
		return "", fmt.Errorf("look up topic %q: %w", topic, err)
	}
	for _, md := range res.Topics {
		if md.Name != topic {
			continue
		}
		if md.Err != sarama.ErrNoError {
			return "", fmt.Errorf("look up topic %q: %w", topic, md.Err)
		}
		if md.Uuid == (sarama.Uuid{}) {
			return "", nil
		}
		return fmt.Sprintf("%x", md.Uuid[:]), nil
	}
	return "", fmt.Errorf("look up topic %q: the brokers do not answer", topic)
}
