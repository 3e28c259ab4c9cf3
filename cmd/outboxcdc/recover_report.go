package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/router"
)

// gap is what is missing of a topic.
type gap struct {
	rows        int
	first, last *audit.Row
}

// compare finds the rows that are missing, and prints what they are.
func (r *recoverer) compare(ctx context.Context) error {
	if err := r.t.takeSnapshot(ctx); err != nil {
		return err
	}
	r.missing, r.topics = recovery.NewSet(), map[string]*gap{}
	r.later = &laterKeys{}
	defer r.later.close()
	if r.slot != nil && r.slot.ConfirmedFlush > 0 {
		r.next = checkpoint.Position{SystemID: r.t.identity.SystemID, CommitLSN: r.slot.ConfirmedFlush - 1}
		r.next.Timeline = r.t.identity.TimelineOf(r.next.CommitLSN)
	}
	job := r.t.audit(r.rows, false)
	job.Count, job.TakeUnjudged = r.next.CommitLSN, r.unjudged
	limitMemory(recoverMemory)
	job.Memory, job.Progress, job.Note = recoverMemory, r.meter.Show, func(s string) { r.say("note: %s", s) }
	job.Wait = recoverWait
	// A daemon, or another run of this command, may have been killed just before: what it has sent may still arrive.
	job.NotBefore = r.began.Add(r.cfg.Tuning.FenceWait)
	job.Report = func(audit.Finding) error { return nil }
	job.Later, job.OnlyMissing = r.later.add, true
	job.Lost = func(row *audit.Row) error {
		r.missing.Add(row.Topic, row.ID)
		g := r.topics[row.Topic]
		if g == nil {
			g = &gap{}
			r.topics[row.Topic] = g
		}
		g.rows++
		kept := *row
		kept.ID = slices.Clone(row.ID)
		if g.first == nil || row.Created.Before(g.first.Created) {
			g.first = &kept
		}
		if g.last == nil || !row.Created.Before(g.last.Created) {
			g.last = &kept
		}
		return nil
	}
	res, err := job.Run(ctx, r.t.snapshot, r.t, r.t.client, "")
	if err != nil {
		return err
	}
	r.next.Ordinal = res.Ordinals
	r.report(res)
	return nil
}

// recoverMemory is the memory for the comparison, as of `audit` without --memory.
const recoverMemory = 256 << 20

// recoverWait is how long to wait for a daemon that runs beside before what its slot holds is read.
const recoverWait = 10 * time.Second

// report prints what is missing.
func (r *recoverer) report(res *audit.Result) {
	r.say("%s compared with %s: %s missing", human.Count(int(res.Rows), "row", "rows"), human.Count(int(res.Records), "record", "records"),
		human.Count(r.missing.Len(), "row is", "rows are"))
	names := make([]string, 0, len(r.topics))
	for topic := range r.topics {
		names = append(names, topic)
	}
	slices.Sort(names)
	for _, topic := range names {
		g := r.topics[topic]
		if topic == "" {
			topic = "(no topic: poison)"
		}
		r.say("  %s: %s, first %s, last %s", topic, human.Count(g.rows, "row", "rows"), rowText(g.first), rowText(g.last))
	}
	if r.missing.Len() > 0 {
		allMissing(res, func(s string) { r.say("  %s", s) })
	}
	if r.missing.Len() > 0 && !r.t.ordered() {
		r.say("  outbox.order is not set, so they are sent in the order of created_at, or of the table if it has no such column: " +
			"transactions of one key that overlapped may be sent in another order than they committed in")
	}
	if res.Unjudged > 0 {
		r.say("  %s not among them, because Kafka may have deleted their records: --unjudged sends them as well", human.Count(int(res.Unjudged), "older row is", "older rows are"))
	}
	if r.later.n > 0 {
		r.say("  %s later events in Kafka already, and the missing ones will come after them: see %s",
			human.Count(r.later.n, "key has", "keys have"), r.later.name)
	}
}

// rowText names a row.
func rowText(r *audit.Row) string {
	if r.Created.IsZero() {
		return quoted(r.ID, false)
	}
	return quoted(r.ID, false) + " of " + r.Created.Format(time.RFC3339)
}

func (r *recoverer) sentBesides() string {
	var s string
	if n := r.sent.DeadLettered; n > 0 {
		s += fmt.Sprintf(", %d of them to %s", n, r.t.poison.Topic)
	}
	if n := r.sent.Skipped; n > 0 {
		s += fmt.Sprintf("; %s skipped by policy", human.Count(int(n), "row was", "rows were"))
	}
	return s
}

// poisonLine says which row was not sent, and why.
func poisonLine(p *router.Poison) []byte {
	var l line
	l.word("poison")
	l.pair("id", []byte(p.ID))
	l.pair("cause", []byte(p.Cause))
	l.pair("topic", []byte(p.Topic))
	l.word("- " + p.Message)
	return l.end()
}

// laterKeys collects keys in a file, which may be more than a terminal shows.
type laterKeys struct {
	n    int
	name string
	f    *os.File
	w    *bufio.Writer
}

func (l *laterKeys) add(topic, key string) (err error) {
	if l.f == nil {
		if l.f, err = os.CreateTemp("", "outboxcdc-keys-*.txt"); err != nil {
			return err
		}
		l.name, l.w = l.f.Name(), bufio.NewWriter(l.f)
	}
	l.n++
	_, err = fmt.Fprintf(l.w, "%s\t%s\n", topic, quoted([]byte(key), true))
	return err
}

func (l *laterKeys) close() {
	if l.f != nil {
		_ = l.w.Flush() // a list for people: the count is printed in any case
		_ = l.f.Close()
	}
}
