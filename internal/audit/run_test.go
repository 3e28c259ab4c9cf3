package audit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// order notes whether the snapshot is in use while the slot and Kafka are read. It is a Snapshot, a Slot and a Log without content.
type order struct {
	t        *testing.T
	released bool
	read     int // tables
	asked    int // of the slot and of Kafka
}

func (o *order) WALEnd() pglogrepl.LSN { return 100 }
func (o *order) Zoned(int) bool        { return true }
func (o *order) Rows(context.Context, int, outboxtable.Range, func(*outboxtable.Row) error) error {
	if o.read++; o.released {
		o.t.Error("rows are read in a snapshot that has ended")
	}
	return nil
}

func (o *order) Existing(context.Context, int, string, []string) (map[string]bool, error) {
	o.t.Error("the first snapshot is read again")
	return nil, nil
}
func (o *order) Indexed(context.Context, int) (bool, error) { return true, nil }

func (o *order) ask() {
	if o.asked++; !o.released {
		o.t.Error("the snapshot holds its locks while the slot or Kafka is read")
	}
}

func (o *order) Read(context.Context) (*replication.Slot, error) {
	o.ask()
	return &replication.Slot{ConfirmedFlush: 100}, nil
}

func (o *order) Waiting(context.Context, pglogrepl.LSN, func(*router.Record) error) error {
	return errors.New("nothing waits")
}

func (o *order) Spans(context.Context, []string, time.Time) ([]kafka.Span, []string, error) {
	o.ask()
	return []kafka.Span{{Topic: "t", End: 1}}, nil, nil
}

func (o *order) Compacted(context.Context, []string) (map[string]bool, error) {
	return map[string]bool{"t": false}, nil
}

func (o *order) ReadSpan(context.Context, *kafka.Span, func(*kafka.Record) error) error {
	o.ask()
	return nil
}

// TestSnapshotIsReleased checks that the locks of the snapshot are given back when all tables were read, before the slot and Kafka are.
func TestSnapshotIsReleased(t *testing.T) {
	o := &order{t: t}
	a := &Audit{
		Poison: &relay.PoisonPolicies{}, Tables: []Table{{Name: "a", IDColumn: "id", Audited: true}, {Name: "b", IDColumn: "id", Audited: true}},
		Topics: []string{"t"}, Release: func() { o.released = true }, Progress: func(string, int64, int64) {}, Note: func(string) {},
		Report: func(Finding) error { return nil }, WALEnd: func(context.Context) (pglogrepl.LSN, error) { o.ask(); return 1, nil },
	}
	if _, err := a.Run(t.Context(), o, o, o, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if o.read != 2 || o.asked < 4 {
		t.Errorf("%d tables were read, and %d questions asked", o.read, o.asked)
	}
}
