package tasks

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
)

// inbox runs a consumer whose inbox knows nothing, until it has handled n events.
func (r *room) inbox(group string, n int) {
	r.t.Helper()
	p := r.process
	p.Group = group
	ctx, stop := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.consume(ctx, r.pool) }()
	defer func() {
		stop()
		must(r.t, <-ended)
	}()
	r.await(n, `SELECT count(*) FROM handled WHERE consumer = $1`, group)
}

// F143: an event is repeated. If the inbox knows its id, it never becomes a job again, even if River has removed the
// job. If only River knows it, it does not either, whatever state the job is in. If neither knows it, it does.
func TestRepeatedEvents(t *testing.T) {
	r := newRoom(t, 1)
	states := rivertype.JobStates()
	n := len(states)
	events := r.newEvents(n, 1, report{})
	r.produce(events...)
	r.inbox(r.Group, n)
	completed := ""
	for i, state := range states {
		id := eventID(events[i])
		r.exec(`UPDATE river_job SET state = $2::river_job_state, finalized_at = CASE WHEN $2 IN ('cancelled', 'completed', 'discarded') THEN now() END,
			attempted_at = now() WHERE args ->> 'event_id' = $1`, id, string(state))
		if state == rivertype.JobStateCompleted {
			completed = id
		}
	}
	r.inbox("only River knows the events", n)
	if got := scan[int](r, `SELECT count(*) FROM river_job`); got != n {
		t.Errorf("%d jobs of %d events after a repetition that only River knows, want one for each; twice: %s", got, n,
			scan[string](r, `SELECT string_agg(args ->> 'event_id', ' ') FROM river_job WHERE state = 'available'`))
	}

	r.clean()
	r.await(0, `SELECT count(*) FROM river_job WHERE args ->> 'event_id' = $1`, completed)
	r.produce(events...)
	r.produce(r.newEvents(1, 1, report{})...)
	r.inbox(r.Group, n+1)
	if got := scan[int](r, `SELECT count(*) FROM river_job WHERE args ->> 'event_id' = $1`, completed); got != 0 {
		t.Errorf("an event that the inbox knows has become a job again")
	}

	r.inbox("neither knows the events", n+1)
	if got := scan[int](r, `SELECT count(*) FROM river_job WHERE args ->> 'event_id' = $1`, completed); got != 1 {
		t.Errorf("an event that neither knows has become %d jobs, want 1", got)
	}
}

// clean starts a client of River that removes completed jobs at once. By default they stay for a day.
func (r *room) clean() {
	r.t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, &reporter{pool: r.pool})
	client, err := river.NewClient(riverpgxv5.New(r.pool), &river.Config{
		Queues: map[string]river.QueueConfig{"nothing": {MaxWorkers: 1}}, Workers: workers, CompletedJobRetentionPeriod: time.Millisecond,
		CancelledJobRetentionPeriod: -1, DiscardedJobRetentionPeriod: -1, Logger: slog.New(slog.DiscardHandler),
	})
	must(r.t, err)
	must(r.t, client.Start(r.t.Context()))
	r.t.Cleanup(func() { must(r.t, client.Stop(context.Background())) })
}
