package main

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// --host names one of the configured hosts, or another one that is asked with the credentials of postgres.url.
func TestStandbyCleanFindsTheHost(t *testing.T) {
	cfg := config.Default()
	cfg.Postgres.URL = "postgres://u:s3cr3t@db-1,db-2:5433/shop"
	cfg.Postgres.Standbys = []string{"host=db-3", "host=db-3 port=5434"}
	for host, want := range map[string]string{
		"db-1":      "db-1:5432",
		"db-2":      "db-2:5433",
		"db-2:5433": "db-2:5433",
		"db-3:5434": "db-3:5434",
		"db-9":      "db-9:5432",
		"db-9:1":    "db-9:1",
		"[::1]:2":   "[::1]:2",
	} {
		h, err := (&cleaner{host: host}).find(cfg)
		if err != nil || h.Address != want {
			t.Errorf("%s: %v, %v; want %s", host, h, err, want)
		}
	}
	for host, want := range map[string]string{
		"db-3":                     "write db-3:5432 or db-3:5434",
		"postgres://u:s3cr3t@db-1": "without user and password",
		"db-1 password=s3cr3t":     "without user and password",
		"db-1:s3cr3t":              "not a connection string",
	} {
		_, err := (&cleaner{host: host}).find(cfg)
		if exit.Code(err) != exit.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if code, _, errs := said(t, "standby", "clean"); code != exit.Usage || !strings.Contains(errs, "--host is needed") {
		t.Errorf("without --host: %d %s", code, errs)
	}
}

// validate finds a connection string of postgres.standbys that cannot be parsed, and does not show it.
func TestValidateStandbys(t *testing.T) {
	for standbys, want := range map[string]string{
		"auto":                                   "",
		"host=b,postgres://c/d":                  "",
		"host=b,postgres://u:s3cr3t@c:x/d":       "OUTBOXCDC_POSTGRES_STANDBYS: postgres.standbys: entry 2: ",
		"postgres://u:s3cr3t@b/d?sslmode=s3cr3t": "postgres.standbys: entry 1: sslmode is invalid",
		"postgres://u:s3cr3t@b,c/d":              "postgres.standbys: entry 2: the value (not shown) is not a connection string",
		"host=b sslrootcert=/nope":               "postgres.standbys: entry 1: open /nope",
	} {
		t.Setenv("OUTBOXCDC_POSTGRES_STANDBYS", standbys)
		code, out, errs := said(t, "config", "validate")
		if want == "" && code != exit.OK || want != "" && (code != exit.Config || !strings.Contains(errs, want)) || strings.Contains(out+errs, "s3cr3t") {
			t.Errorf("%s: %d %q %q, want %q", standbys, code, out, errs, want)
		}
	}
}
