package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/router"
)

// replayAsks is after how many events replay asks for --yes.
const replayAsks = 1000

func newReplayCommand(load func() (*config.Config, error)) *cobra.Command {
	r := &replayer{}
	var since, until string
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Send events again, from the rows of the outbox tables",
		Long: "Send selected rows of the outbox tables again, whether Kafka has them or not. It may run beside the daemon at any\n" +
			"time. The records are those of the daemon, except that they have the header outboxcdc-replayed and no position: they\n" +
			"are outside the order of the stream, and consumers have to expect them. Selections of different flags are combined: a\n" +
			"row has to meet all of them. Exit code: 0 all were sent; 1 some were not; 69 Postgres or Kafka is unavailable\n" +
			"(docs/recovery.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if r.rows, err = timeRange(since, until, time.Now()); err != nil {
				return err
			}
			switch {
			case len(r.ids)+len(r.keys)+len(r.types) == 0 && r.rows.Since.IsZero():
				return usageError(errors.New("replay needs to know what: --id, --key, --type, or --since with --until"))
			case len(r.ids)+len(r.keys)+len(r.types) == 0 && r.rows.Until.IsZero():
				return usageError(errors.New("replay by time needs --until as well as --since: otherwise it would never know what is newer"))
			case r.rate < 0:
				return usageError(fmt.Errorf("--rate %d: write the records per second, or 0 for no limit", r.rate))
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			r.out, r.meter = cmd.OutOrStdout(), progress.New(os.Stderr)
			defer r.meter.Clear()
			return withExitCode(r.run(cmd.Context(), cfg))
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&r.ids, "id", nil, "the event with this id; may be repeated")
	f.StringArrayVar(&r.keys, "key", nil, "the events with this aggregate type and id, as TYPE/ID; may be repeated")
	f.StringArrayVar(&r.types, "type", nil, "the events of this event type; may be repeated")
	addRangeFlags(f, &since, &until)
	f.StringVar(&r.topic, "topic", "", "send to this topic instead of the events' own")
	f.BoolVar(&r.compacted, "compacted", false, "send to compacted topics as well, where an older event becomes the state of its key, and Kafka deletes the later one")
	f.IntVar(&r.rate, "rate", 0, "maximum number of records per second, 0: no limit")
	f.BoolVar(&r.dryRun, "dry-run", false, "print what would be sent, and send nothing")
	f.BoolVarP(&r.yes, "yes", "y", false, fmt.Sprintf("send more than %d events", replayAsks))
	return cmd
}

// replayer is one run of `replay`.
type replayer struct {
	operator
	rows              outboxtable.Range
	ids, keys, types  []string
	topic             string
	rate, shown       int
	dryRun, compacted bool
}

func (r *replayer) run(ctx context.Context, cfg *config.Config) error {
	t, err := wire.OpenTables(ctx, cfg)
	if err != nil {
		return err
	}
	defer t.Close()
	run := t.Replay(r, r.rate)
	run.Topic, run.Compacted, run.DryRun, run.Run, run.Selected = r.topic, r.compacted, r.dryRun, uuid.NewString(), r.show
	if !r.yes {
		run.AtMost = replayAsks
	}
	for i, s := range cfg.Sources() {
		where, err := r.where(&s.Columns)
		if err != nil {
			return err
		}
		rows := r.rows
		rows.Where = where
		if err := t.Check(ctx, i, rows); err != nil {
			return exit.With(exit.Usage, err)
		}
		run.Tables = append(run.Tables, recovery.Table{Number: i, Range: rows})
	}
	n, sent, err := run.Deliver(ctx)
	r.meter.Clear()
	switch {
	case r.dryRun && err == nil:
		r.Say("%s would be sent; nothing was sent", human.Count(n, "event", "events"))
	case err == nil || sent.Records > 0:
		r.Say("%s of %d sent, run %s", human.Count(int(sent.Records), "record", "records"), n, run.Run)
	}
	if err == nil && sent.Poisoned > 0 {
		err = exit.With(exit.Fault, fmt.Errorf("%s not sent, for the reasons above", human.Count(int(sent.Poisoned), "event was", "events were")))
	}
	return err
}

// show prints one of the first selected events, in a dry run.
func (r *replayer) show(rec *router.Record, row *outboxtable.Row, poison *router.Poison) error {
	if r.shown++; r.shown > replayAsks {
		return nil
	}
	var l line
	l.pair("id", rec.ID)
	l.pair("topic", []byte(rec.Topic))
	l.pair("key", rec.Key)
	l.pair("created_at", []byte(row.CreatedAt.Format(timeLayout)))
	if poison != nil {
		l.pair("poison", []byte(poison.Cause))
	}
	return written(r.out.Write(l.end()))
}

// where is the condition of the flags on the rows of a table.
func (r *replayer) where(c *config.Columns) (string, error) {
	var all []string
	either := func(flag, column string, values []string) error {
		if len(values) == 0 {
			return nil
		}
		if column == "" {
			return usageError(fmt.Errorf("%s: the table has no such column (outbox.columns)", flag))
		}
		var list []string
		for _, v := range values {
			list = append(list, sqlLiteral(v))
		}
		all = append(all, sqlIdentifier(column)+" IN ("+strings.Join(list, ", ")+")")
		return nil
	}
	if err := errors.Join(either("--id", c.ID, r.ids), either("--type", c.EventType, r.types)); err != nil {
		return "", err
	}
	var keys []string
	for _, k := range r.keys {
		typ, id, ok := strings.Cut(k, "/")
		if c.AggregateType == "" || c.AggregateID == "" {
			return "", usageError(fmt.Errorf("--key %s: the table has no columns of aggregate type and id (outbox.columns); use --id, --since and --until", k))
		}
		if !ok || typ == "" || id == "" {
			return "", usageError(fmt.Errorf("--key %s: write TYPE/ID, such as order/42", k))
		}
		keys = append(keys, fmt.Sprintf("%s = %s AND %s = %s", sqlIdentifier(c.AggregateType), sqlLiteral(typ), sqlIdentifier(c.AggregateID), sqlLiteral(id)))
	}
	if len(keys) > 0 {
		all = append(all, "("+strings.Join(keys, " OR ")+")")
	}
	return strings.Join(all, " AND "), nil
}

func sqlIdentifier(name string) string { return pgx.Identifier{name}.Sanitize() }

// sqlLiteral is a string constant (PostgreSQL, "String Constants").
func sqlLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
