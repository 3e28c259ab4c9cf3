package sender

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/router"
)

// DeliveryError is an error of one record or its topic. Other records may be delivered.
type DeliveryError struct {
	Cause router.Cause // the cause of poison; "": the topic cannot be used, whatever the record
	Err   error
}

func (e *DeliveryError) Error() string { return e.Err.Error() }
func (e *DeliveryError) Unwrap() error { return e.Err }

// IsRefusal reports whether Kafka refused a batch. With [Options].Refusals another sender finds out which of them it
// refuses.
func IsRefusal(err error) bool {
	e, ok := errors.AsType[*SessionError](err)
	return ok && len(e.Refused) > 0
}

// SessionError is the failure of a session.
type SessionError struct {
	Acked    int64 // records that the sender has delivered
	Unacked  int64 // records that were sent and are not acknowledged
	Doubtful bool  // some of Unacked may be in Kafka; false: none is
	// Refused are the records of a batch that Kafka refused because of at least one of them. None of them is in Kafka.
	Refused []RefusedRecord
	Err     error
}

// RefusedRecord is a record of a batch that Kafka refused.
type RefusedRecord struct {
	Topic string
	ID    string // of the event; "" if it has none
}

func (e *SessionError) Error() string {
	text := e.Err.Error()
	if len(e.Refused) > 0 {
		text += "; Kafka refused " + e.refused()
	}
	text += fmt.Sprintf("; %d records are acknowledged, %d are not", e.Acked, e.Unacked)
	if e.Doubtful {
		text += ", and some of these may be in Kafka"
	}
	return text
}

func (e *SessionError) Unwrap() error { return e.Err }

// refused names the records, the first ten of a large batch.
func (e *SessionError) refused() string {
	const most = 10
	names := make([]string, 0, most)
	for _, r := range e.Refused[:min(most, len(e.Refused))] {
		names = append(names, fmt.Sprintf("%q", r.ID))
	}
	list := strings.Join(names, ", ")
	if more := len(e.Refused) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	if len(e.Refused) == 1 {
		return fmt.Sprintf("the record of topic %s with event id %s", e.Refused[0].Topic, list)
	}
	return fmt.Sprintf("at least one of %d records of topic %s, with event ids %s", len(e.Refused), e.Refused[0].Topic, list)
}
