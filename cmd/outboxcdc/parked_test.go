package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// TestParkedUsage checks the exit codes and messages of wrong use: nothing is selected by accident.
func TestParkedUsage(t *testing.T) {
	t.Setenv("PGHOST", "")
	t.Setenv("PGSERVICE", "")
	const url = "--url=postgres://u:secret@127.0.0.1:1/db"
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"parked"}, exit.Usage, "list | retry | drop"},
		{[]string{"parked", "list"}, exit.Usage, "--url"},
		{[]string{"parked", "retry", url}, exit.Usage, "say which keys"},
		{[]string{"parked", "drop", url, "--yes"}, exit.Usage, "say which keys"},
		{[]string{"parked", "drop", url, "--all", "--dead"}, exit.Usage, "remove the other selections"},
		{[]string{"parked", "list", url, "--keys-table", "a.b.c"}, exit.Usage, "SCHEMA.NAME"},
		{[]string{"parked", "list", "--url", "postgres://u:secret@%zz/db"}, exit.Usage, "connection string"},
		{[]string{"parked", "list", url, "-o", "xml"}, exit.Usage, "text or json"},
		{[]string{"parked", "list", url}, exit.Unavailable, "127.0.0.1"},
	} {
		code, _, errs := commandLine(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.text) || strings.Contains(errs, "secret") {
			t.Errorf("%q: exit code %d, want %d: %s", c.args, code, c.code, errs)
		}
	}
}
