package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/peek"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// peekLimit is the default of --limit: enough for a first look.
const peekLimit = 100

func newPeekCommand(load func() (*config.Config, error)) *cobra.Command {
	p := &peeker{}
	cmd := &cobra.Command{
		Use:   "peek",
		Short: "Show the events that wait in the slot, without confirming them",
		Long: "Print the events that wait in the slot as the records they would become, oldest first, up to the end of the WAL at the\n" +
			"start. It reads a temporary copy of the slot, so it may run beside the daemon and touches neither the slot nor Kafka.\n" +
			"Events that the daemon has sent and not confirmed yet are shown as well. The copy needs one replication slot and one\n" +
			"walsender. What only Kafka knows is not shown: missing topics, size limits, the partition of a key, and the epoch of a\n" +
			"position, which is shown as 0 (docs/running.md). Only if a policy is hold_key, the dead-letter topic is read: events\n" +
			"that would follow a poison event there are marked as HELD.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.limit < 0 {
				return usageError(fmt.Errorf("--limit %d: write the maximum number of events to show, or 0 for all", p.limit))
			}
			if p.follow && !cmd.Flags().Changed("limit") {
				p.limit = 0
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			p.out, p.notes = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return p.run(cmd.Context(), cfg, newLogger(logLevel(cfg), os.Stderr))
		},
	}
	f := cmd.Flags()
	f.IntVar(&p.limit, "limit", peekLimit, "maximum number of events to show, 0: all (with --follow the default is 0)")
	f.BoolVarP(&p.follow, "follow", "f", false, "continue with events that are committed from now on")
	f.BoolVar(&p.payload, "payload", false, "show the values as well")
	addOutputFlag(cmd, &p.output)
	return cmd
}

// peeker is one run of `peek`.
type peeker struct {
	limit           int
	follow, payload bool
	output          string
	out, notes      io.Writer
	held            *checkpoint.OpenKeys // nil: no policy holds keys, or Kafka was not reached
}

func (p *peeker) run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	route, err := wire.Router(cfg)
	if err != nil {
		return exit.With(exit.Config, err)
	}
	source, err := wire.Source(wire.Fixed(cfg), log)
	if err != nil {
		return exit.With(exit.Config, err)
	}
	if err := p.readHeld(ctx, cfg); err != nil {
		fmt.Fprintf(p.notes, "the letters of held keys cannot be read, so events that follow them are not marked as HELD: %v\n", err)
	}
	st, err := source.OpenCopy(ctx)
	if err != nil {
		return withExitCode(err)
	}
	defer st.Abandon()
	reader := peek.Peek{
		Router: route, Poison: wire.PoisonPolicies(&cfg.Poison), MessagePrefix: cfg.Messages.Prefix, Slot: cfg.Postgres.Slot, Follow: p.follow, Limit: p.limit,
		WalSenderTimeout: cfg.Tuning.WALSenderTimeout, Show: p.show,
	}
	seen, err := reader.Run(ctx, st)
	if err != nil {
		return withExitCode(fmt.Errorf("after %d events, up to %s: %w", seen.Events, seen.UpTo, err))
	}
	p.summarize(cfg.Postgres.Slot, seen, ctx.Err() != nil)
	return nil
}

// withExitCode gives an error the exit code of a command that does not retry.
func withExitCode(err error) error {
	if err == nil || errors.As(err, new(*exit.Error)) { // err has an exit code
		return err
	}
	class := relay.ClassOf(err)
	if class == relay.Retry {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			switch pg.Code {
			case "42501": // insufficient_privilege
				return exit.With(exit.NoPermission, err)
			case "42P01", "42703": // undefined_table, undefined_column
				return exit.With(exit.Config, err)
			}
		}
		return exit.With(exit.Unavailable, err)
	}
	return exit.With(exitOfClass(class), err)
}

// summarize prints one line about the events that were shown.
func (p *peeker) summarize(slot string, seen peek.Summary, interrupted bool) {
	poison := ""
	if seen.Poison > 0 {
		poison = fmt.Sprintf(", %d of them poison", seen.Poison)
	}
	switch {
	case seen.Whole && seen.Events == 0:
		fmt.Fprintf(p.notes, "nothing waits in slot %s, up to %s\n", slot, seen.UpTo)
	case seen.Whole:
		fmt.Fprintf(p.notes, "%s in slot %s, up to %s%s\n", human.Count(seen.Events, "event waits", "events wait"), slot, seen.UpTo, poison)
	case interrupted:
		fmt.Fprintf(p.notes, "%s shown%s; interrupted\n", human.Count(seen.Events, "event", "events"), poison)
	default:
		fmt.Fprintf(p.notes, "%s shown%s; there may be more: --limit 0 shows all\n", human.Count(seen.Events, "event", "events"), poison)
	}
}

