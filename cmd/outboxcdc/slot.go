package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/kafka"
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
		Long: "Accept the slot's present position. With delivery.mode deduplicated the daemon stops with exit code 79 when the slot and the\n" +
			"position record contradict each other: the slot was recreated or advanced, or this is another server, or an older copy of it.\n" +
			"Usually run outboxcdc recover instead: it also delivers the events that Kafka lacks. This command only writes a position record\n" +
			"that agrees with the slot. The slot is not moved. The next start sends everything that the slot has, including events that are\n" +
			"in Kafka already. It refuses while the slot is active or missing (docs/delivery.md).\n\n" +
			"After an upgrade with pg_upgrade from PostgreSQL 17 or later, give --upgraded-from with the system identifier of the old server. Then the\n" +
			"command also refuses if the position record is of another server, if the old server was too old for pg_upgrade to keep the slot, or\n" +
			"if the slot lies before what was confirmed on the old server (docs/upgrade.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			if !cfg.Deduplicated() {
				return exit.With(exit.Config, errors.New("delivery.mode is at_least_once, which keeps no position record, so there is nothing to adopt; "+
					"if the daemon runs with deduplicated, give this command the same settings"))
			}
			if cmd.Flags().Changed("upgraded-from") {
				if a.upgradedFrom, err = strconv.ParseUint(upgraded, 10, 64); err != nil || a.upgradedFrom == 0 {
					return usageError(fmt.Errorf("--upgraded-from %s: write the system identifier of the old server, such as 7412345678901234567", upgraded))
				}
			}
			if err := a.run(cmd.Context(), cfg); err != nil {
				return withExitCode(err)
			}
			return a.print(cmd.OutOrStdout(), output)
		},
	}
	cmd.Flags().StringVar(&upgraded, "upgraded-from", "", "system identifier of the server from before pg_upgrade; the message of exit code 79 has it")
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "print what would be written, and write nothing")
	addOutputFlag(cmd, &output)
	return cmd
}

// adoptTimeout bounds one run. It leaves time for the election of a leader of the position topic.
const adoptTimeout = time.Minute

// adopter is one run of `slot adopt`.
type adopter struct {
	dryRun       bool
	upgradedFrom uint64                   // the system from before pg_upgrade; 0: another reason
	onlyIfWrong  bool                     // write nothing if the daemon would start as it is
	other        *checkpoint.HistoryError // why the daemon stops when it reads the stream; nil: it does not, or it is not known

	source  *replication.Source
	slot    string
	topic   string
	events  string                     // fingerprint of the settings that number events
	old     *checkpoint.PositionRecord // nil: there is no readable record
	broken  error                      // why the newest record cannot be read
	wrong   error                      // why the daemon stops; nil: the daemon would start
	new     checkpoint.PositionRecord
	written bool
	// detached says which partition's rows may be missing, in a table that is no outbox any more; "": none is known.
	detached string
	reused   bool // the server is an older copy, so that LSNs are used again on the same timeline
}

func (a *adopter) run(ctx context.Context, cfg *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	a.slot, a.topic, a.events = cfg.Postgres.Slot, cfg.Delivery.PositionTopic, cfg.EventSources()
	quiet := slog.New(slog.DiscardHandler) // the command returns errors instead of logging them
	var err error
	if a.source, err = newSource(fixed(cfg), quiet); err != nil {
		return exit.With(exit.Config, err)
	}
	cluster, err := newCluster(fixed(cfg), prometheus.NewRegistry(), quiet)
	if err != nil {
		return exit.With(exit.Config, err)
	}
	session, err := cluster.Open(ctx, kafka.Callbacks{Acked: func([]uint64) {}, Failed: func(error) {}, Wake: func() {}})
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = session.Close(ctx) // nothing is in flight
	}()
	if err := a.read(ctx, session); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	if a.dryRun || a.onlyIfWrong && a.wrong == nil && a.broken == nil {
		return nil
	}
	if a.onlyIfWrong && a.detached != "" {
		return exit.With(exit.Fault, fmt.Errorf("%s; recover does not read that partition: attach it again and run recover, "+
			"or continue without its rows with outboxcdc slot adopt", a.detached))
	}
	a.written = true
	return a.write(ctx, session)
}

