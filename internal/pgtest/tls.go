package pgtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// UseTLS gives the server a certificate of its own for 127.0.0.1 and localhost, and has it offer TLS to connections from
// now on; those without stay possible. The certificate is its own authority, and is returned in PEM.
func (s *Server) UseTLS() (certificate []byte, err error) {
	if s.outside != nil {
		return nil, ErrExternal
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{
		"server.crt": certificate,
		"server.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		path := filepath.Join(s.DataDir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, fmt.Errorf("write the server's %s: %w", name, err)
		}
		if err := s.account.own(path); err != nil {
			return nil, err
		}
	}
	if err := s.AppendConf("ssl = on"); err != nil {
		return nil, err
	}
	return certificate, s.Reload()
}
