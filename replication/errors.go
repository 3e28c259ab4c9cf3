package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// Kind classifies an error. A table in package relay decides what happens for each kind.
type Kind int

// The kinds.
const (
	Unavailable        Kind = iota // connection lost or refused, server starting up, shutting down or in recovery
	Credentials                    // the server refused the user, the password or our certificate, or we refused its certificate
	PrivilegeMissing               // REPLICATION, CONNECT or another privilege is missing
	Unsuitable                     // wal_level, version or slot cannot work with this configuration
	SlotActive                     // another connection holds the slot
	SlotMissing                    // no slot of that name
	SlotLost                       // the slot is invalidated, or the server has removed WAL that it needs
	RecoveryUnfinished             // a recovery of the slot has not finished: its RecoverySlot exists
	PublicationMissing             // no publication of that name
	PublicationChanged             // the publication no longer publishes all rows of our tables, or was altered
	ColumnMissing                  // a column that the configuration names is not published
	RelationMismatch               // name and OID of a relation message do not both belong to the outbox
	OtherHistory                   // another cluster, or another history, than this process delivered from
	SynchronousStandby             // synchronous_standby_names makes commits wait for us
	CannotSend                     // the server failed to decode or print the next transaction, and may fail each time
	Protocol                       // unknown message or warning
)

var kindNames = [...]string{
	"unavailable", "credentials", "missing_right", "unsuitable", "slot_active", "slot_missing", "slot_lost", "recovery_unfinished",
	"publication_missing", "publication_changed", "column_missing", "relation_mismatch", "other_history",
	"synchronous_standby", "cannot_send", "protocol",
}

// String returns the kind as a label value.
func (k Kind) String() string { return kindNames[k] }

// Error is the type of all errors of this package.
type Error struct {
	Kind     Kind
	Op       string // what was attempted
	SQLSTATE string // "" if the error is not the server's
	Err      error
	Remedy   string // "" if only waiting helps
}

func (e *Error) Error() string {
	s := e.Op + ": " + e.Err.Error()
	if hint := Hint(e.Err); hint != "" {
		s += "; hint of the server: " + hint
	}
	if e.Remedy != "" {
		s += "; remedy: " + e.Remedy
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of err; an error without a kind is Unavailable, so that it is retried.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unavailable
}

func fail(kind Kind, op, remedy, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Remedy: remedy, Err: fmt.Errorf(format, args...)}
}

// PoolerRemedy is the remedy for an address that is not the server's own.
const PoolerRemedy = "let postgres.url name the server itself: connection poolers such as PgBouncer, and some proxies, refuse the daemon's startup parameters " +
	"or replication connections"

// RefusedByPooler reports whether a connection pooler has refused the connection: it does not know a startup
// parameter that every server knows.
func RefusedByPooler(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "08P01" && (strings.Contains(pg.Message, "unsupported startup parameter") || strings.Contains(pg.Message, "bouncer config error"))
}

// insufficientPrivilege is the SQLSTATE of a missing privilege.
const insufficientPrivilege = "42501"

// LacksPrivilege reports whether the server refused a statement or a connection because a privilege is missing.
func LacksPrivilege(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == insufficientPrivilege
}

// Hint returns the hint that the server has added to its error, or "".
func Hint(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Hint
	}
	return ""
}

// PluginRefused reports whether the server does not load the output plugin, because output_plugin_libraries does not
// name it. The minor releases of August 2026 introduced that setting. Its SQLSTATE is that of a missing privilege,
// and its text is translated.
func PluginRefused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == insufficientPrivilege && pg.Routine == "StartupDecodingContext"
}

// PluginRemedy is the remedy if [PluginRefused].
const PluginRemedy = "add pgoutput to the server's setting output_plugin_libraries (ALTER SYSTEM SET output_plugin_libraries = pgoutput, <what it names now>), " +
	"and reload the configuration (SELECT pg_reload_conf())"

