package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxcdc/outboxcdc/inbox"
	"github.com/outboxcdc/outboxcdc/inbox/pgxinbox"
)

// Range is the part of the log that a partition has.
type Range struct{ First, End int64 }

// Stored is the mark of a partition, and the topic's id, before the partition is assigned.
type Stored struct {
	mark    inbox.Mark
	ok      bool // there is one
	topicID string
}

// ReadMark reads the mark of a partition, before any of its records are read.
func (e *Engine[R]) ReadMark(ctx context.Context, at inbox.Place) (s Stored, err error) {
	if s.topicID, err = e.Describe(ctx, at.Topic); err != nil {
		return Stored{}, &transientError{err}
	}
	conn, err := e.Pool.Acquire(ctx)
	if err != nil {
		return Stored{}, &transientError{fmt.Errorf("connect to Postgres: %w", err)}
	}
	defer conn.Release()
	s.mark, s.ok, err = e.Store.Read(ctx, pgxinbox.Tx(conn), e.Consumer, at)
	if err = ofModule(conn.Conn(), err); err != nil {
		return Stored{}, e.explain(at, err)
	}
	return s, nil
}

// Begin returns the offset at which a partition begins if [Engine.Assign] agrees, and the epoch of the record before
// it. ok is false if that is the begin of the log. committed is the group's offset in Kafka, -1 for none.
func (s Stored) Begin(committed int64) (next int64, epoch int32, ok bool) {
	next = s.mark.Next
	if !s.ok {
		next = committed
	}
	return next, s.mark.Epoch, next >= 0
}

// Assign checks where a partition begins. The mark has to be read before the log's range: another consumer may be at
// work still, so a later mark could be after the end of the log.
func (e *Engine[R]) Assign(at inbox.Place, stored Stored, log Range, committed int64) (*Partition[R], error) {
	err := checkTopic(stored.mark, stored.topicID)
	if err == nil {
		err = checkBegin(stored, log, committed, e.ContinueGroup)
	}
	if err != nil {
		return nil, e.explain(at, err)
	}
	next, _, ok := stored.Begin(committed)
	if !ok {
		next = log.First
	}
	return &Partition[R]{Engine: e, Place: at, topicID: stored.topicID, next: next, isSaved: stored.mark.Next >= 0, suspect: suspect{offset: -1}}, nil
}

// checkBegin checks that the log has the record at which a partition begins. The group's offset in Kafka counts only
// while there is no mark, and only with continueGroup: the mark can be lost with the database's last transactions, and
// the effects of its records with it.
func checkBegin(stored Stored, log Range, committed int64, continueGroup bool) error {
	next, _, ok := stored.Begin(committed)
	switch {
	case !ok:
		return nil
	case next < log.First && stored.ok:
		return fmt.Errorf("the consumer has to continue at offset %d, but Kafka has deleted all records before %d (retention): "+
			"send the missing events again with outboxcdc replay, and let the consumer continue with Store.ForgetOffsets", next, log.First)
	case next < log.First:
		return fmt.Errorf("there is no mark, the group has offset %d in Kafka, and Kafka has deleted all records before %d (retention): send the missing events "+
			"again with outboxcdc replay, and delete the group's offsets of the topic (kafka-consumer-groups --delete-offsets): the consumer begins with the first "+
			"record", next, log.First)
	case !stored.ok && next > log.First && !continueGroup:
		return fmt.Errorf("the group has offset %d in Kafka, and there is no mark. If the group was run without this module before: set "+
			"ContinueGroup for the first start. If the database has lost the mark, its effects are lost as well: delete the group's offsets of the topic "+
			"(kafka-consumer-groups --delete-offsets), and the consumer begins with the first record", next)
	case next > log.End:
		return fmt.Errorf("the consumer has to continue at offset %d, but the log ends at %d: Kafka has lost records, or the topic was recreated. "+
			"Store.ForgetOffsets lets the consumer begin with the first record; outboxcdc audit and recover find and send what Kafka has lost", next, log.End)
	}
	return nil
}

func checkTopic(mark inbox.Mark, id string) error {
	switch {
	case mark.TopicID == "" || mark.TopicID == id:
		return nil
	case id == "":
		return errors.New("the brokers do not tell the topic's id, so it is not known whether the stored offset is one of this topic: Kafka 2.8 or later is required")
	}
	return errors.New("the topic was recreated, so the stored offset means nothing in it: Store.ForgetOffsets lets the consumer begin with its first record")
}
