package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// Adoption is one run of `slot adopt`: the operator accepts the position of the slot. It also ends a recovery that
// has not finished.
type Adoption struct {
	Server    Server
	Positions Positions // nil: delivery is at least once, which has no position records
	Slot      string
	Topic     string // the position topic
	Sources   string // fingerprint of the settings that number events
	DryRun    bool
	// UpgradedFrom is the system from before pg_upgrade; 0: there is another reason.
	UpgradedFrom uint64
}

// Adopted is what an adoption has read and written.
type Adopted struct {
	Old     *checkpoint.PositionRecord // nil: there is no readable record
	Broken  error                      // why the newest record cannot be read
	Wrong   error                      // why a daemon would stop; nil: it would start
	New     checkpoint.PositionRecord  // zero if delivery is at least once
	Confirm pglogrepl.LSN              // the slot's position
	// Unfinished is whether a recovery had not finished, which this run ends.
	Unfinished bool
}

// Run adopts.
func (a *Adoption) Run(ctx context.Context) (*Adopted, error) {
	s, err := a.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	out := &Adopted{Old: s.old, Broken: s.broken, Wrong: s.wrong, Unfinished: s.recovery != nil, Confirm: s.base().ConfirmedFlush}
	if a.Positions != nil {
		out.New = s.adoption(a.Slot, out.Confirm, time.Now())
		if a.UpgradedFrom != 0 {
			out.New.UpgradedFrom = a.UpgradedFrom
		}
	}
	if a.DryRun {
		return out, nil
	}
	if a.Positions != nil {
		if err := a.Positions.Save(ctx, out.New); err != nil {
			return nil, fmt.Errorf("write the position record: %w", err)
		}
	}
	// A daemon that was started meanwhile has read the old record.
	if err := stillThere(ctx, a.Server, a.Slot, s); err != nil {
		return nil, fmt.Errorf("the position record is written, but %w", err)
	}
	return out, release(ctx, a.Server, s)
}

// look reads the position record and then the slots, which may change at any time.
func (a *Adoption) look(ctx context.Context) (*state, error) {
	s := &state{}
	var err error
	if s.verdict, err = loadRecord(ctx, a.Server, a.Positions, a.Sources); err != nil {
		return nil, err
	}
	if s.daemon, s.recovery, err = a.Server.Slots(ctx); err != nil {
		return nil, err
	}
	base := s.base()
	switch {
	case base == nil:
		return nil, exit.With(exit.Lost, fmt.Errorf("slot %s is %s: run outboxcdc recover, which creates it and delivers what is missing", a.Slot, problem(s.daemon)))
	case base.Active:
		return nil, exit.With(exit.Fault, ActiveError(a.Slot, base))
	case a.Positions == nil && s.recovery == nil:
		return nil, exit.With(exit.Config, errors.New("delivery.mode is at_least_once, which keeps no position record, and no recovery is unfinished, so there is nothing to adopt; "+
			"if the daemon runs with deduplicated, give this command the same settings"))
	}
	if err := a.checkUpgraded(s, base.ConfirmedFlush); err != nil || a.Positions == nil {
		return s, err
	}
	before := s.publishedBefore()
	if a.UpgradedFrom != 0 { // pg_upgrade writes the catalogs again
		before = ""
	}
	altered, err := s.readPublished(ctx, a.Server, before)
	if err == nil && s.old != nil && s.broken == nil {
		s.wrong = s.old.Contradiction(s.identity, base.ConfirmedFlush, altered)
	}
	return s, err
}

// checkUpgraded returns an error if the slot cannot be the one that pg_upgrade has created on this server.
func (a *Adoption) checkUpgraded(s *state, start pglogrepl.LSN) error {
	switch {
	case a.UpgradedFrom == 0:
		return nil
	case s.broken != nil:
		return exit.With(exit.Fault, fmt.Errorf("the position record of the old server is needed, and cannot be read: %w; run outboxcdc recover", s.broken))
	case s.old == nil:
		return exit.With(exit.Fault, fmt.Errorf("topic %s has no position record of slot %s: nothing says what was delivered on system %d; run outboxcdc recover",
			a.Topic, a.Slot, a.UpgradedFrom))
	case s.recovery != nil:
		return exit.With(exit.Fault, fmt.Errorf("a recovery has not finished (slot %s): %s", s.recovery.Name, advice.RecoverAgain))
	}
	if err := s.old.Upgraded(a.UpgradedFrom, s.identity, start); err != nil {
		return exit.With(exit.Fault, err)
	}
	return nil
}
