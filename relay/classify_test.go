package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// kafkaError is an error like those of package kafka.
type kafkaError struct {
	right bool
	err   error
}

func (e kafkaError) Error() string          { return "kafka" }
func (e kafkaError) Unwrap() error          { return e.err }
func (e kafkaError) PermissionDenied() bool { return e.right }
func (e kafkaError) Reason() string         { return "NOT_LEADER_OR_FOLLOWER" }

// TestClassify: the verdict on each kind of error, before and after the first acknowledgement of the process.
func TestClassify(t *testing.T) {
	pg := func(k replication.Kind) error { return &replication.Error{Kind: k, Op: "op", Err: errors.New("x")} }
	same := func(v verdict) [2]verdict { return [2]verdict{v, v} }
	for _, c := range []struct {
		err  error
		want [2]verdict // before, after
	}{
		{pg(replication.Unavailable), same(verdict{Retry, waitBackoff, "postgres_unavailable"})},
		{pg(replication.Credentials), same(verdict{Retry, waitBackoff, "postgres_credentials"})},
		{pg(replication.PrivilegeMissing), [2]verdict{{PermissionDenied, waitBackoff, "postgres_privilege"}, {Retry, waitBackoff, "postgres_privilege"}}},
		{pg(replication.Unsuitable), same(verdict{Wrong, waitBackoff, "postgres_unsuitable"})},
		{pg(replication.SlotActive), same(verdict{Retry, waitSlot, "slot_active"})},
		{pg(replication.SlotMissing), same(verdict{Lost, waitBackoff, "slot_missing"})},
		{pg(replication.SlotLost), same(verdict{Lost, waitBackoff, "slot_lost"})},
		{pg(replication.RecoveryUnfinished), same(verdict{Lost, waitBackoff, "recovery_unfinished"})},
		{pg(replication.PublicationMissing), same(verdict{Lost, waitBackoff, "publication_missing"})},
		{pg(replication.PublicationChanged), same(verdict{Lost, waitBackoff, "publication_changed"})},
		{pg(replication.ColumnMissing), [2]verdict{{Wrong, waitBackoff, "column_missing"}, {Lost, waitBackoff, "column_missing"}}},
		{pg(replication.RelationMismatch), same(verdict{Lost, waitBackoff, "relation_mismatch"})},
		{pg(replication.OtherHistory), same(verdict{Lost, waitBackoff, "other_history"})},
		{&checkpoint.HistoryError{Err: errKafka}, same(verdict{Lost, waitBackoff, "other_history"})},
		{pg(replication.SynchronousStandby), same(verdict{Wrong, waitBackoff, "synchronous_standby"})},
		{pg(replication.Protocol), same(verdict{Retry, waitBackoff, "protocol"})},

		{&checkpoint.Unusable{}, [2]verdict{{Wrong, parkForPosition, "position_topic"}, {Retry, parkForPosition, "position_topic"}}},
		{&checkpoint.Unusable{Denied: true, Err: kafkaError{right: true}}, [2]verdict{{PermissionDenied, parkForPosition, "position_topic"}, {Retry, parkForPosition, "position_topic"}}},
		{&checkpoint.Unusable{Record: true}, same(verdict{Lost, parkForPosition, "position_topic"})},
		{&router.MissingColumnError{Column: "payload"}, [2]verdict{{Wrong, waitBackoff, "column_missing"}, {Lost, waitBackoff, "column_missing"}}},
		{&router.Poison{Cause: router.NullKey}, same(verdict{Poison, waitBackoff, "poison"})},
		{&errDrain{errors.New("x")}, same(verdict{Fault, waitBackoff, "drain"})},
		{&errStalled{"x"}, same(verdict{Retry, park, "stalled"})},
		{errOtherTurn, same(verdict{Retry, waitNot, "other_turn"})},
		{errSilent, same(verdict{Retry, waitBackoff, "postgres_silent"})},
		{&decoder.Error{What: "insert", Err: errors.New("x")}, same(verdict{Retry, waitBackoff, "protocol"})},

		{kafkaError{right: true}, [2]verdict{{PermissionDenied, waitBackoff, "sink_permission"}, {Retry, park, "sink_permission"}}},
		{kafkaError{}, same(verdict{Retry, waitProbe, "sink"})},
		{context.DeadlineExceeded, same(verdict{Retry, waitBackoff, "timeout"})},
		{errShutdown, same(verdict{Retry, waitBackoff, "other"})},
		{errors.New("unheard of"), same(verdict{Retry, waitBackoff, "other"})},

		// Wrapped errors count.
		{&decoder.Error{What: "relation", Err: &router.MissingColumnError{}}, [2]verdict{{Wrong, waitBackoff, "column_missing"}, {Lost, waitBackoff, "column_missing"}}},
		{&decoder.Error{What: "relation", Err: pg(replication.RelationMismatch)}, same(verdict{Lost, waitBackoff, "relation_mismatch"})},
		{&decoder.Error{What: "relation", Err: pg(replication.Unavailable)}, same(verdict{Retry, waitBackoff, "postgres_unavailable"})},
		{&errDrain{errors.Join(errors.New("x"), kafkaError{right: true})}, same(verdict{Fault, waitBackoff, "drain"})},
		{kafkaError{err: context.DeadlineExceeded}, same(verdict{Retry, waitBackoff, "timeout"})},
		{pgWrapping(context.DeadlineExceeded), same(verdict{Retry, waitBackoff, "postgres_unavailable"})},
	} {
		for i, delivered := range []bool{false, true} {
			for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
				if got := classify(err, delivered); got != c.want[i] {
					t.Errorf("%T %v, delivered %v: %+v, want %+v", c.err, err, delivered, got, c.want[i])
				}
			}
		}
	}
}

func pgWrapping(err error) error {
	return &replication.Error{Kind: replication.Unavailable, Op: "op", Err: err}
}

// TestEveryKindIsClassified: a kind that is missing in the table would have the zero verdict, a retry without a label.
func TestEveryKindIsClassified(t *testing.T) {
	n := 0
	for k := replication.Kind(0); k <= replication.Protocol; k++ {
		v, ok := kinds[k]
		if !ok || v.reason == "" {
			t.Errorf("%s is not in the table", k)
		}
		n++
	}
	if n != len(kinds) {
		t.Errorf("%d kinds, the table has %d", n, len(kinds))
	}
}
