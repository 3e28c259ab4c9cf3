package relay_test

import (
	"context"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

func init() { relay.RunSimAudit, relay.RunSimRecover = simAudit, simRecover }

var simTables = []audit.Table{{Name: "public.outbox", IDColumn: "id", CreatedAt: "created_at", Audited: true}}

// simAudit runs `audit` in the simulator. Package audit imports package relay, so that a test inside relay cannot
// import it.
func simAudit(ctx context.Context, a *relay.SimAudit) error {
	job := audit.Audit{
		Router: a.Router, Poison: &a.Poison, Tables: simTables, Slot: "slot",
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

// simRecover runs `recover` in the simulator.
func simRecover(ctx context.Context, r *relay.SimRecover) error {
	run := recovery.Recovery{
		Server: simServer{r}, Kafka: r, Operator: &simOperator{r}, Router: r.Router, Poison: &r.Poison, Tables: 1, Slot: "slot", RecoverySlot: "slot_recovery", Sources: "s",
		PositionHeader: true, FenceWait: relay.SimFence, ThisServer: true, Run: "run",
		Audit: func() *audit.Audit {
			return &audit.Audit{Router: r.Router, Poison: &r.Poison, Tables: simTables, Memory: 64 << 20, Topics: relay.SimTopics(), Slot: "slot"}
		},
		Open: func() recovery.Sender { return r },
	}
	if r.Deduplicated {
		run.Positions = r
	}
	switch r.Unjudged {
	case "send":
		run.Unjudged = recovery.SendUnjudged
	case "leave":
		run.Unjudged = recovery.LeaveUnjudged
	}
	r.Left = -1
	_, err := run.Deliver(ctx)
	return err
}

// simServer is the simulated server of a recovery.
type simServer struct{ *relay.SimRecover }

func (s simServer) Snapshot(ctx context.Context) (recovery.Snapshot, func(), error) {
	snapshot, err := s.TakeSnapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	return snapshot, snapshot.Release, nil
}

func (s simServer) Waiting(ctx context.Context, recovery bool, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	return s.WaitingIn(ctx, recovery, upTo, fn)
}

// simOperator says yes.
type simOperator struct{ r *relay.SimRecover }

func (*simOperator) Ask(context.Context, string) (bool, error)    { return true, nil }
func (*simOperator) Decide(context.Context, string) (bool, error) { return false, nil }
func (*simOperator) Say(string, ...any)                           {}
func (o *simOperator) Compared(f *recovery.Found)                 { o.r.Compared(f.Missing.Rows, f.Unjudged.Rows) }
func (*simOperator) Later(int, string, string) error              { return nil }
func (*simOperator) Poisoned(p *router.Poison) error              { return p }
func (*simOperator) Progress(string, int64, int64)                {}
