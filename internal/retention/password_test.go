package retention

import (
	"context"
	"errors"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// A connection that is opened later, in a pass that takes longer than a token is valid, has a password of its own.
// A command that fails is tried again by the next pass.
func TestEachConnectionHasItsPassword(t *testing.T) {
	const dsn = "host=127.0.0.1 port=1 user=u sslmode=disable"
	var printed []string
	password := func(_ context.Context, got, host, port string) (string, error) {
		if got != dsn || host != "127.0.0.1" || port != "1" {
			t.Errorf("a password for %s, %s:%s", got, host, port)
		}
		printed = append(printed, "token")
		return "token", nil
	}
	p, err := prepare(dsn, password)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := p.reopen(t.Context()); err == nil || len(printed) != n+1 {
			t.Errorf("attempt %d: %d passwords, %v", n+1, len(printed), err)
		}
	}
	if p.config.Password != "" {
		t.Error("a password is kept")
	}
	refused := errors.New("no password")
	_, err = Connect(t.Context(), dsn, func(context.Context, string, string, string) (string, error) { return "", refused })
	if !errors.Is(err, refused) || exit.Code(err) != exit.Unavailable {
		t.Errorf("%v: exit code %d", err, exit.Code(err))
	}
}
