package sinktest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// TLS is the contract of a sink with TLS, before a server without it. probe connects to an address with the settings
// of a user. The server must prove its name by a certificate of an authority that the user trusts, and may require one
// of the client. reason is what a connection without that fails with.
func TLS(t *testing.T, server, reason string, probe func(addr string, conf *tls.Config) error) {
	authority, err := testcert.New("authority")
	if err != nil {
		t.Fatal(err)
	}
	pair := func(name string, hosts ...string) tls.Certificate {
		cert, key, err := authority.Issue(name, hosts...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority.PEM)
	for what, test := range map[string]struct {
		server, client *tls.Config
		ok             bool
	}{
		"trusted":           {&tls.Config{Certificates: []tls.Certificate{pair("server")}}, &tls.Config{RootCAs: trusted}, true},
		"unknown authority": {&tls.Config{Certificates: []tls.Certificate{pair("server")}}, nil, false},
		"another name":      {&tls.Config{Certificates: []tls.Certificate{pair("server", "elsewhere")}}, &tls.Config{RootCAs: trusted}, false},
		"client":            {requiring(pair("server"), trusted), &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{pair("client")}}, true},
		"no client":         {requiring(pair("server"), trusted), &tls.Config{RootCAs: trusted}, false},
	} {
		addr := Proxy(t, server, func(client, to net.Conn) {
			secure := tls.Server(client, test.server)
			if secure.Handshake() != nil { // the client shall read why
				_, _ = io.Copy(io.Discard, client)
				return
			}
			go func() {
				_, _ = io.Copy(secure, to)
				_ = secure.Close()
			}()
			_, _ = io.Copy(to, secure)
			_ = to.Close()
		})
		err := probe(strings.Replace(addr, "127.0.0.1", "localhost", 1), test.client)
		var r interface{ Reason() string }
		switch {
		case test.ok && err == nil:
		case test.ok, !errors.As(err, &r), r.Reason() != reason:
			t.Errorf("%s: %v", what, err)
		}
	}
}

func requiring(cert tls.Certificate, trusted *x509.CertPool) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
}
