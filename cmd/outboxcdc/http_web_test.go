package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/bcrypt"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// webFiles writes a certificate, its key and a web configuration with both. It returns a pool that trusts the
// certificate.
func webFiles(t *testing.T, password string) (file string, pool *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	a, err := testcert.New("authority")
	must(t, err)
	certificate, key, err := a.Issue("outboxcdc")
	must(t, err)
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(a.PEM)
	put(t, dir, "cert.pem", certificate)
	put(t, dir, "key.pem", key)
	return put(t, dir, "web.yaml", webConfig(t, password)), pool
}

func webConfig(t *testing.T, password string) []byte {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	must(t, err)
	return []byte("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prometheus: \"" + string(hash) + "\"}\n")
}

func put(t *testing.T, dir, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.WriteFile(path, text, 0o600))
	return path
}

// TestWebConfig checks that with http.web_config_file all paths, including the probes, require TLS and the password,
// and that a password that is changed in the file is used.
func TestWebConfig(t *testing.T) {
	file, pool := webFiles(t, "first")
	cfg := config.Default()
	cfg.HTTP.WebConfigFile = file
	addr := serving(t, cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	get := func(path, password string) *http.Response {
		t.Helper()
		req, err := http.NewRequest("GET", "https://"+addr+path, nil)
		must(t, err)
		if password != "" {
			req.SetBasicAuth("prometheus", password)
		}
		res, err := client.Do(req)
		must(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res
	}
	for _, path := range []string{"/", "/livez", "/readyz", "/healthz", "/metrics", "/status", "/version"} {
		if res := get(path, ""); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a password: %s", path, res.Status)
		}
		if res := get(path, "wrong"); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s with a wrong password: %s", path, res.Status)
		}
		res := get(path, "first")
		if res.StatusCode != http.StatusOK || res.TLS == nil {
			t.Errorf("%s: %s", path, res.Status)
		}
		if res.ProtoMajor != 1 {
			t.Errorf("%s: %s, which has many answers at a time on one connection", path, res.Proto)
		}
	}
	put(t, filepath.Dir(file), "web.yaml", webConfig(t, "second"))
	if old, is := get("/status", "first"), get("/status", "second"); old.StatusCode != http.StatusUnauthorized || is.StatusCode != http.StatusOK {
		t.Errorf("after a change the old password gets %s, the new one %s", old.Status, is.Status)
	}
	if res, err := http.Get("http://" + addr + "/status"); err == nil {
		_ = res.Body.Close()
		if res.StatusCode == http.StatusOK {
			t.Error("it answers without TLS, too")
		}
	}
}

// TestBadWebConfig checks that an invalid file ends the start with exit code 78. The error names the setting and
// contains no secret.
func TestBadWebConfig(t *testing.T) {
	const secret = "hunter2"
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"missing":     {"", "no such file"},
		"unknown key": {"basic_auth_user: {a: b}\n", "basic_auth_user"},
		"not a map":   {"basic_auth_users: " + secret + "\n", "line 1"},
		"no hash":     {"basic_auth_users: {a: " + secret + "}\n", "bcrypt"},
		"no key":      {"tls_server_config: {cert_file: c.pem}\n", "key"},
		"no cert":     {"tls_server_config: {cert_file: c.pem, key_file: k.pem}\n", "c.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "none.yaml")
			if c.text != "" {
				file = put(t, dir, "web.yaml", []byte(c.text))
			}
			t.Setenv("OUTBOXCDC_HTTP_WEB_CONFIG_FILE", file)
			t.Setenv("OUTBOXCDC_HTTP_LISTEN", "127.0.0.1:0")
			t.Setenv("OUTBOXCDC_LOG_LEVEL", "error")
			t.Setenv("OUTBOXCDC_POSTGRES_URL", "postgres://nobody@127.0.0.1:1/none")
			t.Setenv("OUTBOXCDC_KAFKA_BROKERS", "127.0.0.1:1")
			var stderr bytes.Buffer
			code := execute(t.Context(), []string{"run"}, io.Discard, &stderr)
			got := stderr.String()
			if code != exit.Config || !strings.Contains(got, "http.web_config_file") || !strings.Contains(got, c.says) {
				t.Errorf("%d %s", code, got)
			}
			if strings.Contains(got, secret) {
				t.Errorf("it says a secret: %s", got)
			}
		})
	}
}

// TestComplaints checks that warnings that clients cause are logged once a minute, with the number of dropped ones.
func TestComplaints(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	c := &complaints{Handler: slog.NewJSONHandler(&out, nil), clock: func() time.Time { return now }}
	log := slog.New(c)
	log.Info("Listening on", "address", "x")
	if out.Len() > 0 {
		t.Errorf("said twice: %s", &out)
	}
	std := slog.NewLogLogger(c, slog.LevelWarn)
	for range 100 {
		std.Print("http: TLS handshake error from 10.0.0.1:1: EOF")
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines for 100 complaints: %s", n, &out)
	}
	out.Reset()
	now = now.Add(complainEvery)
	log.Error("Unable to parse configuration", "err", "cannot unmarshal !!str `secret` into int")
	got := out.String()
	for _, want := range []string{`"level":"ERROR"`, `"msg":"http"`, `"error":"Unable to parse configuration: cannot unmarshal`, `"repeated":99`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
	if strings.Contains(got, "secret") {
		t.Errorf("a value of the file is in the log: %s", got)
	}
}

// TestAddressInUse checks that an address in use is a configuration error at the start.
func TestAddressInUse(t *testing.T) {
	addr := serving(t, config.Default(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	cfg := config.Default()
	cfg.HTTP.Listen = addr
	if _, err := listen(cfg, prometheus.NewRegistry(), &fakeRelay{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "http.listen") {
		t.Errorf("%v", errors.Unwrap(err))
	}
}
