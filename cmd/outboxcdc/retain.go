package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/conns"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/retention"
	"github.com/outboxcdc/outboxcdc/replication"
)

// slotWait is how long a run waits for a slot to confirm, at least. A running daemon confirms every second, or as often
// as tuning.status_interval says.
const slotWait = 5 * time.Second

// chunkRows is how many rows one statement of mode delete deletes: few enough for short locks.
const chunkRows = 2000

// shortKeep is the shortest time to keep that needs no --yes.
const shortKeep = time.Hour

func newRetainCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &retainer{}
	cmd := &cobra.Command{
		Use:   "retain",
		Short: "Remove old rows of the outbox tables that are no longer needed",
		Long: "Remove rows that are older than retention.keep, that the slot has confirmed, and that the archive has: empty whole\n" +
			"partitions (retention.mode: truncate), or delete rows in chunks (delete). Delivery does not need the rows; audit,\n" +
			"recover, backfill and replay do. The role of postgres.url has to own the tables. It connects neither to Kafka nor to\n" +
			"the daemon. Exit code: 0 everything that is old enough is gone; 1 something had to stay, with its reason; 69\n" +
			"Postgres is unavailable; 77 the role does not own the table; 78 the table or the settings are unfit (docs/retention.md).",
		Args: noArgs,
		RunE: withConfig(load, func(cmd *cobra.Command, cfg *config.Config) error {
			if cmd.Flags().Changed("every") && r.every < time.Second {
				return usageError(fmt.Errorf("--every %s: write at least 1s", r.every))
			}
			if r.listen != "" && r.every == 0 {
				return usageError(errors.New("--listen needs --every: a single run ends before anybody could ask; use --metrics FILE"))
			}
			r.out, r.errOut = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return withExitCode(r.run(cmd.Context(), cfg))
		}),
	}
	f := cmd.Flags()
	f.DurationVar(&r.every, "every", 0, "run again after this time, until SIGTERM; otherwise once")
	f.BoolVar(&r.dryRun, "dry-run", false, "print what would be removed, lock nothing and remove nothing")
	f.BoolVar(&r.yes, "yes", false, "accept a retention.keep below one hour")
	f.StringArrayVar(&r.despite, "despite-slot", nil, "remove rows although this slot has not confirmed them; may be repeated")
	f.StringVar(&r.metrics, "metrics", "", "write the result to this file for the textfile collector of node_exporter")
	f.StringVar(&r.listen, "listen", "", "with --every: serve /metrics at this address, host:port or :port")
	addOutputFlag(cmd, &r.output)
	return cmd
}

// retainer is the command `retain`.
type retainer struct {
	every           time.Duration
	dryRun, yes     bool
	despite         []string
	metrics, listen string
	output          string
	out, errOut     io.Writer
}

func (r *retainer) run(ctx context.Context, cfg *config.Config) error {
	if cfg.Retention.Mode == "off" {
		return exit.With(exit.Config, cfg.Problem("retention.mode", "is off; write truncate (partitions are emptied) or delete (rows are deleted)"))
	}
	if len(cfg.Sources()) == 0 {
		return exit.With(exit.Config, cfg.Problem("outbox.table", "there is no table: logical messages leave no row to remove"))
	}
	if cfg.Retention.Keep < shortKeep && !r.yes && !r.dryRun {
		return exit.With(exit.Config, cfg.Problem("retention.keep", fmt.Sprintf("%s is short: recover and replay can only send rows that are kept; write at least %s, or give --yes", cfg.Retention.Keep, shortKeep)))
	}
	slots, err := retention.Without(append([]string{cfg.Postgres.Slot}, cfg.Retention.Slots...), r.despite)
	if err != nil {
		return usageError(fmt.Errorf("--despite-slot: %w", err))
	}
	m, err := newRetainMetrics(r.metrics)
	if err != nil {
		return exit.With(exit.Fault, err)
	}
	if r.listen != "" {
		ln, err := net.Listen("tcp", r.listen)
		if err != nil {
			return usageError(fmt.Errorf("--listen: %w", err))
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metrics(m.reg))
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: writeWithin, MaxHeaderBytes: 16 << 10}
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := srv.Serve(conns.Limit(ln, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintf(r.errOut, "outboxcdc: serve /metrics: %v\n", err)
			}
		})
		defer serving.Wait()
		defer srv.Close() //nolint:errcheck // the process ends
	}
	for {
		err := r.pass(ctx, cfg, slots, m)
		if ctx.Err() != nil {
			return nil // every step is a transaction of its own
		}
		if code := exit.Code(err); r.every == 0 || err != nil && code != exit.Fault && code != exit.Unavailable {
			return err
		}
		if err != nil && !exit.IsLogged(err) {
			fmt.Fprintf(r.errOut, "outboxcdc: %v; trying again in %s\n", err, r.every)
		}
		if !retention.Pause(ctx, r.every) {
			return nil
		}
	}
}

