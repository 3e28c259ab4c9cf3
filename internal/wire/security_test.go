package wire

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// TestKafkaSecurity checks that errors about certificates and secrets name the setting, and that replaced files are
// used.
func TestKafkaSecurity(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, err := testcert.New("a")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := a.Issue("one")
	if err != nil {
		t.Fatal(err)
	}
	second, otherKey, err := a.Issue("two")
	if err != nil {
		t.Fatal(err)
	}

	cfg := config.Default()
	if s, err := KafkaSecurity(cfg); err != nil || s.TLS != nil || s.SASL != nil {
		t.Errorf("by default: %+v, %v", s, err)
	}
	k := &cfg.Kafka
	cfg.TLS = config.TLS{Enabled: true, CAFile: write("ca", a.PEM), CertFile: write("cert", certificate), KeyFile: write("key", key)}
	k.SASL = config.SASL{Mechanism: "PLAIN", User: "u", PasswordFile: write("password", []byte("one\n"))}
	s, err := KafkaSecurity(cfg)
	if err != nil || s.SASL.User != "u" || s.SASL.Password != "one" || s.TLS.MinVersion < tls.VersionTLS12 || s.TLS.InsecureSkipVerify {
		t.Fatalf("%+v, %v", s, err)
	}
	shown := func() string {
		pair, err := s.TLS.GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.TLS.RootCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Error(err)
		}
		return leaf.Subject.CommonName
	}
	if got := shown(); got != "one" {
		t.Errorf("the certificate of %s", got)
	}
	write("cert", second)
	write("key", otherKey)
	write("password", []byte("two"))
	if got := shown(); got != "two" { // the next connection of the same session
		t.Errorf("after the rotation the certificate of %s", got)
	}
	if s, err := KafkaSecurity(cfg); err != nil || s.SASL.Password != "two" {
		t.Errorf("after the rotation: %+v, %v", s.SASL, err)
	}

	for name, wrong := range map[string]struct {
		file, text, want string
	}{
		"another's key":        {"key", string(key), "tls.cert_file: tls: private key does not match"},
		"no key":               {"key", "", "tls.cert_file"},
		"no authority":         {"ca", "s3cr3t", "tls.ca_file: \"" + filepath.Join(dir, "ca") + "\" has no certificate"},
		"an empty password":    {"password", "\n", "kafka.sasl.password_file: read the secret: \"" + filepath.Join(dir, "password") + "\" is empty"},
		"nothing in its place": {"password", "", "kafka.sasl.password_file"},
	} {
		was, _ := os.ReadFile(filepath.Join(dir, wrong.file))
		write(wrong.file, []byte(wrong.text))
		if _, err := KafkaSecurity(cfg); err == nil || !strings.Contains(err.Error(), wrong.want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v", name, err)
		}
		write(wrong.file, was)
	}
	if err := os.Remove(cfg.TLS.CAFile); err != nil {
		t.Fatal(err)
	}
	if _, err := KafkaSecurity(cfg); err == nil || !strings.Contains(err.Error(), "tls.ca_file: open ") {
		t.Errorf("a missing file: %v", err)
	}
}
