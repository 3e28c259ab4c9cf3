package relay_test

import (
	"context"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

func init() { relay.RunSimAudit, relay.RunSimRecover = simAudit, simRecover }

var simTables = []audit.Table{{Name: "public.outbox", IDColumn: "id", CreatedAt: "created_at", Audited: true}}

// simAudit runs `audit` in the simulator. Package audit imports package relay, so that a test inside relay cannot import it.
func simAudit(ctx context.Context, a *relay.SimAudit) error {
	job := audit.Audit{
		Router: a.Router, Poison: &a.Poison, Tables: simTables,
		Lineage: a.Lineage, Deep: a.Deep, Memory: 64 << 20, Topics: relay.SimTopics(), Wait: a.Wait, WALEnd: a.WALEnd,
		Release: a.Snapshot.Release,
		Fresh: func(ctx context.Context) (audit.Snapshot, func(), error) {
			s, err := a.Fresh(ctx)
			return s, func() {}, err
		},
		Report: func(f audit.Finding) error {
			a.Find(string(f.Kind), f.ID, f.Why)
			return nil
		},
		Note: func(string) {}, Progress: func(string, int64, int64) {},
	}
	res, err := job.Run(ctx, a.Snapshot, a, a, "")
	if err != nil {
		return err
	}
	a.Waits, a.Confirmed = res.Waiting, res.Confirmed
	return nil
}

// simRecover does what `recover` does once the slot is there: it compares, sends what is missing, and compares again.
func simRecover(ctx context.Context, r *relay.SimRecover) error {
	next, sent := r.At, false
	for {
		snapshot, err := r.TakeSnapshot(ctx)
		if err != nil {
			return err
		}
		missing := recovery.NewSet()
		compare := audit.Audit{
			Router: r.Router, Poison: &r.Poison, Tables: simTables, Lineage: r.Lineage, Memory: 64 << 20, Topics: relay.SimTopics(), WALEnd: r.WALEnd, Release: snapshot.Release,
			Wait: 10 * time.Second, NotBefore: r.NotBefore, Count: next.CommitLSN, OnlyMissing: true,
			Lost: func(row *audit.Row) error {
				missing.Add(row.Topic, row.ID)
				return nil
			},
			Report: func(audit.Finding) error { return nil }, Note: func(string) {}, Progress: func(string, int64, int64) {},
		}
		res, err := compare.Run(ctx, snapshot, r, r, "")
		if err != nil {
			return err
		}
		if r.Left = missing.Len(); sent || r.Left == 0 {
			return nil
		}
		if snapshot, err = r.TakeSnapshot(ctx); err != nil {
			return err
		}
		next.Ordinal = res.Ordinals
		job := recovery.Job{
			Router: r.Router, Poison: &r.Poison, Tables: []recovery.Table{{}}, Wants: missing.Has, Position: next,
			Mark: router.Header{Name: audit.HeaderRecovered, Value: []byte("run")}, Progress: func(string, int64, int64) {},
			Poisoned: func(p *router.Poison) error { return p },
		}
		if _, err := job.Run(ctx, snapshot, r); err != nil {
			return err
		}
		sent = true
	}
}
