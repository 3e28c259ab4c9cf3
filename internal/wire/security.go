package wire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/internal/config"
)

// KafkaSecurity reads certificates and secrets, and returns the security configuration of connections to Kafka.
func KafkaSecurity(cfg *config.Config) (brokerauth.Config, error) {
	var s brokerauth.Config
	var err error
	if cfg.Kafka.TLS.Enabled {
		if s.TLS, err = kafkaTLS(cfg); err != nil {
			return s, err
		}
	}
	if k := &cfg.Kafka.SASL; k.Mechanism != "" {
		s.SASL = &brokerauth.SASL{Mechanism: k.Mechanism, User: k.User, TokenURL: k.TokenURL, Scopes: k.Scopes}
		s.SASL.Password, err = cfg.SASLPassword()
	}
	return s, err
}

func kafkaTLS(cfg *config.Config) (*tls.Config, error) {
	t := &cfg.Kafka.TLS
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, cfg.Problem("kafka.tls.ca_file", err.Error())
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, cfg.Problem("kafka.tls.ca_file", fmt.Sprintf("%q has no certificate in PEM form", t.CAFile))
		}
	}
	if t.CertFile == "" {
		return conf, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, cfg.Problem("kafka.tls.cert_file", err.Error())
		}
		return &pair, nil
	}
	// The files are read again for each connection, because a session may last longer than a certificate.
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	_, err := load()
	return conf, err
}
