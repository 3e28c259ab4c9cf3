package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/wire"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestReload checks that settings that may change do change, that others are named, and that an invalid configuration
// changes nothing.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	file, password := filepath.Join(dir, "outboxcdc.yaml"), filepath.Join(dir, "password")
	write := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	const base = "postgres: {url: 'postgres://u:s3cr3t-1@h/d'}\n"
	write(file, base)
	write(password, "s3cr3t-2\n")
	load := func() (*config.Config, error) { return config.Load([]string{file}, nil) }
	cfg, err := load()
	must(t, err)
	var log bytes.Buffer
	level := logLevel(cfg)
	r := newReloader(cfg, load, level, prometheus.NewRegistry(), slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level})))
	at := testutil.ToFloat64(r.at)
	reload := func(text string) string {
		t.Helper()
		log.Reset()
		write(file, text)
		r.reload()
		if strings.Contains(log.String(), "s3cr3t") {
			t.Errorf("a secret in the log: %s", log.String())
		}
		return log.String()
	}
	sasl := "kafka: {sasl: {mechanism: PLAIN, user: u, password_file: " + password + "}}\n"

	said := reload("postgres: {url: 'postgres://u:s3cr3t-3@h/d', slot: other}\nlog: {level: error}\nhttp: {listen: ':1'}\n" + sasl)
	now := r.now()
	if now.Postgres.URL != "postgres://u:s3cr3t-3@h/d" || level.Level() != slog.LevelError || now.Kafka.SASL.Mechanism != "PLAIN" {
		t.Errorf("not taken over: %s, level %s\n%s", now, level, said)
	}
	if now.Postgres.Slot != "outboxcdc" || now.HTTP.Listen != ":9464" {
		t.Errorf("taken over, but only a restart may: %s", now)
	}
	if s, err := wire.KafkaSecurity(now); err != nil || s.SASL.Password != "s3cr3t-2" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, want := range []string{`"changed":["postgres.url","kafka.sasl.mechanism","kafka.sasl.user","kafka.sasl.password_file","log.level"]`} {
		if !strings.Contains(said, want) {
			t.Errorf("%s is not said: %s", want, said)
		}
	}
	said = reload("postgres: {url: 'postgres://u:s3cr3t-3@h/other', slot: other}\nlog: {level: debug}\nhttp: {listen: ':1'}\n" + sasl)
	if want := `"settings":["postgres.url","postgres.slot","http.listen"]`; !strings.Contains(said, want) || strings.Count(said, "\n") != 2 {
		t.Errorf("%s is not said on one line: %s", want, said)
	}
	if r.now().Postgres.URL != "postgres://u:s3cr3t-3@h/d" {
		t.Error("another database was taken over")
	}
	if got := testutil.ToFloat64(r.successful); got != 1 || testutil.ToFloat64(r.at) <= at {
		t.Errorf("successful %v at %v", got, testutil.ToFloat64(r.at))
	}

	before, at := r.now(), testutil.ToFloat64(r.at)
	for text, want := range map[string]string{
		"log: {level: loud}\n": "log.level", "log: [": "outboxcdc.yaml:1",
		"log: {level: warn}\npostgres: {url: 'postgres://u:s3cr3t@h/d?sslmode=verify-full&sslrootcert=/nope.pem'}\n": "/nope.pem",
		"log: {level: warn}\npostgres: {url: s3cr3t}\n":                                                              "postgres.url",
		"log: {level: warn}\npostgres: {url_file: /nope}\n":                                                          "postgres.url_file",
		"log: {level: warn}\ntls: {enabled: true, ca_file: /nope.pem}\n":                                             "tls.ca_file",
		"log: {level: warn}\nkafka: {sasl: {mechanism: PLAIN, user: u, password_file: /nope}}\n":                     "kafka.sasl.password_file",
	} {
		if said := reload(text); !strings.Contains(said, "keeping the previous configuration") || !strings.Contains(said, want) {
			t.Errorf("%q: %s", text, said)
		}
		if r.now() != before || level.Level() != slog.LevelDebug || testutil.ToFloat64(r.successful) != 0 || testutil.ToFloat64(r.at) != at {
			t.Errorf("%q has changed something", text)
		}
	}
	if said := reload("log: {level: debug}\n"); !strings.Contains(said, `"settings":["postgres.url"]`) || r.now().Postgres.URL != "postgres://u:s3cr3t-3@h/d" {
		t.Errorf("no URL at all was taken over: %s", said)
	}
	reload(base)
	if testutil.ToFloat64(r.successful) != 1 || level.Level() != slog.LevelInfo {
		t.Errorf("not fixed: %s", log.String())
	}
}

// TestReloadWithoutDefaultFile checks that a reload fails if the default file, found at the start, is missing.
func TestReloadWithoutDefaultFile(t *testing.T) {
	t.Chdir(t.TempDir())
	must(t, os.WriteFile("outboxcdc.yaml", []byte("postgres: {slot: found}\n"), 0o600))
	var s settings
	if cfg, err := s.load(); err != nil || cfg.Postgres.Slot != "found" {
		t.Fatal(cfg, err)
	}
	must(t, os.Remove("outboxcdc.yaml"))
	if _, err := s.load(); err == nil || !strings.Contains(err.Error(), "outboxcdc.yaml") {
		t.Errorf("the file is gone: %v", err)
	}
}
