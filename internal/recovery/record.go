package recovery

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// verdict is what the position record says about the server and the slot.
type verdict struct {
	sources  string // fingerprint of the settings that number events
	identity replication.Identity
	old      *checkpoint.PositionRecord // nil: there is no readable record
	broken   error                      // why the newest record cannot be read
	wrong    error                      // why a daemon would stop; nil: it would start
	// published is what the publication sends now.
	published string
	// detached says which partition's rows may be missing, in a table that is no outbox any more; "": none is known.
	detached string
	reused   bool // the server is an older copy, so that LSNs are used again on the same timeline
}

// loadRecord reads the position record and the identity of the server. positions may be nil: there is no record then.
func loadRecord(ctx context.Context, server Server, positions Positions, sources string) (v verdict, err error) {
	v.sources = sources
	if positions != nil {
		v.old, err = positions.Load(ctx)
		if u, ok := errors.AsType[*checkpoint.Unusable](err); ok && u.Record {
			v.old, v.broken, err = nil, u.Err, nil
		}
		if err != nil {
			return v, err
		}
	}
	v.identity, err = server.Identity(ctx)
	return v, err
}

// judgeSlot finds out whether a daemon would start with its slot at start, and reads the stream if that decides.
func (v *verdict) judgeSlot(ctx context.Context, server Server, start pglogrepl.LSN) error {
	before := ""
	if v.old != nil {
		before = v.old.PublishedFor(v.sources)
	}
	altered, err := v.readPublished(ctx, server, before)
	if err != nil || v.old == nil {
		return err
	}
	v.judgeRecord(start, altered)
	acked, tx := v.old.AckedFor(v.sources)
	if v.wrong != nil || acked.IsZero() {
		return nil
	}
	other, err := server.OtherHistory(ctx, acked, tx, start)
	if other != nil {
		v.wrong, v.reused = other, true
	}
	return err
}

// judgeRecord compares the record with the slot at start.
func (v *verdict) judgeRecord(start pglogrepl.LSN, altered string) {
	v.wrong = v.old.Contradiction(v.identity, start, altered)
	v.reused = checkpoint.Holds(v.identity, v.old.Acked) && v.old.Acked.CommitLSN >= v.identity.WALEnd
}

// readPublished reads what the publication sends now, and returns how that differs from before; "": it does not, or before is "". Rows that
// are committed while the publication lacks the outbox are not in the stream.
func (v *verdict) readPublished(ctx context.Context, server Server, before string) (altered string, err error) {
	if v.published, altered, err = server.Published(ctx, before); altered != replication.PublicationAltered {
		v.detached = altered
	}
	return altered, err
}

// adoption is the record with which the next session starts at confirm.
func (v *verdict) adoption(slot string, confirm pglogrepl.LSN, now time.Time) checkpoint.PositionRecord {
	id := v.identity
	record := v.old.Adoption(slot, id.SystemID, id.Timeline, id.Major, confirm, v.published, v.sources, now)
	switch {
	case v.old == nil:
	case v.old.SystemID != id.SystemID:
		record.UpgradedFrom = v.old.SystemID
	default:
		record.UpgradedFrom = v.old.UpgradedFrom
	}
	return record
}

// Predecessors are the systems of which a position record says that their slot was this one.
func Predecessors(old *checkpoint.PositionRecord, id replication.Identity) (systems []uint64) {
	if old == nil {
		return nil
	}
	for _, system := range []uint64{old.SystemID, old.UpgradedFrom} {
		if system != 0 && system != id.SystemID {
			systems = append(systems, system)
		}
	}
	return systems
}

// PositionsReused is what follows from a restore of an older copy without a new timeline.
const PositionsReused = "New events get positions that were used before. Consumers that compare positions must forget the positions they keep."
