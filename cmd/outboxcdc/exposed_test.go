package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestExposedSecrets: a daemon warns of each secret that the network can read, and of no other.
func TestExposedSecrets(t *testing.T) {
	sasl := func(mechanism, tokenURL string, tls bool) *config.Config {
		cfg := config.Default()
		cfg.Kafka.SASL.Mechanism, cfg.Kafka.SASL.TokenURL, cfg.TLS.Enabled = mechanism, tokenURL, tls
		return cfg
	}
	command := func(dsn string) *config.Config {
		cfg := config.Default()
		cfg.Postgres.URL, cfg.Postgres.PasswordCommand = dsn, []string{"print"}
		return cfg
	}
	const postgres = "sslmode in postgres.url"
	for i, c := range []struct {
		cfg  *config.Config
		want string // parts of the warnings, with a space between
	}{
		{config.Default(), ""},
		{sasl("PLAIN", "", false), "PLAIN"},
		{sasl("PLAIN", "", true), ""},
		{sasl("SCRAM-SHA-512", "", false), ""},
		{sasl("OAUTHBEARER", "https://t/", false), "OAUTHBEARER"},
		{sasl("OAUTHBEARER", "https://t/", true), ""},
		{sasl("OAUTHBEARER", "HTTP://t/", true), "token_url"},
		{sasl("OAUTHBEARER", "http://10.0.0.1:8080/", false), "OAUTHBEARER token_url"},
		{sasl("OAUTHBEARER", "http://[::1]:8080/", true), ""},
		{sasl("OAUTHBEARER", "http://localhost/", true), ""},
		{command("postgres://u@db/d?sslmode=verify-full"), ""},
		{command("postgres://u@db/d?sslmode=verify-ca"), ""},
		{command("postgres://u@db/d?sslmode=require"), postgres},
		{command("postgres://u@db/d"), postgres},
		{command("postgres://u@localhost,db/d?sslmode=disable"), postgres},
		{command("postgres://u@127.0.0.1/d"), ""},
		{command("host=/run/postgresql user=u"), ""},
	} {
		got := exposedSecrets(c.cfg)
		wants := strings.Fields(c.want)
		if c.want == postgres {
			wants = []string{postgres}
		}
		if len(got) != len(wants) {
			t.Errorf("case %d: %q, want %q", i, got, c.want)
			continue
		}
		for k, part := range wants {
			if !strings.Contains(got[k], part) {
				t.Errorf("case %d: %q, want %q", i, got, c.want)
			}
		}
	}
}
