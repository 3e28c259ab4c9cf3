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
	// old is the record, nil: there is no readable one. If the newest one cannot be read, it is of the earlier ones:
	// nothing is decided by it, but the next record continues its generation and epoch.
	old    *checkpoint.PositionRecord
	broken error // why the newest record cannot be read
	wrong  error // why a daemon would stop; nil: it would start
	other  error // why the stream is not of the history of the record; nil: it is, as far as that is known
	// published is what the publication sends now.
	published string
	// detached says which partition's rows may be missing, in a table that is no outbox any more; "": none is known.
	detached string
}

// loadRecord reads the position record and the identity of the server. positions may be nil: there is no record then.
func loadRecord(ctx context.Context, server Server, positions Positions, sources string) (v verdict, err error) {
	v.sources = sources
	if positions != nil {
		v.old, err = positions.Load(ctx)
		if u, ok := errors.AsType[*checkpoint.Unusable](err); ok && u.Record {
			v.broken, err = u.Err, nil
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
	altered, err := v.readPublished(ctx, server, v.publishedBefore())
	if err != nil || v.old == nil || v.broken != nil {
		return err
	}
	v.wrong = v.old.Contradiction(v.identity, start, altered)
	acked, tx := v.old.AckedFor(v.sources)
	if v.wrong != nil || acked.IsZero() {
		return nil
	}
	other, err := server.OtherHistory(ctx, acked, tx, start)
	if other != nil {
		v.wrong, v.other = other, other
	}
	return err
}

// publishedBefore is what the publication sent according to the record; "": that is not known.
func (v *verdict) publishedBefore() string {
	if v.old == nil || v.broken != nil {
		return ""
	}
	return v.old.PublishedFor(v.sources)
}

// readPublished reads what the publication sends now, and returns how that differs from before; "": it does not, or
// before is "". Rows that are committed while the publication lacks the outbox are not in the stream.
func (v *verdict) readPublished(ctx context.Context, server Server, before string) (altered string, err error) {
	published, since, err := server.Published(ctx, before)
	if v.published = published; since.Detached {
		v.detached = since.Why
	}
	return since.Why, err
}

// adoption is the record with which the next session starts at confirm.
func (v *verdict) adoption(slot string, confirm pglogrepl.LSN, now time.Time) checkpoint.PositionRecord {
	id := v.identity
	return v.old.Adoption(slot, id.SystemID, id.Timeline, id.Major, confirm, v.published, v.sources, now)
}
