package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/kafka/sender"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sql"
)

func newRecoverCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &recoverer{verb: "recover"}
	var since, until string
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Deliver rows that Kafka does not have, after the slot was lost, recreated or advanced",
		Long: "Deliver the rows of the outbox tables that neither Kafka has nor the slot still holds, in the order of outbox.order, with the\n" +
			"header outboxcdc-recovered. A slot that is missing or lost is created again first. What is sent is the difference that audit finds,\n" +
			"so that the command can be interrupted, killed and run again. Afterwards it audits once more, and writes a position record if the\n" +
			"daemon needs one: then the daemon simply starts. It refuses while the slot is active, unless --beside is given. Exit code: 0\n" +
			"nothing is missing; 1 something still is; 69 Postgres or Kafka is unavailable, or another recover runs (docs/recovery.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			where := r.rows.Where
			var err error
			if r.rows, err = timeRange(since, until, time.Now()); err != nil {
				return err
			}
			r.rows.Where = where
			return r.start(cmd, load)
		},
	}
	f := cmd.Flags()
	addRangeFlags(f, &since, &until)
	f.StringVar(&r.rows.Where, "where", "", "an SQL condition on the rows; continue an interrupted backfill with the condition it had")
	r.addFlags(cmd)
	f.BoolVar(&r.beside, "beside", false, "run while the daemon streams: what the slot still holds is left to the daemon")
	return cmd
}

func newBackfillCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &recoverer{verb: "backfill"}
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Create the slot and deliver the rows that are older than it",
		Long: "Create the slot, and deliver the rows that were committed before it: all of them, or those of --where. Rows whose id Kafka has\n" +
			"already are not sent. The daemon, started afterwards, continues with the first row after them: no event is missing or sent\n" +
			"twice. This is how a polling outbox moves to outboxcdc. It refuses if the slot exists: an interrupted backfill is\n" +
			"continued by recover with the same --where.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.start(cmd, load) },
	}
	f := cmd.Flags()
	f.StringVar(&r.rows.Where, "where", "", "an SQL condition on the rows, e.g. \"published_at IS NULL\"")
	f.StringSliceVar(&r.order, "order", nil, "columns that order the rows, instead of outbox.order")
	r.addFlags(cmd)
	return cmd
}

// recoverer is one run of `recover` or `backfill`.
type recoverer struct {
	verb        string
	rows        outboxtable.Range
	order       []string
	rate        int
	dryRun, yes bool
	beside      bool
	in          io.Reader
	out         io.Writer

	began   time.Time
	cfg     *config.Config
	t       *tableSet
	meter   *progress.Meter
	slot    *replication.Slot
	created bool // this run has created the slot
	missing *recovery.Set
	topics  map[string]*gap
	later   *laterKeys
	next    checkpoint.Position
	sent    recovery.Sent
}

// gap is what is missing of a topic.
type gap struct {
	rows        int
	first, last *audit.Row
}

func (r *recoverer) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&r.rate, "rate", 0, "maximum number of records per second, 0: no limit")
	f.BoolVar(&r.dryRun, "dry-run", false, "print what would be sent, and change nothing")
	f.BoolVarP(&r.yes, "yes", "y", false, "do not ask; also send rows of which Kafka may have deleted the records")
}

