package config

import (
	"errors"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// Error is one thing that is wrong with the configuration. Several are joined with errors.Join; errors.As finds the
// first of them, and with it the exit code.
type Error struct {
	Where   string // "outboxcdc.yaml:3:9", an environment variable, or "" when a default or the whole is meant
	Path    string // the setting, e.g. "postgres.slot", or ""
	Problem string // what is wrong and what to write instead; never a secret
}

func (e *Error) Error() string {
	var parts []string
	for _, p := range []string{e.Where, e.Path, e.Problem} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ": ")
}

// ExitCode tells the supervisor not to restart: a restart with the same configuration cannot help.
func (e *Error) ExitCode() int { return exit.Config }

// Errors are the single errors of what [Load] or [Config.Validate] has returned, in its order.
func Errors(err error) []*Error {
	var e *Error
	switch joined, several := err.(interface{ Unwrap() []error }); {
	case err == nil:
		return nil
	case several:
		var out []*Error
		for _, err := range joined.Unwrap() {
			out = append(out, Errors(err)...)
		}
		return out
	case errors.As(err, &e):
		return []*Error{e}
	}
	return []*Error{{Problem: err.Error()}}
}
