package config

import (
	"errors"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// Error is an error of the configuration. Several errors are joined with errors.Join; errors.As finds the first one,
// with its exit code.
type Error struct {
	Where   string // "outboxcdc.yaml:3:9", an environment variable, or "" for a default or the whole configuration
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

// Errors splits an error of [Load] or [Config.Validate] into single errors, in order.
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
