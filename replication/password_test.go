package replication

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// A password is for the one server that is connected to, and for all of a string if that names several. It is got
// for each connection, and replaces none that the string has if there is no other.
func TestPasswords(t *testing.T) {
	var asked []string
	password := func(_ context.Context, dsn, host, port string) (string, error) {
		asked = append(asked, dsn+" "+host+":"+port)
		return "secret of " + host, nil
	}
	const several = "postgres://u@one,two:5433/d?sslmode=prefer"
	for url, want := range map[string]string{"postgres://u@one/d?sslmode=prefer": "one:5432", several: ":"} {
		c := Config{URL: func() (string, error) { return url, nil }, Password: password}
		asked = nil
		for range 2 {
			cfg, err := c.parse(t.Context(), nil)
			must(t, err)
			if host, _, _ := strings.Cut(want, ":"); cfg.Password != "secret of "+host {
				t.Errorf("%s: %q", url, cfg.Password)
			}
		}
		if !slices.Equal(asked, []string{url + " " + want, url + " " + want}) {
			t.Errorf("%s: asked for %q", url, asked)
		}
	}
	asked = nil
	hosts, _, err := Hosts([]string{several}, "name", password)
	must(t, err)
	if len(asked) != 0 {
		t.Errorf("asked for %q before a connection", asked)
	}
	for _, h := range hosts {
		_, err := h.Prepare(t.Context())
		must(t, err)
		if h.cfg.Password != "" {
			t.Errorf("%s keeps its password", h.Address)
		}
	}
	if !slices.Equal(asked, []string{several + " one:5432", several + " two:5433"}) {
		t.Errorf("asked for %q", asked)
	}
	c := Config{URL: func() (string, error) { return "postgres://u:own@one/d", nil }, Password: func(context.Context, string, string, string) (string, error) { return "", nil }}
	if cfg, err := c.parse(t.Context(), nil); err != nil || cfg.Password != "own" {
		t.Errorf("%v: the password of the string is lost", err)
	}
}

// A command ends when the connection is not wanted any more, and its failure is one that a retry may fix.
func TestPasswordsEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wait := func(ctx context.Context, _, _, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	s, err := NewSource(Config{Slot: "a", URL: func() (string, error) { return "postgres://u@one/d", nil }, Password: wait})
	must(t, err)
	hosts, _, err := Hosts([]string{"postgres://u@one/d"}, "name", wait)
	must(t, err)
	_, opened := s.Open(ctx)
	_, looked := s.Look(ctx)
	_, connected := s.Connect(ctx, "name", false)
	_, asked := hosts[0].Connect(ctx)
	for what, err := range map[string]error{"open": opened, "look": looked, "connect": connected, "host": asked} {
		if !errors.Is(err, context.Canceled) || KindOf(err) != Credentials {
			t.Errorf("%s: %v (%s)", what, err, KindOf(err))
		}
	}
}
