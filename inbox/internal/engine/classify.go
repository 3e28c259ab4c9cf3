package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// transientError is an error that may pass: the same batch is tried again.
type transientError struct{ err error }

// conflictError is an error that is over when the other transaction is.
type conflictError struct{ err error }

func (e *conflictError) Error() string { return e.err.Error() }
func (e *conflictError) Unwrap() error { return e.err }

func (e *transientError) Error() string { return e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

// IsTransient reports whether err may pass.
func IsTransient(err error) bool { return isTransient(err) }

func isTransient(err error) bool {
	var transient *transientError
	return errors.As(err, &transient)
}

// moduleError is an error of the module's own statements that does not pass: no record is to blame.
type moduleError struct{ err error }

func (e *moduleError) Error() string { return e.err.Error() }
func (e *moduleError) Unwrap() error { return e.err }

// idError means that an id cannot be stored: it is too long, or no text.
type idError struct{ err error }

func (e *idError) Error() string { return e.err.Error() }
func (e *idError) Unwrap() error { return e.err }

// retryLater means that a record failed, and the schedule has another try.
type retryLater struct {
	after time.Duration
	err   error
}

func (e *retryLater) Error() string { return e.err.Error() }

// ofModule tells whether an error of the module's own statements may pass: the connection has failed, the server stops,
// only reads, or has no resources, or another transaction was in the way.
func ofModule(conn *pgx.Conn, err error) error {
	if hasState(err, "25006") { // the pool would use this connection again, and the next one may find the new primary
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}
	switch {
	case err == nil, isTransient(err):
		return err
	case conn.IsClosed(), hasState(err, "08", "25006", "25P03", "25P04", "40", "53", "55P03", "57P"):
		return &transientError{err}
	}
	return &moduleError{err}
}

// waited makes a cancelled statement (57014) an error that may pass: statement_timeout has ended the wait for another
// consumer's lock.
func waited(err error) error {
	if hasState(err, "57014") {
		return &transientError{err}
	}
	return err
}

// isConflict reports whether another transaction was in the way: a deadlock, or a serialization failure.
func isConflict(err error) bool { return hasState(err, "40") }

// hasState reports whether err is of Postgres, and its SQLSTATE begins with one of these.
func hasState(err error, prefixes ...string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(pg.Code, prefix) })
}
