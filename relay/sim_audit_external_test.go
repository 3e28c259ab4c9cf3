package relay_test

import (
	"context"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/relay"
)

func init() { relay.RunSimAudit = simAudit }

// simAudit runs `audit` in the simulator. Package audit imports package relay, so that a test inside relay cannot import it.
func simAudit(ctx context.Context, a *relay.SimAudit) error {
	job := audit.Audit{
		Router: a.Router, Poison: &a.Poison, Tables: []audit.Table{{Name: "public.outbox", IDColumn: "id", CreatedAt: "created_at", Audited: true}},
		Lineage: a.Lineage, Deep: a.Deep, Memory: 64 << 20, Topics: relay.SimTopics(), Wait: a.Wait,
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