func (r *recoverer) start(cmd *cobra.Command, load func() (*config.Config, error)) error {
	if r.rate < 0 {
		return usageError(fmt.Errorf("--rate %d: write the records per second, or 0 for no limit", r.rate))
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	if len(r.order) > 0 {
		cfg.Outbox.Order = r.order
		for i := range cfg.Outboxes {
			cfg.Outboxes[i].Order = r.order
		}
	}
	r.cfg, r.in, r.out, r.meter = cfg, cmd.InOrStdin(), cmd.OutOrStdout(), progress.New(os.Stderr)
	defer r.meter.Clear()
	err = r.run(cmd.Context())
	r.meter.Clear()
	if err != nil && r.sent.Records > 0 {
		r.say("%s sent before this error; run the command again: it continues where this one ended", human.Count(int(r.sent.Records), "record was", "records were"))
	}
	return withExitCode(err)
}

func (r *recoverer) say(format string, args ...any) {
	r.meter.Clear()
	fmt.Fprintf(r.out, format+"\n", args...) //nolint:errcheck // who reads it may be gone
}

// run recovers. Everything that it decides rests on one comparison: the rows of a snapshot, minus what the slot still holds, minus what
// Kafka has. A crash at any point leaves a state in which another run finds what is missing then.
func (r *recoverer) run(ctx context.Context) error {
	t, err := connectTables(ctx, r.cfg)
	if err != nil {
		return err
	}
	defer t.close()
	r.t = t
	r.began = time.Now()
	if err := r.lock(ctx); err != nil {
		return err
	}
	if err := t.checkRange(ctx, r.rows); err != nil {
		return err
	}
	if err := r.prepareSlot(ctx); err != nil {
		return errors.Join(err, r.undo(ctx))
	}
	if err := r.compare(ctx); err != nil {
		return errors.Join(err, r.undo(ctx))
	}
	if r.dryRun {
		r.say("nothing was changed")
		return r.left(int64(r.missing.Len()))
	}
	if r.missing.Len() > 0 {
		ok, err := r.ask(ctx, "send %s?", human.Count(r.missing.Len(), "row", "rows"))
		if err != nil || !ok {
			return errors.Join(err, r.undo(ctx), r.left(int64(r.missing.Len())))
		}
		if err := r.send(ctx); err != nil {
			return err
		}
		if err := r.again(ctx); err != nil {
			return err
		}
	}
	return r.adopt(ctx)
}

// lockPatience is how long the lock is waited for: the server notices with a delay that a run has ended or was killed.
const lockPatience = 5 * time.Second

// lock takes an advisory lock for the life of the connection: two runs at a time would send every row twice.
func (r *recoverer) lock(ctx context.Context) error {
	for end := time.Now().Add(lockPatience); ; {
		var locked bool
		err := r.t.control.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtext('outboxcdc recover'), hashtext($1))", r.cfg.Postgres.Slot).Scan(&locked)
		switch {
		case err != nil || locked:
			return err
		case time.Now().After(end):
			return exit.With(exit.Unavailable, fmt.Errorf("another recover or backfill of slot %s is running", r.cfg.Postgres.Slot))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// prepareSlot creates the slot if there is none that could be read: the stream has every row that is committed from then on.
func (r *recoverer) prepareSlot(ctx context.Context) (err error) {
	name := r.cfg.Postgres.Slot
	if r.slot, err = r.t.Read(ctx); err != nil {
		return err
	}
	s := r.slot
	switch {
	case s != nil && r.verb == "backfill":
		return exit.With(exit.Fault, fmt.Errorf("slot %s exists: backfill creates it. To send rows that are older than an existing slot, use recover", name))
	case s != nil && s.Active && !r.beside:
		return exit.With(exit.Fault, fmt.Errorf("%w, or give --beside", activeError(name, s)))
	case s != nil && !s.Lost():
		return nil
	case r.dryRun:
		r.say("slot %s is %s and would be created: rows that are committed until then count as missing as well", name, slotProblem(s))
		return nil
	case s != nil:
		ok, err := r.ask(ctx, "slot %s is lost: drop it and create it again?", name)
		if err != nil {
			return err
		}
		if !ok {
			return exit.With(exit.Fault, errors.New("nothing was changed"))
		}
	}
	r.say("creating slot %s: it waits for the transactions that are open now", name)
	if err := r.t.createSlot(ctx, s != nil); err != nil {
		return err
	}
	r.created = true
	if err := r.t.awaitVisible(ctx); err != nil {
		return err
	}
	if r.slot, err = r.t.Read(ctx); err == nil && r.slot == nil {
		err = fmt.Errorf("slot %s was created and is gone again", name)
	}
	if err != nil {
		return err
	}
	r.say("slot %s created at %s", name, r.slot.ConfirmedFlush)
	return nil
}

func slotProblem(s *replication.Slot) string {
	if s == nil {
		return "missing"
	}
	return "lost"
}

// undo drops the slot that this run has created, if nothing was sent: it would retain WAL without a reader.
func (r *recoverer) undo(ctx context.Context) error {
	if !r.created || r.sent.Records > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.t.dropSlot(ctx); err != nil {
		return fmt.Errorf("drop slot %s again: %w", r.cfg.Postgres.Slot, err)
	}
	r.say("slot %s dropped again", r.cfg.Postgres.Slot)
	return nil
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
	job.Count, job.TakeUnjudged = r.next.CommitLSN, r.yes
	job.Memory, job.Progress, job.Note = 256<<20, r.meter.Show, func(s string) { r.say("note: %s", s) }
	job.Wait = recoverWait
	// A daemon, or another run of this command, may have been killed just before: what it has sent may still arrive.
	job.NotBefore = r.began.Add(r.cfg.Tuning.FenceWait)
	job.Report = func(audit.Finding) error { return nil }
	job.Later = r.later.add
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
		r.say("  %s: %s, first %s of %s, last %s of %s", topic, human.Count(g.rows, "row", "rows"),
			g.first.ID, g.first.Created.Format(time.RFC3339), g.last.ID, g.last.Created.Format(time.RFC3339))
	}
	if r.missing.Len() > 0 && !r.t.ordered() {
		r.say("  in the order of created_at: of one key, transactions that overlapped may come in another order than they committed in (outbox.order)")
	}
	if res.Unjudged > 0 {
		r.say("  %s not among them, because Kafka may have deleted their records: --yes sends them as well", human.Count(int(res.Unjudged), "older row is", "older rows are"))
	}
	if r.later.n > 0 {
		r.say("  %s later events in Kafka already, behind which the missing ones will come: see %s",
			human.Count(r.later.n, "key has", "keys have"), r.later.name)
	}
}

// ask asks on a terminal; --yes answers.
func (r *recoverer) ask(ctx context.Context, format string, args ...any) (bool, error) {
	if r.yes {
		return true, nil
	}
	r.meter.Clear()
	fmt.Fprintf(r.out, format+" [y/N] ", args...) //nolint:errcheck // then there is no answer
	yes, none, err := readAnswer(ctx, r.in)
	if err == nil && none {
		fmt.Fprintln(r.out) //nolint:errcheck // as above
		err = exit.With(exit.Fault, errors.New("there is no answer, so nothing was sent: --yes answers for you"))
	}
	return yes, err
}

// send sends the missing rows.
func (r *recoverer) send(ctx context.Context) error {
	out := sender.New(r.t.cluster, r.t.senderOptions(r.rate))
	defer out.Close()
	run := uuid.NewString()
	job := &recovery.Job{
		Router: r.t.route, Poison: &r.t.poison, Wants: r.missing.Has, Mark: router.Header{Name: audit.HeaderRecovered, Value: []byte(run)},
		Position: r.next, Total: int64(r.missing.Len()), Progress: r.meter.Show, Poisoned: r.poisoned,
	}
	if !r.cfg.Route.PositionHeader {
		job.Position = checkpoint.Position{}
	}
	for i := range r.t.list {
		job.Tables = append(job.Tables, recovery.Table{Number: i, Range: r.rows})
	}
	var err error
	r.sent, err = job.Run(ctx, r.t.snapshot, out)
	if err != nil {
		return err
	}
	r.say("%s sent, run %s%s", human.Count(int(r.sent.Records), "record", "records"), run, r.sentBesides())
	return nil
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

func (r *recoverer) poisoned(p *router.Poison) error {
	r.meter.Clear()
	return written(r.out.Write(poisonLine(p)))
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

// again compares once more: what was sent must be found.
func (r *recoverer) again(ctx context.Context) error {
	sent := r.sent
	if err := r.compare(ctx); err != nil {
		return fmt.Errorf("%s sent; compare once more: %w", human.Count(int(sent.Records), "record was", "records were"), err)
	}
	return r.left(int64(r.missing.Len()))
}

// left is the error if rows are still missing.
func (r *recoverer) left(n int64) error {
	if n == 0 {
		return nil
	}
	return exit.Logged(exit.Fault, fmt.Errorf("%d rows are missing in Kafka", n))
}

// adopt writes a position record if the daemon would not start with the one there is.
func (r *recoverer) adopt(ctx context.Context) error {
	if r.beside || r.dryRun || !r.cfg.Deduplicated() {
		return nil
	}
	part := r.rows != outboxtable.Range{}
	a := &adopter{onlyIfWrong: true, dryRun: part}
	if err := a.run(ctx, r.cfg); err != nil {
		return fmt.Errorf("write the position record: %w", err)
	}
	if part && (a.wrong != nil || a.broken != nil) {
		r.say("the daemon will not start yet: only rows of --since, --until or --where were compared, and others may be missing as well.\n" +
			"Run recover for all rows, or accept the position of the slot with \"outboxcdc slot adopt\"")
		return nil
	}
	if a.written {
		r.say("position record written: the daemon continues at %s", a.new.Confirm)
	}
	r.say("start the daemon: outboxcdc run")
	return nil
}

// createSlotTimeout is how long creating the slot may wait for open transactions.
const createSlotTimeout = 10 * time.Minute

// createSlot creates the slot, as `setup apply` does, after dropping one that is lost.
func (t *tableSet) createSlot(ctx context.Context, drop bool) error {
	if drop {
		if err := t.dropSlot(ctx); err != nil {
			return err
		}
	}
	return t.exec(ctx, "create slot "+t.cfg.Postgres.Slot, func(conn *pgx.Conn) error {
		p, err := setupParams(t.cfg)
		if err != nil {
			return err
		}
		server, err := replication.ReadServer(ctx, conn)
		if err != nil {
			return err
		}
		p.Timeout = createSlotTimeout
		statements, err := sql.Setup(p, server.Major())
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, statements.Get(sql.Slot), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// awaitVisible waits until each transaction that is open now has ended. One of them can be committed before the position of a slot that was
// just created, so that the slot does not have its rows, and its rows are not visible yet: Postgres writes the commit to the WAL first, and a
// synchronous standby can be in between.
func (t *tableSet) awaitVisible(ctx context.Context) error {
	const op = "wait for open transactions"
	var next string // later than the id of each open transaction; no snapshot tells it
	if err := t.control.QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(&next); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	for end := time.Now().Add(createSlotTimeout); ; {
		var oldest string
		var ended bool
		err := t.control.QueryRow(ctx, "SELECT x::text, x >= $1::text::xid8 FROM pg_snapshot_xmin(pg_current_snapshot()) x", next).Scan(&oldest, &ended)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", op, err)
		case ended:
			return nil
		case time.Now().After(end):
			return exit.With(exit.Unavailable, fmt.Errorf("transaction %s, which may have been committed before slot %s was created, has not ended within %s; "+
				"remedy: end it, then run the command again", oldest, t.cfg.Postgres.Slot, createSlotTimeout))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *tableSet) dropSlot(ctx context.Context) error {
	return t.exec(ctx, "drop slot "+t.cfg.Postgres.Slot, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", t.cfg.Postgres.Slot)
		return err
	})
}

// exec runs something that may take as long as the transactions that are open.
func (t *tableSet) exec(ctx context.Context, what string, do func(*pgx.Conn) error) error {
	conn, err := t.source.Connect(ctx, commandName, false)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what was done is done
	if _, err := conn.Exec(ctx, "SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_read_only = off", pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if err := do(conn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
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
