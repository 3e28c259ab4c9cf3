// Package exit has the exit codes of all commands (docs/running.md). Supervisors depend on them. Most are those of
// sysexits.h.
package exit

import "errors"

// The exit codes.
const (
	OK           = 0  // graceful stop; everything acknowledged was confirmed
	Fault        = 1  // drain incomplete, second signal or an internal fault; restarting may help
	Usage        = 2  // wrong use of the command line
	Poison       = 65 // stopped at a poison event; its id, position and reason are in the last log line
	Unavailable  = 69 // doctor, status, setup: a dependency is unavailable or unhealthy
	NoPermission = 77 // a privilege in the database or in Kafka is missing
	Config       = 78 // the configuration is wrong
	Lost         = 79 // slot or publication missing or changed: events may be lost; or two primaries: a restart alone does not help
)

// Error is an error that has an exit code.
type Error struct {
	code   int
	err    error
	logged bool
}

// With gives err an exit code.
func With(code int, err error) error { return &Error{code: code, err: err} }

// Logged is [With] for an error whose text was printed or logged already and need not be printed again.
func Logged(code int, err error) error { return &Error{code: code, err: err, logged: true} }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// ExitCode is the exit code.
func (e *Error) ExitCode() int { return e.code }

// Code is the exit code of err: [OK] of nil, and [Fault] of an error without an ExitCode method.
func Code(err error) int {
	if err == nil {
		return OK
	}
	if e, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		return e.ExitCode()
	}
	return Fault
}

// IsLogged reports whether the text of err was printed or logged already.
func IsLogged(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.logged
}
