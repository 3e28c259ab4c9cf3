package main

import "errors"

// The exit codes, which supervisors act on; sysexits' numbers where there is one (docs/running.md).
const (
	exitOK           = 0  // graceful stop; everything acked was confirmed
	exitFault        = 1  // drain incomplete, second signal or an internal fault; restarting may help
	exitUsage        = 2  // wrong use of the command line
	exitPoison       = 65 // stopped at a poison event; its id, position and reason are in the last log line
	exitUnavailable  = 69 // doctor, status: a dependency is unavailable or unhealthy
	exitNoPermission = 77 // a right in the database or in Kafka is missing
	exitConfig       = 78 // the configuration is wrong
	exitLost         = 79 // slot or publication missing or changed, events may be gone: never restart blindly
)

// exitError is an error that knows its exit code.
type exitError struct {
	code   int
	err    error
	logged bool // its text is in the log already and need not be printed again
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }
func (e *exitError) Logged() bool  { return e.logged }

// exitCode is the code that err asks for by an ExitCode method, [exitFault] if it asks for none.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	var e interface{ ExitCode() int }
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return exitFault
}
