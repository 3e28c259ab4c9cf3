// Package testcert creates certificates for servers and clients of tests. They are valid for a day, and for 127.0.0.1
// and localhost unless another host is named.
package testcert

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
	"time"
)

// Authority issues certificates.
type Authority struct {
	PEM  []byte // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New creates an authority.
func New(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create a key: %w", err)
	}
	template := template(name)
	template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	a := &Authority{cert: template, key: key}
	if a.PEM, err = a.sign(template, &key.PublicKey); err != nil {
		return nil, err
	}
	return a, nil
}

// Issue creates a certificate for a server or a client with that common name, and its key (PKCS #8), both in PEM. It is
// valid for hosts instead of this machine, if any are named.
func (a *Authority) Issue(name string, hosts ...string) (certificate, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create a key: %w", err)
	}
	template := template(name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	if len(hosts) > 0 {
		template.DNSNames, template.IPAddresses = hosts, nil
	}
	if certificate, err = a.sign(template, &own.PublicKey); err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		return nil, nil, fmt.Errorf("write a key: %w", err)
	}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), nil
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), BasicConstraintsValid: true,
	}
}

func (a *Authority) sign(template *x509.Certificate, key *ecdsa.PublicKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
