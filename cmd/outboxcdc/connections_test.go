package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// TestValidateConnections checks that validate finds errors in the connection string and in the files that connections
// need.
func TestValidateConnections(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for url, want := range map[string]string{
		"postgres://u:s3cr3t@h:abc/d":                                 "the port is a number",
		"postgres://u:s3cr3t@h/d?sslmode=verify":                      "sslmode is invalid; write disable, ",
		"postgres://u:s3cr3t@h/d?foo=s3cr3t":                          `keyword "foo" is unknown; remove it, or write options=-c foo=`,
		"host=h pasword=s3cr3t":                                       `keyword "pasword" is unknown; did you mean "password"?`,
		"host=h user=u keepalives=0":                                  `keyword "keepalives" of libpq is not supported`,
		"postgres://u:s3cr3t@h/d?sslrootcert=" + missing:              "missing: no such file",
		"host=h user=u TimeZone=UTC options='-c geqo=off' app.user=x": "",
		"postgres://u@h,h2/d?target_session_attrs=read-write":         "",
	} {
		t.Setenv("OUTBOXCDC_POSTGRES_URL", url)
		code, out, errs := said(t, "config", "validate")
		if want == "" && code != exit.OK || want != "" && (code != exit.Config || !strings.HasPrefix(errs, "OUTBOXCDC_POSTGRES_URL: postgres.url: ") || !strings.Contains(errs, want)) {
			t.Errorf("%s: %d %q %q, want %q", url, code, out, errs, want)
		}
		if strings.Contains(out+errs, "s3cr3t") {
			t.Errorf("%s: a secret is shown: %q %q", url, out, errs)
		}
		// The daemon waits for a missing certificate.
		cfg := config.Default()
		cfg.Postgres.URL = url
		if err := checkPostgresURL(cfg, false); (err != nil) != (want != "" && !strings.Contains(url, missing)) {
			t.Errorf("%s: run says %v", url, err)
		}
	}
	t.Setenv("OUTBOXCDC_POSTGRES_URL", "")
	for setting, want := range map[string]string{
		"http.web_config_file=" + missing: "--set: http.web_config_file: open ",
		"tls.ca_file=" + missing:          "--set: tls.ca_file: open ",
		"postgres.url_file=" + missing:    "--set: postgres.url_file: read the secret",
	} {
		if code, _, errs := said(t, "config", "validate", "--set", "tls.enabled=true", "--set", setting); code != exit.Config || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %q, want %q", setting, code, errs, want)
		}
	}
}
