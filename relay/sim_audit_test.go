package relay

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Runs in which `audit` runs beside the daemon, at any time and any number of times. It is the product's own
// (internal/audit); only what it reads is simulated (sim_table_test.go). Additional checks:
//
//   - an audit finds each row of its snapshot that neither Kafka nor the slot had all the while, and each record of a
//     lost history
//   - it finds no row that Kafka has, or that the slot had all the while, and no record whose row was visible in time
//   - after everything is healed an audit ends without an error
//
// A run ends with a fault that an audit has to find: Kafka loses records, the slot is advanced, dropped or lost, or a
// failover loses transactions that were delivered.

// RunSimAudit is the product's audit. sim_audit_external_test.go sets it, because package audit imports this one.
var RunSimAudit func(context.Context, *SimAudit) error

// SimAudit is an audit of the simulated servers.
type SimAudit struct {
	simReader
	Router   *router.Router
	Poison   PoisonPolicies
	Lineage  replication.Identity
	Wait     time.Duration
	Deep     bool
	Snapshot *SimSnapshot

	// Set by RunSimAudit.
	Waits     int64 // rows that wait in the slot
	Confirmed bool  // the slot has confirmed the snapshot

	cancel context.CancelFunc
	over   chan struct{}
	err    error

	watched map[*event]*watch
	looks   int             // how often the slot was compared
	noSlot  bool            // there was none, once, or it was moved
	inKafka map[*event]bool // at endsAt, when the ends were read
	endsAt  time.Time
	gone    map[*event]bool // events of lost transactions
	found   map[string]map[*event]bool
}

// watch is what the observer knows of a row of the snapshot.
type watch struct {
	without int  // how often the slot did not have it
	skipped bool // by the poison policy
}

// audit begins an audit.
func (w *world) audit() {
	running := 0
	for _, a := range w.audits {
		if !a.ended() {
			running++
		}
	}
	if running < 2 {
		w.beginAudit()
	}
}

func (w *world) beginAudit() *SimAudit {
	w.mu.Lock()
	a := &SimAudit{
		simReader: simReader{p: &process{w: w, n: 500 + len(w.audits), dead: make(chan struct{})}, restarts: -1},
		Router:    w.router(w.kafka.now.routes), Poison: w.cfg.Poison, Deep: !w.deduplicates(),
		watched: map[*event]*watch{}, gone: map[*event]bool{}, found: map[string]map[*event]bool{}, over: make(chan struct{}),
	}
	a.answers = a.observe
	if w.IntN(3) > 0 {
		a.Wait = w.upTo(30 * time.Second)
	}
	w.audits = append(w.audits, a)
	w.see(a.p, "audits", 0, 0)
	w.mu.Unlock()
	var ctx context.Context
	ctx, a.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(a.over)
		a.err = a.run(ctx)
	}()
	synctest.Wait()
	return a
}

func (a *SimAudit) ended() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

// endAudits ends the audits that run.
func (w *world) endAudits() {
	for _, a := range w.audits {
		a.cancel()
		<-a.over
	}
}