func (p *peeker) show(v *peek.Event) error {
	p.holds(v)
	if p.output == "json" {
		return writeJSON(p.out, p.json(v))
	}
	return written(p.out.Write(p.line(v)))
}

// written gives an error of writing the output its exit code.
func written(_ int, err error) error {
	if err != nil {
		return exit.With(exit.Fault, fmt.Errorf("write the output: %w", err))
	}
	return nil
}

// line is an event for people.
func (p *peeker) line(v *peek.Event) []byte {
	rec := v.Record
	var l line
	l.word(checkpoint.FormatHeader(v.Position, v.Origin))
	l.word(v.CommitTime.UTC().Format(timeLayout))
	if topic := topicOf(v); topic != "" {
		l.word(quoted([]byte(topic), false))
	} else {
		l.word("(no topic)")
	}
	if v.Poison != nil {
		l.word("POISON")
		l.pair("policy", []byte(v.Policy))
		l.pair("cause", []byte(v.Poison.Cause))
		l.pair("message", []byte(v.Poison.Message))
	}
	if by := p.heldBy(v); by != "" {
		l.word("HELD")
		l.pair("held_by", []byte(by))
	}
	if rec.OwnPartition {
		l.word(fmt.Sprintf("partition=%d", rec.Partition))
	}
	l.pair("id", rec.ID)
	l.record(rec.Key, rec.Value, rec.Headers, p.payload)
	return l.end()
}

// heldPatience is how long peek waits for Kafka.
const heldPatience = 15 * time.Second

// readHeld reads which keys are held.
func (p *peeker) readHeld(ctx context.Context, cfg *config.Config) (err error) {
	ctx, cancel := context.WithTimeout(ctx, heldPatience)
	defer cancel()
	p.held, err = wire.HeldKeys(ctx, cfg)
	return err
}

// holds notes the key that a poison event will hold.
func (p *peeker) holds(v *peek.Event) {
	topic := topicOf(v)
	if p.held == nil || v.Poison == nil || v.Policy != relay.HoldKey || v.Record.Key == nil || topic == "" ||
		v.Poison.Cause == router.NoRoute || v.Poison.Cause == router.IllegalTopic {
		return
	}
	p.held.Hold(topic, v.Record.Key, cmp.Or(string(v.Record.ID), v.Position.String()))
}

// heldBy is the event that holds the key of an event that follows it; "": none does.
func (p *peeker) heldBy(v *peek.Event) string {
	if by, _ := p.held.By(topicOf(v), v.Record.Key); v.Poison == nil || by != cmp.Or(string(v.Record.ID), v.Position.String()) {
		return by
	}
	return ""
}

// topicOf is the topic of an event. The topic of a poison event may be no legal name.
func topicOf(v *peek.Event) string {
	if v.Poison != nil {
		return v.Poison.Topic
	}
	return v.Record.Topic
}

// peekedJSON is an event in JSON output.
type peekedJSON struct {
	Position   string      `json:"position"`
	CommitTime string      `json:"commit_time"`
	Topic      string      `json:"topic"` // "": no topic
	Partition  *int32      `json:"partition,omitempty"`
	Timestamp  int64       `json:"timestamp_ms,omitempty"`
	ID         string      `json:"id"`
	Poison     *poisonJSON `json:"poison,omitempty"`
	HeldBy     string      `json:"held_by,omitempty"` // the event would become a letter of its held key
	recordJSON
}

type poisonJSON struct {
	Cause   string `json:"cause"`
	Message string `json:"message"`
	Policy  string `json:"policy"`
}

func (p *peeker) json(v *peek.Event) peekedJSON {
	rec := v.Record
	out := peekedJSON{
		Position: checkpoint.FormatHeader(v.Position, v.Origin), CommitTime: v.CommitTime.UTC().Format(timeLayout), Topic: topicOf(v), Timestamp: rec.Timestamp,
		ID: string(rec.ID), HeldBy: p.heldBy(v), recordJSON: newRecordJSON(rec.Key, rec.Value, rec.Headers, p.payload),
	}
	if rec.OwnPartition {
		out.Partition = &rec.Partition
	}
	if v.Poison != nil {
		out.Poison = &poisonJSON{Cause: string(v.Poison.Cause), Message: v.Poison.Message, Policy: string(v.Policy)}
	}
	return out
}

// writeJSON writes one line of JSON.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return written(0, enc.Encode(v))
}
