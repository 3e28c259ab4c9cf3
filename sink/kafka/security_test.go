package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/internal/credential"
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

// TestMSK: with AWS_MSK_IAM a broker gets a signed token by OAUTHBEARER, a new one before the life of the session ends.
func TestMSK(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "ID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	f.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		res := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
		if res.SupportedMechanisms = []string{"OAUTHBEARER"}; r.(*kmsg.SASLHandshakeRequest).Mechanism != "OAUTHBEARER" {
			res.ErrorCode = kerr.UnsupportedSaslMechanism.Code
		}
		return res, nil, true
	})
	var taken atomic.Int32
	f.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		res := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		_, token, _ := strings.Cut(string(r.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes), "auth=Bearer ")
		signed, err := base64.RawURLEncoding.DecodeString(strings.Trim(token, "\x01"))
		if err != nil || !strings.HasPrefix(string(signed), "https://kafka.eu-central-1.amazonaws.com/?") || !strings.Contains(string(signed), "&X-Amz-Credential=ID%2F") {
			res.ErrorCode = kerr.SaslAuthenticationFailed.Code
			t.Errorf("%s: %v", signed, err)
		}
		res.SessionLifetimeMillis = 100
		taken.Add(1)
		return res, nil, true
	})
	cfg := testConfig(f.ListenAddrs()...)
	cfg.Security = func() (brokerauth.Config, error) {
		return brokerauth.Config{SASL: &brokerauth.SASL{Mechanism: credential.MSK, Region: "eu-central-1"}}, nil
	}
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	waitReady(t, p, "orders")
	n := uint64(0)
	eventually(t, "new tokens", func() bool {
		send(t, p, n, record("orders", "k", "v"))
		n++
		return taken.Load() >= 6
	})
	must(t, finish(within(time.Minute), p))
	if got := uint64(len(l.acks())); got != n {
		t.Errorf("%d of %d events acknowledged", got, n)
	}
}

// TestTokenReason: the error of a session that ends without a token has the reason SECRET.
func TestTokenReason(t *testing.T) {
	if k := kindOf(fmt.Errorf("connect: %w", &brokerauth.TokenError{})); k.reason != reasonSecret {
		t.Errorf("reason %s", k.reason)
	}
}
