package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
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

// TestMSK: with AWS_MSK_IAM a broker gets a signed token by OAUTHBEARER, and again before the life of the session ends.
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

// bearers makes the fake accept tokens, for a session of life milliseconds, and counts the requests of each kind.
func bearers(f *fake, life int64) (handshakes, taken *atomic.Int32) {
	handshakes, taken = new(atomic.Int32), new(atomic.Int32)
	f.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		handshakes.Add(1)
		res := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
		res.SupportedMechanisms = []string{"OAUTHBEARER"}
		return res, nil, true
	})
	f.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		taken.Add(1)
		res := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		res.SessionLifetimeMillis = life
		return res, nil, true
	})
	return handshakes, taken
}

// TestProbeRunsOneCommand: a probe runs the command that prints tokens once, however slow it is, for all brokers.
func TestProbeRunsOneCommand(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(9, "orders"))
	handshakes, taken := bearers(f, 0)
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	cfg := testConfig(f.ListenAddrs()...)
	cfg.HeadStart = time.Millisecond
	cfg.Security = func() (brokerauth.Config, error) {
		return brokerauth.Config{SASL: &brokerauth.SASL{Mechanism: "OAUTHBEARER", TokenCommand: []string{"cat", pipe}}}, nil
	}
	c := newTestCluster(t, cfg)
	c.waiting = map[string]struct{}{"orders": {}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	probed := make(chan error, 1)
	go func() { probed <- c.Probe(ctx) }()
	eventually(t, "connections that wait for the token", func() bool { return handshakes.Load() == 3 })
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the command
	must(t, err)
	_, err = w.WriteString("token\n")
	must(t, err)
	must(t, w.Close())
	if err := <-probed; err != nil || taken.Load() < 3 {
		t.Errorf("with a token for all: %v; %d connections", err, taken.Load())
	}
}

// TestTokenFailsOnce: a connection that gets no token when it is to be authenticated again is replaced, and the session
// goes on. If no token is made any more, it ends with the reason SECRET.
func TestTokenFailsOnce(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	bearers(f, 1) // for nearly each request again
	t.Chdir(t.TempDir())
	create := func(name string) { must(t, os.WriteFile(name, nil, 0o600)) }
	cfg := testConfig(f.ListenAddrs()...)
	cfg.AwayBudget = 3 * time.Second
	// A token that expires soon is not shared.
	expired := "x." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1}`)) + ".x"
	command := []string{"sh", "-c", "if [ -e never ] || mv once failed; then exit 1; fi; echo " + expired}
	cfg.Security = func() (brokerauth.Config, error) {
		return brokerauth.Config{SASL: &brokerauth.SASL{Mechanism: "OAUTHBEARER", TokenCommand: command}}, nil
	}
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	waitReady(t, p, "orders")
	n := uint64(0)
	eventually(t, "a batch that is sent again", func() bool {
		create("once")
		send(t, p, n, record("orders", "k", "v"))
		n++
		eventually(t, "the events", func() bool { return uint64(len(l.acks())) == n || p.ended() })
		return testutil.ToFloat64(c.metrics.retries) > 0 || p.ended()
	})
	if p.ended() {
		t.Fatalf("the session has ended: %v", l.failure(t))
	}
	create("never")
	for !p.ended() { // a request may need no token yet
		if p.Send(record("orders", "k", "v"), n) != nil {
			break
		}
		p.Flush()
		n++
		eventually(t, "an acknowledgement, or the end", func() bool { return uint64(len(l.acks())) == n || p.ended() })
	}
	var failed *failure
	if err := l.failure(t); !errors.As(err, &failed) || failed.Reason() != reasonSecret {
		t.Errorf("without a token: %v", err)
	}
	if _ = p.Close(endedContext()); p.Unanswered() {
		t.Error("a batch that was not sent may be stored")
	}
}

// TestTokenReason: the error of a session that ends without a token has the reason SECRET.
func TestTokenReason(t *testing.T) {
	if k := kindOf(fmt.Errorf("connect: %w", &brokerauth.TokenError{})); k.reason != reasonSecret {
		t.Errorf("reason %s", k.reason)
	}
}
