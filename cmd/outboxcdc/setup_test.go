package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/setup"
	"github.com/outboxcdc/outboxcdc/sql"
)

// runCommand runs `outboxcdc args…` in this process with a configuration file of the given text. It does not connect to
// Kafka; tests with Kafka are in test/integration.
func runCommand(t *testing.T, yaml, stdin string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	must(t, os.WriteFile(file, []byte(yaml), 0o600))
	root := newRootCommand()
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(append([]string{"-c", file, "--set", "delivery.mode=at_least_once", "--set", "poison.policy=stop"}, args...))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// want checks that every text is in got.
func want(t *testing.T, got string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(got, text) {
			t.Errorf("%q is missing in:\n%s", text, got)
		}
	}
}

// wantError checks the exit code and the text of an error.
func wantError(t *testing.T, err error, code int, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want exit code %d and %q", code, texts)
	}
	if exit.Code(err) != code {
		t.Errorf("exit code %d, want %d: %v", exit.Code(err), code, err)
	}
	want(t, err.Error(), texts...)
}

func TestExitCode(t *testing.T) {
	for err, code := range map[error]int{
		nil: exit.OK, errors.New("x"): exit.Fault, usageError(errors.New("x")): exit.Usage,
		errors.Join(errors.New("x"), &config.Error{Problem: "y"}): exit.Config,
	} {
		if got := exit.Code(err); got != code {
			t.Errorf("%v: %d, want %d", err, got, code)
		}
	}
}

func TestVersionCommand(t *testing.T) {
	out, err := runCommand(t, "", "", "version", "-o", "json")
	var b build
	if err != nil || json.Unmarshal([]byte(out), &b) != nil || b.Version == "" || b.Revision == "" || !strings.HasPrefix(b.GoVersion, "go1.") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = runCommand(t, "", "", "version")
	if err != nil {
		t.Error(err)
	}
	want(t, out, "outboxcdc "+b.Version, "revision ", "go ")
	_, err = runCommand(t, "", "", "version", "-o", "xml")
	wantError(t, err, exit.Usage, "text or json")
	_, err = runCommand(t, "", "", "version", "x")
	wantError(t, err, exit.Usage)
}

// clearEnv unsets the environment variables of libpq.
func clearEnv(t *testing.T) {
	for _, name := range []string{setup.URLEnv, setup.URLEnv + "_FILE", "PGHOST", "PGSERVICE", "PGUSER", "PGDATABASE", "PGPASSWORD"} {
		t.Setenv(name, "")
	}
}

func TestSetupSQL(t *testing.T) {
	clearEnv(t)
	out, err := runCommand(t, "postgres: {url: 'postgres://relay:s3cr3t@db/shop', slot: s9}\noutbox: {table: '\"My Schema\".\"Outbox\"'}\n", "", "setup", "sql")
	must(t, err)
	want(t, out, "for PostgreSQL 17", `CREATE ROLE "relay" LOGIN REPLICATION`, `ON DATABASE "shop"`, `"My Schema"."Outbox"`, `'s9'`, "failover => true")
	if strings.Contains(out, "s3cr3t") {
		t.Errorf("the password is in the SQL:\n%s", out)
	}
	out, err = runCommand(t, "", "", "setup", "sql", "--server-version", "16.4", "--partitioned", "-o", "json")
	must(t, err)
	var statements sql.Statements
	if err := json.Unmarshal([]byte(out), &statements); err != nil || len(statements) != 7 {
		t.Fatalf("%v\n%s", err, out)
	}
	want(t, statements.Get(sql.Publication), "publish_via_partition_root = true")
	want(t, statements.Get(sql.Role), `CREATE ROLE "outboxcdc"`)
	if strings.Contains(statements.Get(sql.Slot), "failover") {
		t.Error("failover on 16")
	}
}

// `setup sql --for` fills in the configured names, as text and as JSON.
func TestSetupFailover(t *testing.T) {
	clearEnv(t)
	const yaml = "postgres: {url: 'postgres://relay:s3cr3t@db/shop', slot: s9}\n"
	text, err := runCommand(t, yaml, "", "setup", "sql", "--for", "plain")
	if err != nil || !strings.Contains(text, "dbname=shop'") || !strings.Contains(text, "slot_name = 's9'") || strings.Contains(text, "s3cr3t") {
		t.Errorf("%v\n%s", err, text)
	}
	out, err := runCommand(t, yaml, "", "setup", "sql", "--for", "plain", "-o", "json")
	var got map[string]string
	if err := errors.Join(err, json.Unmarshal([]byte(out), &got)); err != nil || got["for"] != "plain" || got["text"] != text {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestSetupUsage(t *testing.T) {
	clearEnv(t)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"setup"}, exit.Usage, "sql | apply"},
		{[]string{"setup", "nope"}, exit.Usage, "nope"},
		{[]string{"setup", "sql", "x"}, exit.Usage, ""},
		{[]string{"setup", "sql", "-o", "yaml"}, exit.Usage, "write text or json"},
		{[]string{"setup", "sql", "--nope"}, exit.Usage, "nope"},
		{[]string{"setup", "sql", "--server-version", "13"}, exit.Usage, "not supported"},
		{[]string{"setup", "sql", "--server-version", "12.1"}, exit.Usage, "only 14 and later"},
		{[]string{"setup", "sql", "--server-version", "new"}, exit.Usage, "14 or later"},
		{[]string{"setup", "sql", "--for", "windows"}, exit.Usage, "only plain, patroni, cnpg, rds"},
		{[]string{"setup", "sql", "--for", "plain", "--server-version", "16"}, exit.Usage, "does not copy slots"},
		{[]string{"setup", "sql", "--for", "plain", "--no-slot"}, exit.Usage, "no-slot"},
		{[]string{"setup", "sql", "--from", "1"}, exit.Usage, "--shards"},
		{[]string{"setup", "sql", "--shards", "2", "--from", "2"}, exit.Usage, "nothing to hand over"},
		{[]string{"setup", "sql", "--shards", "2", "--from", "1", "--no-slot"}, exit.Usage, "which --no-slot does not change: remove it"},
		{[]string{"setup", "apply"}, exit.Usage, "OUTBOXCDC_SETUP_URL"},
		{[]string{"setup", "apply", "--url", "x", "--timeout", "0s"}, exit.Usage, "--timeout"},
		{[]string{"setup", "apply", "--url", "postgres://u:s3cr3t@h:port/d"}, exit.Usage, "connection string"},
		{[]string{"setup", "apply", "--url", "postgres://u:s3cr3t@127.0.0.1:1/d"}, exit.Unavailable, "connect"},
	} {
		_, err := runCommand(t, "", "", test.args...)
		wantError(t, err, test.code, test.want)
		if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	_, err := runCommand(t, "postgres: {slot: A}", "", "setup", "sql")
	wantError(t, err, exit.Config, "postgres.slot")
	_, err = runCommand(t, "postgres: {url_file: /nonexistent}", "", "setup", "sql")
	wantError(t, err, exit.Config, "postgres.url_file")

	t.Setenv(setup.URLEnv, "a")
	t.Setenv(setup.URLEnv+"_FILE", "b")
	_, err = runCommand(t, "", "", "setup", "apply")
	wantError(t, err, exit.Config, "both set")
}