func (a *SimAudit) run(ctx context.Context) (err error) {
	if err := a.ask(ctx); err != nil {
		return err
	}
	w := a.p.w
	a.Lineage = w.pg.id
	a.Lineage.WALEnd = w.pg.flushedEnd
	w.mu.Unlock()
	if a.Snapshot, err = a.take(ctx, a.begin); err != nil {
		return err
	}
	if err := RunSimAudit(ctx, a); err != nil {
		if ctx.Err() == nil {
			w.mu.Lock()
			w.reached[auditFailed] = w.reached[auditFailed] || a.restarts != w.pg.restarts
			w.see(a.p, "cannot audit", 0, 0)
			w.tell("%s: %v", a.p, err)
			w.mu.Unlock()
		}
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	a.judge()
	return nil
}

// begin notes the rows of the snapshot at the instant at which it is taken. w.mu is held.
func (a *SimAudit) begin(s *SimSnapshot) {
	for i := range s.rows {
		row := &s.rows[i]
		skips := func(cause router.Cause) bool {
			return a.Poison.Of(&router.Poison{Cause: cause, ID: strconv.Itoa(row.e.id)}) == SkipPoison
		}
		skipped := row.values[2].Null && skips(router.NullKey) || row.e.poison == hopeless && skips(router.TooLarge)
		a.watched[row.e] = &watch{skipped: skipped}
	}
	for e := range a.p.w.kafka.copies {
		if e.tx.gone {
			a.gone[e] = true
		}
	}
	a.observe(false)
}

// Fresh takes another snapshot.
func (a *SimAudit) Fresh(ctx context.Context) (*SimSnapshot, error) { return a.take(ctx, nil) }

// observe notes what the slot has, and, at the first look at the ends, what Kafka has. w.mu is held.
func (a *SimAudit) observe(ends bool) {
	pg := a.p.w.pg
	a.looks++
	a.noSlot = a.noSlot || !pg.hasSlot() || pg.placed
	for e, r := range a.watched {
		if !pg.slotHas(e) {
			r.without++
		}
	}
	if !ends || a.inKafka != nil {
		return
	}
	a.endsAt, a.inKafka = time.Now(), map[*event]bool{}
	for e, n := range a.p.w.kafka.copies {
		if n > 0 {
			a.inKafka[e] = true
		}
	}
}

// Find notes a finding of the audit.
func (a *SimAudit) Find(kind, id, why string) {
	w := a.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell("%s: %s %s: %s", a.p, kind, id, why)
	n, err := strconv.Atoi(id)
	if err != nil || n < 0 || n >= len(w.pg.events) {
		w.fail("%s finds %s %q, which is no event", a.p, kind, id)
		return
	}
	if a.found[kind] == nil {
		a.found[kind] = map[*event]bool{}
	}
	a.found[kind][w.pg.events[n]] = true
}

// judge compares what the audit has found with the truth. w.mu is held.
func (a *SimAudit) judge() {
	w := a.p.w
	w.see(a.p, "has audited", uint64(len(a.found["missing"])), uint64(len(a.found["phantom"])))
	w.reached[firstAudited] = w.reached[firstAudited] || a.Confirmed && w.pg.holder != nil
	w.reached[auditWaited] = w.reached[auditWaited] || a.Waits > 0
	for _, e := range w.pg.events {
		if r := a.watched[e]; r != nil {
			a.judgeRow(e, r)
		}
		a.judgeRecord(e)
	}
	for kind, events := range a.found {
		if kind == "missing" || kind == "phantom" || w.deduplicates() || w.back {
			continue
		}
		for e := range events {
			if e.lost { // a repeat of it can be behind later events
				continue
			}
			w.fail("%s finds that event %d %s, and nothing is wrong with it", a.p, e.id, kind)
		}
	}
}

func (a *SimAudit) judgeRow(e *event, r *watch) {
	w := a.p.w
	found, all := a.found["missing"][e], r.without == a.looks
	switch {
	case found && r.skipped:
		w.fail("%s finds event %d missing, which the policy skips", a.p, e.id)
	case found && (a.inKafka[e] || r.without == 0):
		w.fail("%s finds event %d missing, which Kafka had (%v) or the slot", a.p, e.id, a.inKafka[e])
	case found && !all && w.kafka.copies[e] > 0 && !a.noSlot && !e.lost:
		w.fail("%s finds event %d missing, which was delivered since", a.p, e.id)
	case !found && all && !a.inKafka[e] && !r.skipped && e.isRow() && !e.alike:
		w.fail("%s does not find that event %d is missing", a.p, e.id)
	case found && e.lost:
		w.reached[auditMissing] = true
	case found:
		w.reached[auditNeverSent] = true
	}
}

func (a *SimAudit) judgeRecord(e *event) {
	w := a.p.w
	found := a.found["phantom"][e]
	if e.tx == nil {
		return
	}
	name, at := strconv.Itoa(e.id), e.tx.commit
	holds := checkpoint.Holds(&a.Lineage, checkpoint.Position{SystemID: 7, Timeline: 1, CommitLSN: at})
	switch {
	case found && e.isRow() && e.tx.from.Before(a.endsAt.Add(2*time.Second)):
		w.fail("%s finds no row of event %d, which was visible soon", a.p, e.id)
	case found && e.isRow() && holds && at >= a.Snapshot.end:
		w.fail("%s finds no row of event %d, which is newer than its snapshot", a.p, e.id)
	case !found && a.gone[e] && a.inKafka[e] && e.poison == healthy && a.Lineage.SystemID == 7 && (!holds || at < a.Snapshot.end):
		w.fail("%s does not find that the row of event %d is lost", a.p, e.id)
	case found && !holds:
		w.reached[auditForked] = true
	case found && e.tx.gone:
		w.reached[auditPhantom] = true
	case !found && a.inKafka[e] && e.isRow() && !a.Snapshot.has[name] && at < a.Snapshot.end:
		w.reached[auditUnseen] = true
	}
}

// awaitAudits waits for the audits that run.
func (w *world) awaitAudits() {
	for range 600 {
		if !slices.ContainsFunc(w.audits, func(a *SimAudit) bool { return !a.ended() }) {
			return
		}
		w.edit(w.pg.flush) // an audit waits for that
		time.Sleep(time.Second)
		synctest.Wait()
	}
	w.edit(func() { w.fail("an audit does not end") })
}

// auditNow audits, and demands an answer.
func (w *world) auditNow() *SimAudit {
	a := w.beginAudit()
	w.awaitAudits()
	if !a.ended() || a.err != nil {
		w.edit(func() { w.fail("%s: everything is healed, and it ends with %v", a.p, a.err) })
	}
	return a
}

// runAudited is run, and then plants a fault.
func (w *world) runAudited() {
	w.run()
	w.edit(func() {
		for len(w.sick) > 0 {
			w.endCondition()
		}
	})
	w.awaitAudits()
	for _, plant := range []func(){func() {}, w.plant} {
		if w.broken != "" {
			return
		}
		w.edit(plant)
		w.auditNow()
	}
}

// TestSimAudit is TestSim with audits, every other run with dead letters, and every third with deduplicated delivery.
func TestSimAudit(t *testing.T) {
	first, n := atLeastSeeds(t, 4000)
	res := simRuns(t, "random runs with audits at any time, fresh seeds, and a fault at the end that an audit must find", "", first, func(i int) (simOptions, bool) {
		seed := first + uint64(i)
		return simOptions{seed: seed, audited: true, dead: seed%2 == 1, dedup: seed%3 == 1, twice: seed%20 == 0, script: (*world).runAudited}, i < n
	})
	if !t.Failed() {
		res.mustReach(t, markNames[firstAudited:firstRecovered], 3000)
	}
}