// phase is when the server sent an error: the meaning of a SQLSTATE depends on it.
type phase int

const (
	connecting phase = iota // opening a connection
	inspecting              // SQL over the ordinary connection
	starting                // START_REPLICATION
	streaming               // after START_REPLICATION was accepted
)

// classify turns an error of pgconn, or of the network, into an *Error by SQLSTATE and phase (PostgreSQL, Appendix A,
// "PostgreSQL Error Codes").
func classify(op string, ph phase, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	out := &Error{Kind: Unavailable, Op: op, Err: ConnectError(err)}
	switch {
	case errors.Is(err, errStandby):
		out.Remedy = standbyRemedy
	case isCertificateError(err):
		out.Kind, out.Remedy = Credentials, "check the host, sslrootcert, sslcert and sslkey in postgres.url, and the server's certificate; they are read again at each attempt"
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return out
	}
	out.SQLSTATE = pg.Code
	switch pg.Code {
	case "28P01", "28000": // invalid_password, invalid_authorization_specification
		out.Kind, out.Remedy = Credentials, "check user, password and pg_hba.conf"
	case insufficientPrivilege:
		if PluginRefused(pg) {
			out.Kind, out.Remedy = PrivilegeMissing, PluginRemedy
			break
		}
		out.Kind, out.Remedy = PrivilegeMissing, "the role needs REPLICATION, CONNECT and SELECT on the outbox: see outboxcdc setup sql"
	case "08P01": // protocol_violation
		if ph == connecting && RefusedByPooler(err) {
			out.Remedy = PoolerRemedy
		}
	case "55006": // object_in_use
		out.Kind = SlotActive
	case "42704": // undefined_object: the slot when starting, the publication when streaming
		if ph == streaming {
			out = notYetPublished(op, pg.Code, err)
		} else {
			out.Kind, out.Remedy = SlotMissing, slotRemedy
		}
	case "55000": // object_not_in_prerequisite_state: an invalidated slot, or wal_level
		if ph == starting {
			out.Kind, out.Remedy = SlotLost, slotRemedy
		}
	case "58P01": // undefined_file: a WAL segment was removed, or the library of a type is missing
		if removed := pg.Routine == "WalSndSegmentOpen" || pg.Routine == "CheckXLogRemoved"; removed && (ph == starting || ph == streaming) {
			out.Kind, out.Remedy = SlotLost, slotRemedy
		} else if ph == streaming {
			out.Kind = CannotSend
		}
	default:
		// data_exception, insufficient_resources, program_limit_exceeded, internal_error
		if ph == streaming && slices.Contains([]string{"22", "53", "54", "XX"}, pg.Code[:min(2, len(pg.Code))]) {
			out.Kind = CannotSend
		}
	}
	return out
}

const (
	slotRemedy = "events committed since may not have been delivered: " + advice.Recover +
		" (the first slot is created by outboxcdc setup apply). The daemon never creates a slot, because a new slot silently skips those events"
	publicationRemedy = "events committed while the publication did not carry the outbox are not in the stream: " +
		"restore the publication (outboxcdc setup sql shows it), then " + advice.Recover
)

// notYetPublished is the error of a walsender that does not find the publication, although it existed when the
// session began: the walsender reads the catalogs as of the transaction that it decodes.
func notYetPublished(op, code string, err error) *Error {
	return &Error{
		Kind: PublicationMissing, Op: op, SQLSTATE: code,
		Err: fmt.Errorf("%w: it was created, or dropped and created again, after the position that the slot has reached", err),
		Remedy: "set postgres.publication to the publication that existed before, and change it once the slot has passed the new one's creation " +
			"(docs/debezium.md); if there was none, restore the publication (outboxcdc setup sql shows it), " + advice.DropAndRecover,
	}
}

// isTimeout reports whether a read ended at its deadline.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout() && !errors.Is(err, context.DeadlineExceeded)
}
