package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// Replay is one run of `replay`: it sends selected rows again, outside the order of the stream.
type Replay struct {
	Snapshot Snapshot
	Kafka    audit.Log
	Router   *router.Router
	Poison   *relay.PoisonPolicies
	Tables   []Table
	// Topic, if not "", is where all records go.
	Topic string
	// Compacted is whether records may go to compacted topics, where an older event becomes the state of its key.
	Compacted bool
	// AtMost is how many events may be sent; 0: any number.
	AtMost int
	DryRun bool
	// Held reads which keys are held; nil: none is.
	Held     func(context.Context) (*checkpoint.OpenKeys, error)
	Run      string // identifies the run in its records
	From     string // the header outboxcdc-origin; "": none
	Open     func() Sender
	Operator Operator
	// Selected is called with each selected event, in a dry run. poison is nil if a record can be made of it.
	Selected func(rec *router.Record, row *outboxtable.Row, poison *router.Poison) error
}

// Deliver sends the rows. It returns how many were selected, and what was sent, also with an error.
func (r *Replay) Deliver(ctx context.Context) (selected int, sent Sent, err error) {
	selected, topics, err := r.count(ctx)
	switch {
	case err != nil || r.DryRun:
		return selected, sent, err
	case selected == 0:
		return 0, sent, exit.With(exit.Fault, errors.New("no row is selected: the table has none, or it was deleted"))
	case r.AtMost > 0 && selected > r.AtMost:
		return selected, sent, exit.With(exit.Usage, fmt.Errorf("%d events are selected: more than %d need --yes", selected, r.AtMost))
	}
	if r.Topic == "" && !r.Compacted {
		if err := refuseCompacted(ctx, r.Kafka, topics); err != nil {
			return selected, sent, err
		}
	}
	held, err := heldKeys(ctx, r.Held)
	if err != nil {
		return selected, sent, err
	}
	to := r.Open()
	defer to.Close()
	job := &Job{
		Held:   held,
		Router: r.Router, Poison: r.Poison, Tables: r.Tables, Mark: router.Header{Name: audit.HeaderReplayed, Value: []byte(r.Run)},
		Topic: r.Topic, From: r.From, Total: int64(selected), Progress: r.Operator.Progress, Poisoned: r.Operator.Poisoned,
	}
	sent, err = job.Run(ctx, r.Snapshot, to)
	return selected, sent, err
}

// count counts the selected rows. topics are those to which they are routed.
func (r *Replay) count(ctx context.Context) (n int, topics []string, err error) {
	to := map[string]bool{}
	var rec router.Record
	for _, t := range r.Tables {
		err := r.Snapshot.Rows(ctx, t.Number, t.Range, func(row *outboxtable.Row) error {
			n++
			err := r.Router.Route(&row.Event, checkpoint.Position{}, &rec)
			poison, isPoison := errors.AsType[*router.Poison](err)
			if err != nil && !isPoison {
				return err
			}
			if !isPoison {
				to[rec.Topic] = true
			}
			if !r.DryRun {
				return nil
			}
			return r.Selected(&rec, row, poison)
		})
		if err != nil {
			return n, nil, err
		}
	}
	return n, slices.Sorted(maps.Keys(to)), nil
}
