package config

import "strings"

// exitCode is sysexits' EX_CONFIG: a restart with the same configuration cannot help.
const exitCode = 78

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

// ExitCode is 78, which tells the supervisor not to restart.
func (e *Error) ExitCode() int { return exitCode }
