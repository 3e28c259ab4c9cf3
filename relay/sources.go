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

// checkColumns asks the router about the tables as they are now, before anything was delivered: a configuration that can never work
// is told at the start and not at the first row. Later the rows may be older than what the catalogs say.
func (r *Relay) checkColumns(tables []replication.TableNow) error {
	if r.delivered() {
		return nil
	}
	for i, t := range tables {
		rel := &decoder.Relation{OID: t.OID, Namespace: t.Schema, Name: t.Name, Source: i}
		for _, c := range t.Columns {
			rel.Columns = append(rel.Columns, decoder.Column(c))
		}
		if err := r.router.Fits(rel); err != nil {
			return err
		}
	}
	return nil
}

// Resolver is the part of a [Stream] that identifies the tables of a publication.
type Resolver interface {
	Resolve(ctx context.Context, rel *replication.Announced) (table int, err error)
}

// NewDecoder returns a decoder of a stream's messages. The stream identifies the table of a relation, and the router finds its columns.
// prefix is that of the logical messages that are events; "": none are.
func NewDecoder(ctx context.Context, st Resolver, r *router.Router, prefix string) *decoder.Decoder {
	var d *decoder.Decoder
	d = decoder.New(func(rel *decoder.Relation) (bool, error) {
		// Not cancelled when told to stop: the drain needs the connection.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookUpTimeout)
		defer cancel()
		table, err := st.Resolve(ctx, &replication.Announced{
			OID: rel.OID, Schema: rel.Namespace, Name: rel.Name, Columns: rel.ColumnNames(), XID: d.XID(),
		})
		if err != nil || table == replication.NotOurs {
			return false, err
		}
		rel.Source = table
		return true, r.Bind(rel)
	})
	if prefix != "" {
		d.Messages(prefix, r.MessageSource())
	}
	return d
}

// DecodeError adds the message's position to an error of the decoder, unless the look-up of a relation failed: that error is not about
// the bytes of the message.
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

// NotPublished is the error of columns that the publication lacks, once every row has been read that was written before they were removed.
func NotPublished(columns []string) error {
	return &replication.Error{
		Kind: replication.ColumnMissing, Op: "look at what the publication carries",
		Err:    fmt.Errorf("columns %s are configured but not published, and everything older has been delivered", strings.Join(columns, ", ")),
		Remedy: "set outbox.columns, or restore the columns or the publication's column list",
	}
}

// warnOfUpdates says once in a session that a table is updated.
func (s *session) warnOfUpdates(rel *decoder.Relation) {
	if s.updated[rel.OID] {
		return
	}
	if s.updated == nil {
		s.updated = map[uint32]bool{}
	}
	s.updated[rel.OID] = true
	s.r.log.Warn("skipping updates", "table", rel.String(), "because", "route.on_update is skip; said once a session, counted in the metrics",
		"remedy", "ALTER PUBLICATION … SET (publish = 'insert'), or route.on_update: poison")
}

// refusedMessage counts a message that has our prefix and belongs to no transaction, and says so once in a session. It is
// no event: it would be delivered although the work that it came from may have been rolled back.
func (s *session) refusedMessage(at pglogrepl.LSN) {
	s.r.met.notTransactional.Inc()
	if s.refusedSaid {
		return
	}
	s.refusedSaid = true
	s.r.log.Warn("skipping messages that are not transactional", "prefix", s.r.cfg.MessagePrefix, "lsn", at.String(),
		"because", "the work they come from may be rolled back; said once a session, counted in the metrics",
		"remedy", "pg_logical_emit_message(true, …), or outbox_emit")
}
