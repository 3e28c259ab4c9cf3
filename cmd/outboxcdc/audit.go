package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

func newAuditCommand(load func() (*config.Config, error)) *cobra.Command {
	a := &auditor{}
	var since, until, memory string
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare the outbox tables with Kafka: find missing, unknown and reordered events",
		Long: "Compare the rows of the outbox tables with the records in Kafka. The comparison is exact while applications write and\n" +
			"the daemon runs: it takes a snapshot of the tables, waits until the slot has confirmed all of it, and then reads Kafka\n" +
			"to its end. It only reads. It needs SELECT on the tables and Read on the topics. Rows that were deleted cannot be\n" +
			"compared: choose a time in which rows are kept (--since). Exit code: 0 nothing was found; 1 findings, or rows that\n" +
			"Kafka should have could not be judged; 69 Postgres or Kafka is unavailable (docs/audit.md).",
		Args: noArgs,
		RunE: withConfig(load, func(cmd *cobra.Command, cfg *config.Config) error {
			var err error
			if a.rows, err = timeRange(since, until, time.Now()); err != nil {
				return err
			}
			size, err := config.ParseByteSize(memory)
			if err != nil || size < 16<<20 {
				return usageError(fmt.Errorf("--memory %s: write at least 16MiB", memory))
			}
			a.memory = int64(size)
			a.out = cmd.OutOrStdout()
			return a.run(cmd.Context(), cfg)
		}),
	}
	f := cmd.Flags()
	addRangeFlags(f, &since, &until)
	addAlsoFlag(f, &a.also)
	f.StringArrayVar(&a.tables, "table", nil, "only this table, as in the configuration; may be repeated")
	f.BoolVar(&a.deep, "deep", false, "also compare topic and headers with what the rows are routed to now")
	f.DurationVar(&a.wait, "wait", 30*time.Second, "how long to wait until the slot has confirmed the snapshot; after that, what waits in the slot is read")
	f.StringVar(&memory, "memory", "256MiB", "memory for the comparison; the rest is in temporary files")
	f.StringVar(&a.metrics, "metrics", "", "write the result to this file for the textfile collector of node_exporter")
	addOutputFlag(cmd, &a.output)
	return cmd
}

// auditor is one run of `audit`.
type auditor struct {
	rows            outboxtable.Range
	tables, also    []string
	deep            bool
	wait            time.Duration
	memory          int64
	metrics, output string
	out             io.Writer

	shown map[audit.Kind]int
}

// shownAtMost is how many findings of a kind are printed as text.
const shownAtMost = 20

func (a *auditor) run(ctx context.Context, cfg *config.Config) error {
	t, err := wire.OpenTables(ctx, cfg)
	if err != nil {
		return withExitCode(err)
	}
	defer t.Close()
	t.Also = a.also
	if err := t.Choose(a.tables); err != nil {
		return err
	}
	meter := progress.New(os.Stderr)
	defer meter.Clear()
	began := time.Now()
	limitMemory(a.memory)
	job := t.Audit(a.rows, a.deep)
	job.Memory, job.Wait, job.Progress = a.memory, a.wait, meter.Show
	a.shown = map[audit.Kind]int{}
	job.Report = func(f audit.Finding) error {
		meter.Clear()
		return a.show(&f)
	}
	var notes []string
	job.Note = func(s string) { notes = append(notes, s) }
	res, err := t.RunAudit(ctx, job)
	if err != nil {
		return withExitCode(err)
	}
	meter.Clear()
	allMissing(res, job.Note)
	if err := a.sum(t, res, notes, began); err != nil {
		return err
	}
	if a.metrics != "" {
		if err := writeAuditMetrics(a.metrics, cfg.Postgres.Slot, res, began, time.Now()); err != nil {
			return exit.With(exit.Fault, fmt.Errorf("write the metrics: %w", err))
		}
	}
	switch {
	case res.Blind():
		return exit.Logged(exit.Fault, errors.New("none of the rows could be judged"))
	case len(res.Findings) == 0 && res.Young > 0:
		return exit.Logged(exit.Fault, errors.New("rows could not be judged of which Kafka should have the records"))
	case !res.Clean():
		return exit.Logged(exit.Fault, errors.New("there are findings"))
	}
	return nil
}

// limitMemory makes the garbage collector keep the process within a size, as far as it can: garbage grows with the
// rate of reading. A quarter is for what is not the heap.
func limitMemory(bytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes / 4 * 3)
	}
}

// show prints a finding.
func (a *auditor) show(f *audit.Finding) error {
	if a.output == "json" {
		return writeJSON(a.out, f)
	}
	if a.shown[f.Kind]++; a.shown[f.Kind] > shownAtMost {
		return nil
	}
	var l line
	l.word(string(f.Kind))
	l.pair("id", []byte(f.ID))
	l.pair("topic", []byte(f.Topic))
	l.pair("key", []byte(f.Key))
	if f.Created != nil {
		l.pair("created_at", []byte(f.Created.Format(timeLayout)))
	}
	if f.Table != "" {
		l.pair("table", []byte(f.Table))
	}
	for _, p := range f.Places {
		l.pair("record", []byte(p))
	}
	l.word("- " + f.Why)
	return written(a.out.Write(l.end()))
}

// auditJSON is the last line of the output as JSON.
type auditJSON struct {
	Summary struct {
		audit.Counts
		Clean     bool     `json:"clean"`
		Snapshot  string   `json:"snapshot_lsn"`
		Confirmed bool     `json:"slot_has_confirmed_snapshot"`
		Notes     []string `json:"notes"`
		Seconds   float64  `json:"seconds"`
	} `json:"summary"`
}

// sum prints what was compared and found.
func (a *auditor) sum(t *wire.Servers, res *audit.Result, notes []string, began time.Time) error {
	if a.output == "json" {
		var out auditJSON
		s := &out.Summary
		s.Counts, s.Clean, s.Snapshot, s.Confirmed = res.Counts, res.Clean(), res.SnapshotAt.String(), res.Confirmed
		s.Notes, s.Seconds = append([]string{}, notes...), time.Since(began).Seconds()
		return writeJSON(a.out, out)
	}
	return written(io.WriteString(a.out, auditText(t, res, a.shown, notes, time.Since(began))))
}
