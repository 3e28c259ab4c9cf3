package wire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/credential"
	httpsink "github.com/outboxcdc/outboxcdc/sink/http"
)

// KafkaSecurity reads certificates and secrets, and returns the security configuration of connections to Kafka.
func KafkaSecurity(cfg *config.Config) (brokerauth.Config, error) {
	var s brokerauth.Config
	var err error
	if cfg.TLS.Enabled {
		if s.TLS, err = clientTLS(cfg); err != nil {
			return s, err
		}
	}
	if s.SASL = KafkaSASL(cfg); s.SASL != nil {
		s.SASL.Password, err = cfg.SASLPassword()
	}
	return s, err
}

// KafkaSASL is how connections authenticate themselves, without the password; nil means that they do not.
func KafkaSASL(cfg *config.Config) *brokerauth.SASL {
	k := &cfg.Kafka.SASL
	if k.Mechanism == "" {
		return nil
	}
	return &brokerauth.SASL{
		Mechanism: k.Mechanism, User: k.User, TokenURL: k.TokenURL, Scopes: k.Scopes, TokenCommand: k.TokenCommand,
		Region: credential.MSKRegion(cfg.Kafka.Brokers),
	}
}

// clientTLS reads the files of the section tls.
func clientTLS(cfg *config.Config) (*tls.Config, error) {
	caFile, certFile, keyFile := cfg.TLS.CAFile, cfg.TLS.CertFile, cfg.TLS.KeyFile
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, cfg.Problem("tls.ca_file", err.Error())
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, cfg.Problem("tls.ca_file", fmt.Sprintf("%q has no certificate in PEM form", caFile))
		}
	}
	if certFile == "" {
		return conf, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, cfg.Problem("tls.cert_file", err.Error())
		}
		return &pair, nil
	}
	// The files are read again for each connection, because a session may last longer than a certificate.
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	_, err := load()
	return conf, err
}

// ReceiverTarget reads address, secret and certificates of the receiver.
func ReceiverTarget(cfg *config.Config) (t httpsink.Target, err error) {
	if t.URL, err = cfg.ReceiverURL(); err != nil {
		return t, err
	}
	secret, err := cfg.ReceiverSecret()
	if err != nil {
		return t, err
	}
	if t.Secrets, err = httpsink.ParseSecrets(secret); err != nil {
		setting := "receiver.secret"
		if cfg.Receiver.SecretFile != "" {
			setting = "receiver.secret_file"
		}
		return t, cfg.Problem(setting, err.Error())
	}
	t.TLS, err = clientTLS(cfg)
	return t, err
}

// SinkSecurity reads the certificates and secrets of the sink, to find errors.
func SinkSecurity(cfg *config.Config) error {
	if cfg.Sink == config.SinkRedis {
		_, err := redisTarget(cfg)
		return err
	}
	if cfg.Sink == config.SinkNATS {
		_, err := natsTarget(cfg)
		return err
	}
	if cfg.Sink == config.SinkSQS || cfg.Sink == config.SinkSNS {
		_, err := awsTarget(cfg)
		return err
	}
	if cfg.HasReceiver() {
		_, err := ReceiverTarget(cfg)
		return err
	}
	_, err := KafkaSecurity(cfg)
	return err
}
