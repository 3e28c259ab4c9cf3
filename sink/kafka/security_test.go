package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

// Each session and each probe calls Config.Security. The error shows no secret.
func TestSecurityIsReadAgain(t *testing.T) {
	const user, password = "u", "s3cr3t"
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			f := newFake(t, kfake.EnableSASL(), kfake.Superuser(mechanism, user, password))
			now := brokerauth.Config{SASL: &brokerauth.SASL{Mechanism: mechanism, User: user, Password: "old"}}
			var broken error
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Security = func() (brokerauth.Config, error) { return now, broken }
			c := newTestCluster(t, cfg)
			refused := func(want string) {
				t.Helper()
				_, opening := c.Open(context.Background(), Callbacks{})
				for _, err := range []error{opening, c.Probe(context.Background())} {
					var f *failure
					if !errors.As(err, &f) || f.Reason() != want || f.PermissionDenied() || strings.Contains(err.Error(), password) {
						t.Errorf("want reason %s: %v", want, err)
					}
				}
			}
			refused(reasonConnection) // kfake closes the connection; test/integration has Kafka's answer
			broken = errors.New("no such file")
			refused(reasonSecret)
			broken, now.SASL = nil, &brokerauth.SASL{Mechanism: mechanism, User: user, Password: password}
			if err := c.Probe(context.Background()); err != nil {
				t.Error(err)
			}
			p, _ := openSession(t, c)
			if err := p.Close(endedContext()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTokenReason: the error of a session that ends without a token has the reason SECRET.
func TestTokenReason(t *testing.T) {
	if k := kindOf(fmt.Errorf("connect: %w", &brokerauth.TokenError{})); k.reason != reasonSecret {
		t.Errorf("reason %s", k.reason)
	}
}
