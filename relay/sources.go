package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// checkColumns checks the columns of the tables before anything is delivered, so that a wrong configuration fails at
// the start and not at the first row. Later, rows in the slot may be older than the catalogs.
func (r *Relay) checkColumns(tables []replication.TableNow) error {
	if r.delivered() {
		return nil
	}
	for i, t := range tables {
		rel := &decoder.Relation{OID: t.OID, Namespace: t.Schema, Name: t.Name, Source: i, TypeNames: t.Types.Names, BaseTypes: t.Types.Bases}
		for _, c := range t.Columns {
			rel.Columns = append(rel.Columns, decoder.Column(c))
		}
		if err := r.router.Fits(rel); err != nil {
			return err
		}
	}
	return nil
}

// Resolver is the part of a [Stream] that identifies the tables of a publication, and the types of their columns.
type Resolver interface {
	Resolve(ctx context.Context, rel *replication.Announced) (table int, err error)
	Types(ctx context.Context, oids []uint32) (replication.Types, error)
}

// NewDecoder returns a decoder of a stream's messages. The stream identifies the table of a relation, and the router
// finds its columns. Logical messages with the prefix are events; "": no messages are events.
func NewDecoder(ctx context.Context, st Resolver, r *router.Router, prefix string) *decoder.Decoder {
	var d *decoder.Decoder
	d = decoder.New(func(rel *decoder.Relation) (bool, error) {
		// Not cancelled on shutdown: the drain needs the connection.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookUpTimeout)
		defer cancel()
		table, err := st.Resolve(ctx, &replication.Announced{
			OID: rel.OID, Schema: rel.Namespace, Name: rel.Name, Columns: rel.ColumnNames(), XID: d.XID(),
		})
		if err != nil || table == replication.NotOurs {
			return false, err
		}
		if rel.Unattached = table == replication.Unattached; rel.Unattached {
			return true, nil
		}
		types, err := st.Types(ctx, rel.Types())
		if err != nil {
			return false, err
		}
		rel.Source, rel.TypeNames, rel.BaseTypes = table, types.Names, types.Bases
		return true, r.Bind(rel)
	})
	if prefix != "" {
		d.Messages(prefix, r.MessageSource())
	}
	return d
}

// DecodeError adds the message's position to an error of the decoder. It does not if the look-up of a relation
// failed: that error is not about the bytes of the message.
func DecodeError(at pglogrepl.LSN, err error) error {
	if missing, ok := errors.AsType[*router.MissingColumnError](err); ok {
		return missing
	}
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		return pg
	}
	return fmt.Errorf("decode message at %s: %w", at, err)
}

// PositionOf returns the identity of an event.
func PositionOf(id replication.Identity, ev *decoder.Event) checkpoint.Position {
	return checkpoint.Position{
		SystemID: id.SystemID, Timeline: id.TimelineOf(ev.Begin.CommitLSN), CommitLSN: ev.Begin.CommitLSN, Ordinal: ev.Ordinal,
	}
}

// OriginOf returns the origin of the events of a slot, without an epoch.
func OriginOf(id replication.Identity, slot string) checkpoint.Origin {
	if slot == "" || id.Database == 0 {
		return checkpoint.Origin{}
	}
	return checkpoint.Origin{Database: id.Database, Slot: slot}
}

// origin returns the origin of the events of a transaction. Without a position record the epoch is 0, which means
// that it is not known.
func (s *session) origin(commit pglogrepl.LSN) checkpoint.Origin {
	o := OriginOf(s.stream.Identity(), s.r.cfg.Slot)
	if !o.IsZero() && s.rule.RecordsRequired() {
		o.Epoch = s.position.record.EpochOf(commit)
	}
	return o
}

// NotPublished returns the error of columns that the publication lacks, after every row from before their removal has
// been read.
func NotPublished(columns []string) error {
	return &replication.Error{
		Kind: replication.ColumnMissing, Op: "check the published columns",
		Err:    fmt.Errorf("columns %s are configured but not published, and everything older has been delivered", strings.Join(columns, ", ")),
		Remedy: "set outbox.columns, or restore the columns or the publication's column list",
	}
}

// skipRow skips a row that is no event. It logs the first one of a table in a session.
func (s *session) skipRow(ctx context.Context, ev *decoder.Event) error {
	rel := ev.Relation
	first := !s.skipLogged[rel.OID]
	if first {
		if s.skipLogged == nil {
			s.skipLogged = map[uint32]bool{}
		}
		s.skipLogged[rel.OID] = true
	}
	switch {
	case first && rel.Unattached:
		s.r.log.Warn("skipping rows of a table that was not attached to the outbox when they were written", "table", rel.String(),
			"because", "they are no events (docs/sources.md); logged once per session and table, counted in the metrics")
	case first:
		s.r.log.Warn("skipping updates", "table", rel.String(), "because", "poison.causes has no policy for the cause update; logged once per session and table, counted in the metrics",
			"remedy", "ALTER PUBLICATION … SET (publish = 'insert'), or poison.causes: {update: stop}")
	}
	if rel.Unattached {
		return s.skip(ctx, s.r.met.unattached)
	}
	return s.skip(ctx, s.r.met.updateSkipped)
}

// refusedMessage counts a message that has our prefix and is not transactional, and logs the first one of a session.
// Such a message is no event: the transaction that emitted it may have been rolled back.
func (s *session) refusedMessage(at pglogrepl.LSN) {
	s.r.met.notTransactional.Inc()
	if s.refusalLogged {
		return
	}
	s.refusalLogged = true
	s.r.log.Warn("skipping messages that are not transactional", "prefix", s.r.cfg.MessagePrefix, "lsn", at.String(),
		"because", "the transactions that emit them may be rolled back; logged once per session, counted in the metrics",
		"remedy", "pg_logical_emit_message(true, …), or outbox_emit")
}