// read reads the position record and then the slot, which may change at any time.
func (a *adopter) read(ctx context.Context, session *kafka.Producer) error {
	var err error
	a.old, err = session.LoadPosition(ctx)
	if u, ok := errors.AsType[*checkpoint.Unusable](err); ok && u.Record {
		a.broken, err = u.Err, nil
	}
	if err != nil {
		return err
	}
	slot, id, err := a.source.SlotStatus(ctx)
	if err != nil {
		return err
	}
	if slot.Active {
		return exit.With(exit.Fault, activeError(a.slot, slot))
	}
	if err := a.checkUpgraded(id, slot.ConfirmedFlush); err != nil {
		return err
	}
	// Rows that are committed while the publication lacks the outbox are not in the stream. An adoption at that time
	// would hide them.
	before := ""
	if a.old != nil && a.broken == nil && a.upgradedFrom == 0 { // pg_upgrade writes the catalogs again
		before = a.old.PublishedFor(a.events)
	}
	published, altered, err := a.source.Published(ctx, before)
	if err != nil {
		return err
	}
	if altered != replication.PublicationAltered {
		a.detached = altered
	}
	if a.old != nil && a.broken == nil {
		a.wrong = a.old.Contradiction(id, slot.ConfirmedFlush, altered)
		if a.wrong == nil && a.other != nil {
			a.wrong = a.other
		}
		a.reused = a.other != nil || checkpoint.Holds(id, a.old.Acked) && a.old.Acked.CommitLSN >= id.WALEnd
	}
	a.new = a.old.Adoption(a.slot, id.SystemID, id.Timeline, id.Major, slot.ConfirmedFlush, published, a.events, time.Now())
	a.new.UpgradedFrom = a.upgradedFrom
	return nil
}

// checkUpgraded returns an error if the slot cannot be the one that pg_upgrade has created on this server.
func (a *adopter) checkUpgraded(id replication.Identity, start pglogrepl.LSN) error {
	switch {
	case a.upgradedFrom == 0:
		return nil
	case a.broken != nil:
		return exit.With(exit.Fault, fmt.Errorf("the position record of the old server is needed, and cannot be read: %w; run outboxcdc recover", a.broken))
	case a.old == nil:
		return exit.With(exit.Fault, fmt.Errorf("topic %s has no position record of slot %s: nothing says what was delivered on system %d; run outboxcdc recover",
			a.topic, a.slot, a.upgradedFrom))
	}
	if err := a.old.Upgraded(a.upgradedFrom, id, start); err != nil {
		return exit.With(exit.Fault, err)
	}
	return nil
}

// activeError says which client holds the slot.
func activeError(name string, slot *replication.Slot) error {
	return fmt.Errorf("slot %s is active for PID %d (application %q); stop that client first", name, slot.ActivePID, slot.ActiveName)
}

func (a *adopter) write(ctx context.Context, session *kafka.Producer) error {
	saved := make(chan error, 1)
	session.SavePosition(a.new, func(err error) { saved <- err })
	select {
	case err := <-saved:
		if err != nil {
			return fmt.Errorf("write the position record: %w", err)
		}
	case <-ctx.Done():
		return fmt.Errorf("write the position record to topic %s: no acknowledgement, but Kafka may have stored the record: %w", a.topic, context.Cause(ctx))
	}
	// A daemon that was started meanwhile has read the old record.
	slot, err := a.source.Look(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the position record is written, but the slot cannot be read: %w", err)
	case slot.Active:
		err = activeError(a.slot, slot)
	case slot.ConfirmedFlush != a.new.Confirm:
		err = fmt.Errorf("slot %s was moved to %s meanwhile", a.slot, slot.ConfirmedFlush)
	default:
		return nil
	}
	return exit.With(exit.Fault, fmt.Errorf("the position record is written, but the slot was in use: %w; run this again", err))
}

