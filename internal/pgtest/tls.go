package pgtest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/outboxcdc/outboxcdc/internal/testcert"
)

// UseTLS gives the server a certificate for 127.0.0.1 and localhost, and has it offer TLS to connections from now on; those
// without stay possible. The certificate of the authority behind it is returned in PEM.
func (s *Server) UseTLS() (authority []byte, err error) {
	if s.outside != nil {
		return nil, ErrExternal
	}
	a, err := testcert.New("outboxcdc's tests")
	if err != nil {
		return nil, err
	}
	certificate, key, err := a.Issue("localhost")
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{"server.crt": certificate, "server.key": key} {
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
	return a.PEM, s.Reload()
}
