package sender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/outboxcdc/outboxcdc/router"
)

// awaitTopic waits until records can be sent to the topic. As for the daemon, a topic that Kafka denies access to
// counts as missing while there is a limit for missing topics: Kafka may say so of a topic that does not exist.
func (s *Sender) awaitTopic(ctx context.Context, topic string) error {
	if ready, _ := s.session.Ready(topic); ready {
		s.present(topic)
		return nil
	}
	s.session.Flush()
	poll := time.NewTicker(20 * time.Millisecond) // Wake is not called when a topic is found to be missing
	defer poll.Stop()
	answered := time.Now() // when Kafka last said that the topic is missing
	patience := s.options.MissingTopic
	for {
		missing := s.session.Missing(topic) // first: a later answer of Kafka then has its own error
		ready, denied := s.session.Ready(topic)
		if ready {
			break
		}
		if denied != nil && (patience == 0 || patience == Forever || !permissionDenied(denied)) {
			return &DeliveryError{Err: denied}
		}
		now := time.Now()
		switch {
		case missing:
			if s.missing[topic].IsZero() {
				s.missing[topic] = now
			}
			if now.Sub(s.missing[topic]) >= patience {
				return missingTopic(topic, patience, denied)
			}
			answered = now
		case now.Sub(answered) >= s.lookUp:
			return fmt.Errorf("look up topic %s: no usable answer for %s: %w", topic, s.lookUp, s.unhealthy())
		}
		select {
		case <-s.flight.changed:
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("look up topic %s: %w", topic, context.Cause(ctx))
		}
		if err := s.flight.failure(); err != nil {
			return s.fail(ctx, err)
		}
	}
	s.present(topic)
	return nil
}

// present notes that the topic is not missing.
func (s *Sender) present(topic string) {
	if len(s.missing) > 0 {
		delete(s.missing, topic)
	}
}

// missingTopic is the error of a topic that was missing for too long.
func missingTopic(topic string, patience time.Duration, denied error) error {
	var after string
	if patience > 0 {
		after = fmt.Sprintf(" for %s", patience)
	}
	if denied == nil {
		denied = sarama.ErrUnknownTopicOrPartition
	}
	return &DeliveryError{Cause: router.MissingTopic, Err: fmt.Errorf("topic %s is missing%s: %w", topic, after, denied)}
}

// unhealthy returns why the session gets no answer.
func (s *Sender) unhealthy() error {
	if err := s.session.Healthy(); err != nil {
		return err
	}
	return sarama.ErrLeaderNotAvailable
}

func permissionDenied(err error) bool {
	var denied interface{ PermissionDenied() bool }
	return errors.As(err, &denied) && denied.PermissionDenied()
}
