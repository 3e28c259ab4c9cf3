package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/replication"
)

// newSlotCommand is the command `slot adopt`, by which an operator accepts a slot that contradicts the position record.
func newSlotCommand(load func() (*config.Config, error)) *cobra.Command {
	return group(&cobra.Command{
		Use:   "slot",
		Short: "Decide about the slot and its position record",
	}, newSlotAdoptCommand(load))
}

func newSlotAdoptCommand(load func() (*config.Config, error)) *cobra.Command {
	a := &adopter{}
	var output, upgraded string
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Accept the slot's present position after exit code 79",
		Long: "Accept the slot's present position. With delivery.mode deduplicated the daemon stops with exit code 79 when the slot\n" +
			"and the position record contradict each other: the slot was recreated or advanced, or this is another server, or an\n" +
			"older copy of it. Usually run outboxcdc recover instead: it also delivers the events that Kafka lacks. This command\n" +
			"only writes a position record that agrees with the slot. The slot is not moved. The next start sends everything that\n" +
			"the slot has, including events that are in Kafka already. It refuses while the slot is active or missing\n" +
			"(docs/delivery.md). It also ends a recovery that has not finished, and leaves the rows behind that the recovery has\n" +
			"not sent.\n\n" +
			"After an upgrade with pg_upgrade from PostgreSQL 17 or later, give --upgraded-from with the system identifier of the\n" +
			"old server. Then the command also refuses if the position record is of another server, if the old server was too old\n" +
			"for pg_upgrade to keep the slot, or if the slot lies before what was confirmed on the old server (docs/upgrade.md).",
		Args: noArgs,
		RunE: withConfig(load, func(cmd *cobra.Command, cfg *config.Config) error {
			if cmd.Flags().Changed("upgraded-from") {
				var err error
				if a.upgradedFrom, err = strconv.ParseUint(upgraded, 10, 64); err != nil || a.upgradedFrom == 0 {
					return usageError(fmt.Errorf("--upgraded-from %s: write the system identifier of the old server, such as 7412345678901234567", upgraded))
				}
			}
			if err := a.run(cmd.Context(), cfg); err != nil {
				return withExitCode(err)
			}
			return a.print(cmd.OutOrStdout(), output)
		}),
	}
	cmd.Flags().StringVar(&upgraded, "upgraded-from", "", "system identifier of the server from before pg_upgrade; the message of exit code 79 has it")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "print what would be written, and write nothing")
	addOutputFlag(cmd, &output)
	return cmd
}

// adopter is one run of `slot adopt`.
type adopter struct {
	dryRun       bool
	upgradedFrom uint64 // the system from before pg_upgrade; 0: another reason
	slot, topic  string
	deduplicated bool
	*recovery.Adopted
}

func (a *adopter) run(ctx context.Context, cfg *config.Config) error {
	a.slot, a.topic, a.deduplicated = cfg.Postgres.Slot, cfg.Delivery.PositionTopic, cfg.Deduplicated()
	if err := checkOnePrimary(ctx, cfg); err != nil {
		return err
	}
	t, err := wire.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.Lock(ctx); err != nil {
		return err
	}
	run := t.Adoption()
	run.DryRun, run.UpgradedFrom = a.dryRun, a.upgradedFrom
	a.Adopted, err = run.Run(ctx)
	return err
}

func (a *adopter) print(w io.Writer, output string) error {
	out := struct {
		Slot          string          `json:"slot"`
		PositionTopic string          `json:"position_topic"`
		Old           json.RawMessage `json:"old"` // null: there is no readable record
		Unreadable    string          `json:"unreadable,omitempty"`
		Contradiction string          `json:"contradiction,omitempty"`
		Unfinished    bool            `json:"unfinished_recovery,omitempty"`
		New           json.RawMessage `json:"new"` // null: delivery is at least once
		Written       bool            `json:"written"`
	}{Slot: a.slot, PositionTopic: a.topic, Unfinished: a.Unfinished, Written: !a.dryRun}
	var err error
	if a.Old != nil {
		if out.Old, err = a.Old.MarshalText(); err != nil {
			return err
		}
	}
	if a.deduplicated {
		if out.New, err = a.New.MarshalText(); err != nil {
			return err
		}
	}
	if a.Broken != nil {
		out.Unreadable = a.Broken.Error()
	}
	if a.Wrong != nil {
		out.Contradiction = withoutRemedy(a.Wrong)
	}
	return printAs(w, output, out, a.text())
}

