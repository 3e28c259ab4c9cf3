package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
)

// doctorOf is the doctor.Config of a configuration.
func doctorOf(t *testing.T, yaml string) doctor.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.yaml")
	must(t, os.WriteFile(file, []byte(yaml), 0o600))
	cfg, err := config.Load([]string{file}, nil)
	must(t, err)
	c, err := doctorConfig(cfg, []string{"asked.for"}, []string{file})
	must(t, err)
	if !strings.HasSuffix(c.Command, " -c "+file) {
		t.Errorf("remedies call %s", c.Command)
	}
	return c
}

// TestDoctorConfig checks the topics that are known without rows, the columns that are read, and the Kafka user in
// remedies.
func TestDoctorConfig(t *testing.T) {
	clearEnv(t)
	c := doctorOf(t, "postgres: {url: 'postgres://relay:s3cr3t@db:5433/shop'}\n")
	if c.Role != "relay" || c.Database != "shop" || c.Server != "db:5433" || c.Letters != "outbox.dead_letter" || c.HeldGroup != "outboxcdc-dlq-outboxcdc" || c.Positions != "outboxcdc.positions" || c.Cut || c.OwnTime || c.Client != "" || c.User != "" {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.Topics, []string{"asked.for"}) {
		t.Errorf("topics %v", c.Topics)
	}
	read := c.Tables[0].Routing
	if slices.Contains(read, "payload") || slices.Contains(read, "headers") || !slices.Contains(read, "aggregate_type") {
		t.Errorf("it reads %v", read)
	}
	if needs := c.Tables[0].Needs; !slices.Contains(needs, "payload") {
		t.Errorf("it needs %v", needs)
	}

	c = doctorOf(t, `postgres: {url: 'postgres:///shop?host=/run/postgresql&user=relay'}
outboxes:
- {table: a.one, route: {topic: fixed, timestamp: commit}}
- {table: b.two, route: {topic: 't.{tenant}', topics: {x: mapped}, unmatched: rest}}
poison: {policy: skip, causes: {too_large: dead_letter}, topic: dead, oversize: cut}
delivery: {mode: deduplicated, position_topic: kept}
kafka: {sasl: {mechanism: PLAIN, user: me, password: s3cr3t}}
tls: {enabled: true}
`)
	if c.Server != "localhost:5432" || c.Letters != "dead" || c.Positions != "kept" || !c.Cut || !c.OwnTime || c.User != "me" || !strings.Contains(c.Client, "--command-config") {
		t.Errorf("%+v", c)
	}
	if want := []string{"fixed", "mapped", "rest", "asked.for"}; !slices.Equal(c.Topics, want) {
		t.Errorf("topics %v, want %v", c.Topics, want)
	}
	if !slices.Contains(c.Tables[1].Routing, "tenant") || slices.Contains(c.Tables[0].Routing, "tenant") {
		t.Errorf("it reads %v and %v", c.Tables[0].Routing, c.Tables[1].Routing)
	}
	for name, want := range map[string]string{"/etc/o.yaml": "/etc/o.yaml", "my file": "'my file'", "it's": `'it'\''s'`, "$(rm)": "'$(rm)'", "": "''"} {
		if got := shellWord(name); got != want {
			t.Errorf("%s is written %s", name, got)
		}
	}
	for yaml, want := range map[string]string{
		"poison: {policy: stop, decisions: {e1: dead_letter}}": "outbox.dead_letter",
		"poison: {policy: dead_letter}":                        "outbox.dead_letter",
		"poison: {policy: stop, decisions: {e1: skip}}":        "",
		"poison: {policy: skip, causes: {null_key: stop}}":     "",

		"kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: p, token_url: 'https://t'}}": "outbox.dead_letter",
	} {
		c := doctorOf(t, "postgres: {url: postgres://db/shop}\n"+yaml)
		if c.Letters != want || c.User != "" {
			t.Errorf("%s: letters %q, user %q", yaml, c.Letters, c.User)
		}
	}
}

// TestDoctorOfAReceiver: with sink: http, doctor connects to the receiver, and not to Kafka.
func TestDoctorOfAReceiver(t *testing.T) {
	clearEnv(t)
	c := doctorOf(t, `postgres: {url: 'postgres://relay:s3cr3t@db:5433/shop'}
sink: http
receiver: {url: 'http://u:s3cr3t@127.0.0.1:1/s3cr3t'}
delivery: {mode: at_least_once}
route: {format: cloudevents_structured, fields: {source: //shop.example}}
`)
	if c.Kafka != nil || c.Receiver == nil || c.ReceiverName != "http://127.0.0.1:1/xxxxx" {
		t.Fatalf("%+v", c)
	}
	if err := c.Receiver(t.Context()); err == nil || !strings.Contains(err.Error(), "connect to the receiver at 127.0.0.1:1: ") || strings.Contains(err.Error(), "s3cr3t") {
		t.Error(err)
	}
}
