// Package riverinbox makes an event a job of River, once: in the transaction in which the inbox stores that the event
// was handled.
//
//	func handle(ctx context.Context, tx pgx.Tx, r *kgo.Record) error {
//		…
//		_, err := jobs.InsertTx(ctx, tx, riverinbox.Args[Report]{Topic: r.Topic, EventID: id, Job: report}, nil)
//		return err
//	}
//
// The job's worker is a river.Worker[riverinbox.Args[Report]]. docs/tasks.md of the project is the guide.
package riverinbox

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// Args are the arguments of the job that an event becomes: which event, and what to do. Topic, event and kind of the
// job are unique, as long as River keeps the job, in whatever state it is. River drops a second job and returns no
// error.
//
// An event that becomes several jobs of one kind needs an EventID for each, such as the header id and "/1".
type Args[T river.JobArgs] struct {
	Topic   string `json:"topic"    river:"unique"`
	EventID string `json:"event_id" river:"unique"` // the header id of the record
	Job     T      `json:"job"`
}

// Kind is the kind of the job.
func (a Args[T]) Kind() string { return a.Job.Kind() }

// InsertOpts are those of the job, except for its UniqueOpts, which are those of the event.
func (a Args[T]) InsertOpts() river.InsertOpts {
	var o river.InsertOpts
	if job, ok := any(a.Job).(river.JobArgsWithInsertOpts); ok {
		o = job.InsertOpts()
	}
	// By default River forgets a job that was cancelled or discarded at once, and a repeated event would be a new one.
	o.UniqueOpts = river.UniqueOpts{ByArgs: true, ByState: rivertype.JobStates()}
	return o
}

// MarshalJSON refuses arguments that do not name an event: all such jobs would be the same one.
func (a Args[T]) MarshalJSON() ([]byte, error) {
	if a.Topic == "" || a.EventID == "" {
		return nil, fmt.Errorf("insert a job %q: the topic is %q and the event id %q: %w", a.Kind(), a.Topic, a.EventID, errNoEvent)
	}
	type plain Args[T]
	return json.Marshal(plain(a))
}

var errNoEvent = errors.New("both are needed to tell a duplicate from a new event: take them from the record (the header id)")
