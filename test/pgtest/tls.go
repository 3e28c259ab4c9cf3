package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// UseTLS gives the server a certificate for 127.0.0.1 and localhost, and offers TLS to new connections; connections
// without stay possible. It returns the certificate of the authority in PEM.
func (s *Server) UseTLS() (authority []byte, err error) {
	a, err := testcert.New("outboxcdc's tests")
	if err != nil {
		return nil, err
	}
	return a.PEM, s.Certify(a, a)
}

// Certify is UseTLS with a certificate of that authority, for hosts instead of this machine if any are named. Clients'
// certificates are issued by clients.
func (s *Server) Certify(a, clients *testcert.Authority, hosts ...string) error {
	if s.outside != nil {
		return ErrExternal
	}
	certificate, key, err := a.Issue("localhost", hosts...)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"server.crt": certificate, "server.key": key, "clients.crt": clients.PEM} {
		if err := s.write(name, text); err != nil {
			return err
		}
	}
	if err := s.AppendConf("ssl = on", "ssl_ca_file = 'clients.crt'"); err != nil {
		return err
	}
	return s.Reload()
}

// write writes a file into the server's data directory.
func (s *Server) write(name string, text []byte) error {
	path := filepath.Join(s.DataDir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write the server's %s: %w", name, err)
	}
	return s.account.Give(path)
}

// OnlyHosts replaces pg_hba.conf and reloads it.
func (s *Server) OnlyHosts(lines ...string) error {
	if s.outside != nil {
		return ErrExternal
	}
	if err := s.write("pg_hba.conf", []byte(strings.Join(lines, "\n")+"\n")); err != nil {
		return err
	}
	return s.Reload()
}