// text is the result for people.
func (a *adopter) text() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if a.Unfinished {
		would := "ended"
		if a.dryRun {
			would = "would end"
		}
		say("%s a recovery that had not finished: rows that it had not sent are left behind", would)
	}
	if a.deduplicated {
		a.recordText(say)
	} else {
		say("slot %s is at %s; delivery.mode is at_least_once, which has no position record", a.slot, a.Confirm)
	}
	if a.dryRun {
		say("nothing was changed")
	}
	return b.String()
}

// recordText says what was written and what that means.
func (a *adopter) recordText(say func(string, ...any)) {
	say("slot %s is at %s, on system %d, timeline %d; no client reads from it", a.slot, a.New.Confirm, a.New.SystemID, a.New.Timeline)
	switch {
	case a.Broken != nil:
		say("its newest position record in %s cannot be read: %v", a.topic, a.Broken)
	case a.Old == nil:
		say("it has no position record in %s: without this command, too, the next start would continue from the slot", a.topic)
	default:
		a.describe(say)
	}
	verb := "wrote"
	if a.dryRun {
		verb = "would write"
	}
	say("%s to %s: continue from %s, on system %d, timeline %d (record %d, adopted)",
		verb, a.topic, a.New.Confirm, a.New.SystemID, a.New.Timeline, a.New.Generation)
	say("what this means:")
	if a.upgradedFrom != 0 {
		say("  The next start begins at %s, which is where pg_upgrade has created the slot. pg_upgrade does so only if the slot of system %d\n"+
			"  had consumed everything. It does not do so for a slot that was dropped before, or created by hand afterwards: then run\n"+
			"  outboxcdc recover instead.", a.New.Confirm, a.upgradedFrom)
		return
	}
	say("  The next start begins at %s. It does not deliver events that were committed before that position:\n"+
		"  outboxcdc recover delivers those that Kafka lacks.", a.New.Confirm)
	say("  It skips nothing: events that Kafka already has are sent again, with the same id and a position of a new epoch, which consumers that\n" +
		"  compare positions take for new. Later starts skip what Kafka has.")
}

func (a *adopter) describe(say func(string, ...any)) {
	o := a.Old
	end := "has not ended cleanly"
	switch {
	case o.Adopted:
		end = "is an adoption"
	case o.Clean:
		end = "ended cleanly"
	}
	say("its position record in %s, number %d of %s, %s:", a.topic, o.Generation, o.At.Format(time.RFC3339), end)
	say("  system %d, timeline %d; outboxcdc confirmed %s at most", o.SystemID, o.Timeline, o.Confirm)
	if !o.Acked.IsZero() {
		say("  Kafka has everything up to the transaction committed at %s, timeline %d", o.Acked.CommitLSN, o.Acked.Timeline)
	}
	if a.Wrong == nil {
		say("  the record does not contradict the slot: without this command the next start skips events that Kafka has")
		return
	}
	say("  the daemon does not continue from it: %s", withoutRemedy(a.Wrong))
	if o.SystemID == a.New.SystemID && o.Confirm < a.New.Confirm {
		say("  events may be missing that were committed from %s to %s (%d bytes of WAL, all tables): run outboxcdc recover", o.Confirm, a.New.Confirm, a.New.Confirm-o.Confirm)
	}
}

// withoutRemedy is the text of err without the remedy, which is this command.
func withoutRemedy(err error) string {
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		return pg.Err.Error()
	}
	return err.Error()
}
