package relay

import (
	"context"
	"errors"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Class is what an error means for the process.
type Class int

// The classes. All except Retry end the process.
const (
	Retry            Class = iota
	Lost                   // slot or publication missing, lost or changed: events may be lost, an operator decides
	PermissionDenied       // a privilege or permission is missing, and nothing was delivered yet
	Wrong                  // the configuration is wrong
	Poison                 // an event that nothing can deliver
	Fault                  // drain incomplete, or an internal error
)

// waitMode is how the relay waits until the next session.
type waitMode int

const (
	waitBackoff     waitMode = iota // for a time that grows with each attempt
	waitProbe                       // likewise; then, if a probe finds that Kafka does not work, as with park
	waitNot                         // the next session begins at once
	waitSlot                        // until the slot is free
	park                            // until a probe finds that Kafka works again
	parkForPosition                 // as with park, and that the position topic can be used
)

type verdict struct {
	class  Class
	wait   waitMode
	reason string // label of outboxcdc_replication_reconnects_total, one of a fixed set
}

// errStalled ends a session that waited for park_after without an acknowledgement.
type errStalled struct{ what string }

func (e *errStalled) Error() string { return "nothing was acknowledged: " + e.what }

// errSilent ends a session whose server sent nothing for wal_sender_timeout although a reply was requested.
var errSilent = errors.New("the server has not answered within wal_sender_timeout")

// errDrain means that Kafka had not acknowledged everything at shutdown_timeout.
type errDrain struct{ err error }

func (e *errDrain) Error() string { return "drain incomplete at shutdown_timeout: " + e.err.Error() }
func (e *errDrain) Unwrap() error { return e.err }

// errInternal is a programming error.
type errInternal struct{ what string }

func (e *errInternal) Error() string { return "internal error: " + e.what }

// kinds classifies the errors of package replication.
var kinds = map[replication.Kind]verdict{
	replication.Unavailable:        {Retry, waitBackoff, "postgres_unavailable"},
	replication.Credentials:        {Retry, waitBackoff, "postgres_credentials"},
	replication.PrivilegeMissing:   {PermissionDenied, waitBackoff, "postgres_privilege"},
	replication.Unsuitable:         {Wrong, waitBackoff, "postgres_unsuitable"},
	replication.SlotActive:         {Retry, waitSlot, "slot_active"},
	replication.SlotMissing:        {Lost, waitBackoff, "slot_missing"},
	replication.SlotLost:           {Lost, waitBackoff, "slot_lost"},
	replication.RecoveryUnfinished: {Lost, waitBackoff, "recovery_unfinished"},
	replication.PublicationMissing: {Lost, waitBackoff, "publication_missing"},
	replication.PublicationChanged: {Lost, waitBackoff, "publication_changed"},
	replication.ColumnMissing:      {Lost, waitBackoff, "column_missing"},
	replication.RelationMismatch:   {Lost, waitBackoff, "relation_mismatch"},
	replication.OtherHistory:       {Lost, waitBackoff, "other_history"},
	replication.SynchronousStandby: {Wrong, waitBackoff, "synchronous_standby"},
	replication.CannotSend:         {Retry, waitBackoff, "postgres_cannot_send"}, // memory or disk space may be available at the next attempt
	replication.Protocol:           {Retry, waitBackoff, "protocol"},
}

// classify decides what an error means. delivered means that this process has had an acknowledgement. A permission or
// a column that is missing before that is a mistake of the setup, and so is a position topic that cannot be used. A
// permission that goes missing later may be granted again, and a column that goes missing later may affect events.
func classify(err error, delivered bool) verdict {
	v := verdict{Retry, waitBackoff, "other"}
	var stalled *errStalled
	var drain *errDrain
	var poison *router.Poison
	var column *router.MissingColumnError
	var broken *decoder.Error
	var unusable *checkpoint.Unusable
	var pg *replication.Error
	switch {
	case errors.As(err, new(*errInternal)):
		v = verdict{Fault, waitBackoff, "other"}
	case errors.As(err, &drain):
		v = verdict{Fault, waitBackoff, "drain"}
	case errors.As(err, &stalled):
		v = verdict{Retry, park, "stalled"}
	case errors.As(err, new(*refusedAgain)):
		v = verdict{Retry, waitBackoff, "poison"}
	case errors.As(err, &poison), errors.As(err, new(*checkpoint.LettersGone)):
		v = verdict{Poison, waitBackoff, "poison"}
	case errors.As(err, &column):
		v = kinds[replication.ColumnMissing]
		if !delivered {
			v.class = Wrong
		}
	case errors.As(err, new(*checkpoint.HistoryError)):
		v = kinds[replication.OtherHistory]
	case errors.As(err, &pg):
		v = kinds[pg.Kind]
		switch {
		case pg.Kind == replication.PrivilegeMissing && delivered:
			v.class = Retry
		case pg.Kind == replication.ColumnMissing && !delivered:
			v.class = Wrong
		}
	case errors.As(err, &unusable):
		v = verdict{Retry, parkForPosition, "position_topic"}
		switch {
		case unusable.Record: // it may say that events are missing
			v.class = Lost
		case !delivered && unusable.Denied:
			v.class = PermissionDenied
		case !delivered:
			v.class = Wrong
		}
	case errors.Is(err, errOtherTurn):
		v = verdict{Retry, waitNot, "other_turn"}
	case errors.As(err, &broken):
		v = kinds[replication.Protocol]
	case errors.Is(err, errSilent):
		v.reason = "postgres_silent"
	case permissionDenied(err):
		v = verdict{PermissionDenied, waitBackoff, "sink_permission"}
		if delivered {
			v = verdict{Retry, park, "sink_permission"}
		}
	case errors.Is(err, context.DeadlineExceeded):
		v.reason = "timeout"
	default:
		var reason interface{ Reason() string }
		if errors.As(err, &reason) {
			v = verdict{Retry, waitProbe, "sink"}
		}
	}
	return v
}

// permissionDenied reports whether the sink refuses because a permission is missing.
func permissionDenied(err error) bool {
	var refusal interface{ PermissionDenied() bool }
	return errors.As(err, &refusal) && refusal.PermissionDenied()
}

// ClassOf returns the class of an error of a command, which delivers nothing.
func ClassOf(err error) Class { return classify(err, false).class }

// isUnavailable reports whether Postgres cannot be reached.
func isUnavailable(err error) bool {
	pg, ok := errors.AsType[*replication.Error](err)
	return ok && pg.Kind == replication.Unavailable || errors.Is(err, errSilent)
}