func (a *adopter) print(w io.Writer, output string) error {
	if output == "text" {
		_, err := io.WriteString(w, a.text())
		return err
	}
	out := struct {
		Slot          string          `json:"slot"`
		PositionTopic string          `json:"position_topic"`
		Old           json.RawMessage `json:"old"` // null: there is no readable record
		Unreadable    string          `json:"unreadable,omitempty"`
		Contradiction string          `json:"contradiction,omitempty"`
		New           json.RawMessage `json:"new"`
		Written       bool            `json:"written"`
	}{Slot: a.slot, PositionTopic: a.topic, Written: !a.dryRun}
	var err error
	if a.old != nil {
		if out.Old, err = a.old.MarshalText(); err != nil {
			return err
		}
	}
	if out.New, err = a.new.MarshalText(); err != nil {
		return err
	}
	if a.broken != nil {
		out.Unreadable = a.broken.Error()
	}
	if a.wrong != nil {
		out.Contradiction = withoutRemedy(a.wrong)
	}
	return printAs(w, output, out, "")
}

// text is the result for people.
func (a *adopter) text() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("slot %s is at %s, on system %d, timeline %d; no client reads from it", a.slot, a.new.Confirm, a.new.SystemID, a.new.Timeline)
	switch {
	case a.broken != nil:
		say("its newest position record in %s cannot be read: %v", a.topic, a.broken)
	case a.old == nil:
		say("it has no position record in %s: without this command, too, the next start would continue from the slot", a.topic)
	default:
		a.describe(say)
	}
	verb := "wrote"
	if a.dryRun {
		verb = "would write"
	}
	say("%s to %s: continue from %s, on system %d, timeline %d (record %d, adopted)",
		verb, a.topic, a.new.Confirm, a.new.SystemID, a.new.Timeline, a.new.Generation)
	say("what this means:")
	if a.upgradedFrom != 0 {
		say("  The next start begins at %s, which is where pg_upgrade has created the slot. pg_upgrade does so only if the slot of system %d\n"+
			"  had consumed everything. It does not do so for a slot that was dropped before, or created by hand afterwards: then run\n"+
			"  outboxcdc recover instead.", a.new.Confirm, a.upgradedFrom)
		if a.dryRun {
			say("nothing was changed")
		}
		return b.String()
	}
	say("  The next start begins at %s. It does not deliver events that were committed before that position:\n"+
		"  outboxcdc recover delivers those that Kafka lacks.", a.new.Confirm)
	say("  It skips nothing: events that Kafka already has are sent again, with the same position. Later starts skip what Kafka has.")
	if a.reused {
		say("  %s", positionsReused)
	}
	if a.dryRun {
		say("nothing was changed")
	}
	return b.String()
}

// positionsReused is what follows from a restore of an older copy without a new timeline.
const positionsReused = "New events get positions that were used before. Consumers that compare positions must forget the positions they keep."

func (a *adopter) describe(say func(string, ...any)) {
	o := a.old
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
	if a.wrong == nil {
		say("  the record does not contradict the slot: without this command the next start skips events that Kafka has")
		return
	}
	say("  the daemon does not continue from it: %s", withoutRemedy(a.wrong))
	if o.SystemID == a.new.SystemID && o.Confirm < a.new.Confirm {
		say("  events may be missing that were committed from %s to %s (%d bytes of WAL, all tables): run outboxcdc recover", o.Confirm, a.new.Confirm, a.new.Confirm-o.Confirm)
	}
}

// withoutRemedy is the text of err without the remedy, which is this command.
func withoutRemedy(err error) string {
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		return pg.Err.Error()
	}
	return err.Error()
}
