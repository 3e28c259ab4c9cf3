package main

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// A privilege on a table that is missing is exit code 77, as every other missing privilege.
func TestWithExitCode(t *testing.T) {
	for code, want := range map[string]int{"42501": exit.NoPermission, "57P01": exit.Unavailable} {
		if got := exit.Code(withExitCode(fmt.Errorf("read table: %w", &pgconn.PgError{Code: code}))); got != want {
			t.Errorf("SQLSTATE %s: exit code %d, want %d", code, got, want)
		}
	}
}
