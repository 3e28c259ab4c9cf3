package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/wire"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestCertificates checks that each setting with certificates has a series: for a chain the first certificate that
// expires, for CA certificates the last one, because one of them suffices. Files are read at each scrape. A file that
// cannot be read has no series.
func TestCertificates(t *testing.T) {
	began := time.Now()
	hours := func(n int) time.Time { return began.Add(time.Duration(n) * time.Hour).Truncate(time.Second) }
	chain, web, sslcert := validUntil(t, hours(5), hours(3)), validUntil(t, hours(9)), validUntil(t, hours(11))
	webConfig := filepath.Join(filepath.Dir(web), "web.yaml")
	overwrite(t, webConfig, fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s.key}\n", filepath.Base(web), filepath.Base(web)))
	cfg := config.Default()
	cfg.TLS.Enabled, cfg.TLS.CAFile, cfg.TLS.CertFile = true, validUntil(t, hours(2), hours(7), hours(4)), chain
	cfg.HTTP.WebConfigFile = webConfig
	cfg.Postgres.URL = fmt.Sprintf("postgres://u@h/d?sslmode=require&sslcert=%s&sslkey=%s.key", sslcert, sslcert)
	reg := prometheus.NewRegistry()
	reg.MustRegister(certificates{wire.Fixed(cfg)})
	wants := func(want map[string]time.Time) {
		t.Helper()
		families, err := reg.Gather()
		must(t, err)
		got := map[string]time.Time{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = time.Unix(int64(m.GetGauge().GetValue()), 0)
			}
		}
		for setting, at := range want {
			if !got[setting].Equal(at) {
				t.Errorf("%s is valid until %s, want %s", setting, got[setting], at)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	want := map[string]time.Time{
		"tls.ca_file": hours(7), "tls.cert_file": hours(3), "http.web_config_file": hours(9), "postgres.url": hours(11),
	}
	wants(want)

	rotated, err := os.ReadFile(validUntil(t, hours(30)))
	must(t, err)
	overwrite(t, chain, string(rotated))
	overwrite(t, web, "nothing")
	want["tls.cert_file"] = hours(30)
	delete(want, "http.web_config_file")
	wants(want)
}

// validUntil writes a file with a certificate for each of the times, and a .key file with the key of the first one.
func validUntil(t *testing.T, times ...time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	var text []byte
	for i, at := range times {
		c := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 1)), NotBefore: time.Now().Add(-time.Hour), NotAfter: at}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		must(t, err)
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	name := filepath.Join(t.TempDir(), "cert.pem")
	overwrite(t, name, string(text))
	overwrite(t, name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	return name
}

func overwrite(t *testing.T, name, text string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte(text), 0o600))
}