// pass is one run over all tables.
func (r *retainer) pass(ctx context.Context, cfg *config.Config, slots []string, m *retainMetrics) error {
	dsn, err := cfg.PostgresAddress()
	if err != nil {
		return exit.With(exit.Config, err)
	}
	p, err := retention.Connect(ctx, dsn, cfg.PostgresPassword)
	if err != nil {
		return err
	}
	defer p.Close()
	job := retention.Retention{
		Keep: cfg.Retention.Keep, Slots: slots, Chunk: chunkRows, DropEmpty: cfg.Retention.DropEmpty, SlotWait: max(slotWait, 3*cfg.Tuning.StatusInterval),
		Beside: retention.Beside, Pause: retention.Pause,
	}
	if args := cfg.Retention.Archive; len(args) > 0 {
		job.Archive = &retention.Command{Args: args, Output: r.errOut, Idle: retention.ArchiveIdle}
	}
	var outboxes []replication.Table
	for _, s := range cfg.Sources() {
		schema, name := s.Name()
		outboxes = append(outboxes, replication.Table{Schema: schema, Name: name})
	}
	var results []retention.TableResult
	var failed error // the first table that could not be worked on; the next ones do not wait for it
	for _, s := range cfg.Sources() {
		t := retention.Table{CreatedAt: s.Columns.CreatedAt, Delete: cfg.Retention.Mode == "delete", Publication: cfg.Postgres.Publication}
		t.Schema, t.Name = s.Name()
		res, err := retention.Pass(ctx, p, &t, outboxes, job, r.dryRun, func() {
			fmt.Fprintf(r.errOut, "another retain is at work on table %s: waiting\n", &t)
		})
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			res.Leaves = append(res.Leaves, retention.Result{Leaf: res.Table, Outcome: retention.Postponed, Reason: retention.ByError, Text: err.Error()})
			failed = cmp.Or(failed, err)
		}
		if err := r.print(&res, t.Delete); err != nil {
			return err
		}
		results = append(results, res)
	}
	if r.dryRun {
		return failed
	}
	m.set(slots, results, time.Now())
	if r.metrics != "" {
		if err := m.write(r.metrics); err != nil {
			return exit.With(exit.Fault, fmt.Errorf("write the metrics: %w", err))
		}
	}
	if failed != nil {
		return failed
	}
	for i := range results {
		if len(results[i].Overdue()) > 0 {
			return exit.Logged(exit.Fault, errors.New("rows that are old enough remain"))
		}
	}
	return nil
}

// print prints what became of a table. deletes is whether rows are deleted.
func (r *retainer) print(res *retention.TableResult, deletes bool) error {
	if r.output == "json" {
		return writeJSON(r.out, res)
	}
	said := map[string]bool{} // slots
	rows := int64(0)
	for i := range res.Leaves {
		leaf := &res.Leaves[i]
		if leaf.Outcome == retention.Empty {
			continue
		}
		var l line
		outcome := string(leaf.Outcome)
		switch {
		case leaf.Outcome == retention.Emptied && r.dryRun && deletes:
			outcome = "has old rows, which would be deleted"
		case leaf.Outcome == retention.Emptied && r.dryRun:
			outcome = "would be emptied"
		case leaf.Outcome == retention.Emptied && deletes:
			outcome = "has no old rows any more"
		}
		l.word(leaf.Leaf + " " + outcome)
		if !leaf.Oldest.IsZero() {
			l.pair("oldest", []byte(leaf.Oldest.UTC().Format(timeLayout)))
		}
		if !leaf.Newest.IsZero() {
			l.pair("newest", []byte(leaf.Newest.UTC().Format(timeLayout)))
		}
		if rows += leaf.Rows; leaf.Rows > 0 {
			l.pair("deleted", fmt.Append(nil, leaf.Rows))
		}
		l.pair("size", []byte(human.Size(leaf.Bytes)))
		switch {
		case leaf.Slot != "" && said[leaf.Slot]:
			l.word("- slot " + leaf.Slot + ", as above")
		case leaf.Text != "":
			l.word("- " + leaf.Text)
		}
		said[leaf.Slot] = true
		if err := written(r.out.Write(l.end())); err != nil {
			return err
		}
	}
	did := map[bool]string{false: "emptied ", true: "would empty "}[r.dryRun] + human.Count(res.Removed(), "partition", "partitions")
	switch {
	case deletes && r.dryRun:
		did = "would delete old rows of " + human.Count(res.Removed(), "table or partition", "partitions")
	case deletes:
		did = "deleted " + human.Count(int(rows), "row", "rows")
	}
	return written(fmt.Fprintf(r.out, "%s: %s before; %s\n", res.Table, human.Size(res.Bytes), did))
}
