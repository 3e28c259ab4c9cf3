package setup

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// TestExitCode checks the exit code of a missing privilege in a wrapped error.
func TestExitCode(t *testing.T) {
	for state, want := range map[string]int{"42501": exit.NoPermission, "42P01": exit.Fault} {
		err := withExitCode(fmt.Errorf("create slot: %w", &pgconn.PgError{Code: state}))
		if got := exit.Code(err); got != want {
			t.Errorf("SQLSTATE %s: exit code %d, want %d", state, got, want)
		}
	}
}
