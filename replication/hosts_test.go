package replication

import (
	"slices"
	"strings"
	"testing"
)

// Each address is one host, whatever sslmode allows, and an address that occurs twice is asked once.
func TestHosts(t *testing.T) {
	t.Setenv("PGPORT", "")
	t.Setenv("PGHOST", "")
	for _, c := range []struct {
		urls []string
		want []string
	}{
		{[]string{"postgres://u:s3cr3t@one/d"}, []string{"one:5432"}},
		{[]string{"postgres://u:s3cr3t@one:5433,two,one:5433/d?sslmode=prefer&target_session_attrs=read-write"}, []string{"one:5433", "two:5432"}},
		{[]string{"host=one,::1 port=1,2 sslmode=disable", "host=two,one port=1"}, []string{"one:1", "[::1]:2", "two:1"}},
		{[]string{"host=/run/postgresql port=5433"}, []string{"/run/postgresql/.s.PGSQL.5433"}},
	} {
		hosts, _, err := Hosts(c.urls, "name", nil)
		var got []string
		for _, h := range hosts {
			got = append(got, h.Address)
			if h.cfg.RuntimeParams["application_name"] != "name" || h.cfg.RuntimeParams["statement_timeout"] == "" || h.cfg.ValidateConnect != nil {
				t.Errorf("%s: a connection without our parameters, or only to a primary", h.Address)
			}
			for _, f := range h.cfg.Fallbacks {
				if hostPort(f.Host, f.Port) != h.Address {
					t.Errorf("%s falls back to %s", h.Address, f.Host)
				}
			}
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", c.urls, got, err, c.want)
		}
	}
	prefer, _, err := Hosts([]string{"postgres://u@one,two/d?sslmode=prefer"}, "name", nil)
	if err != nil || len(prefer) != 2 || prefer[1].cfg.TLSConfig == nil || len(prefer[1].cfg.Fallbacks) != 1 || prefer[1].cfg.Fallbacks[0].TLSConfig != nil {
		t.Errorf("sslmode=prefer: %v, %v: TLS comes first, then none", prefer, err)
	}
	if _, n, err := Hosts([]string{"host=one", "host=two password='s3cr3t"}, "name", nil); err == nil || n != 1 || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("a malformed string: %d, %v", n, err)
	}
}
