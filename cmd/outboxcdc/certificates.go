package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// certificates exports when the certificates in the configured files expire. It reads the files at each scrape, because
// they may be rotated at any time. A file that cannot be read has no series: the connection that needs it reports the
// error.
type certificates struct {
	now func() *config.Config
}

var certificateDesc = prometheus.NewDesc("outboxcdc_certificate_expiry_timestamp_seconds",
	"Until when the certificate of that setting is valid, as a Unix time. Of several CA certificates the last to expire, of a chain the first.",
	[]string{"setting"}, nil)

func (c certificates) Describe(ch chan<- *prometheus.Desc) { ch <- certificateDesc }

func (c certificates) Collect(ch chan<- prometheus.Metric) {
	cfg := c.now()
	show := func(setting string, ends time.Time) {
		if !ends.IsZero() {
			ch <- prometheus.MustNewConstMetric(certificateDesc, prometheus.GaugeValue, float64(ends.Unix()), setting)
		}
	}
	if cfg.TLS.Enabled || cfg.HasReceiver() {
		_, last := validity(fileCertificates(cfg.TLS.CAFile))
		show("tls.ca_file", last)
		first, _ := validity(fileCertificates(cfg.TLS.CertFile))
		show("tls.cert_file", first)
	}
	first, _ := validity(fileCertificates(webCertificate(cfg.HTTP.WebConfigFile)))
	show("http.web_config_file", first)
	first, _ = validity(postgresCertificates(cfg))
	show("postgres.url", first)
}

// validity returns the times at which the first and the last of the certificates expire, or zero times without
// certificates.
func validity(certs []*x509.Certificate) (first, last time.Time) {
	for _, c := range certs {
		if first.IsZero() || c.NotAfter.Before(first) {
			first = c.NotAfter
		}
		if c.NotAfter.After(last) {
			last = c.NotAfter
		}
	}
	return first, last
}

// fileCertificates reads the certificates of a PEM file.
func fileCertificates(name string) (certs []*x509.Certificate) {
	rest, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return certs
		}
		if cert, err := x509.ParseCertificate(block.Bytes); block.Type == "CERTIFICATE" && err == nil {
			certs = append(certs, cert)
		}
	}
}

// webCertificate is the certificate file of an exporter-toolkit configuration. A relative name is relative to that
// configuration.
func webCertificate(webConfig string) string {
	var web struct {
		TLS struct {
			Cert string `yaml:"cert_file"`
		} `yaml:"tls_server_config"`
	}
	text, err := os.ReadFile(webConfig)
	if err != nil || yaml.Unmarshal(text, &web) != nil || web.TLS.Cert == "" {
		return ""
	}
	if filepath.IsAbs(web.TLS.Cert) {
		return web.TLS.Cert
	}
	return filepath.Join(filepath.Dir(webConfig), web.TLS.Cert)
}

// postgresCertificates are the client certificates of the connection string (sslcert).
func postgresCertificates(cfg *config.Config) (certs []*x509.Certificate) {
	url, err := cfg.PostgresAddress()
	if err != nil {
		return nil
	}
	conn, err := pgx.ParseConfig(url)
	if err != nil || conn.TLSConfig == nil {
		return nil
	}
	for _, pair := range conn.TLSConfig.Certificates {
		for _, der := range pair.Certificate {
			if cert, err := x509.ParseCertificate(der); err == nil {
				certs = append(certs, cert)
			}
		}
	}
	return certs
}
