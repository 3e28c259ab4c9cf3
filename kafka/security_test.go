package kafka

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// A session and a probe ask for certificates and secrets anew, and say what is wrong with them without repeating them.
func TestSecurityIsAskedAgain(t *testing.T) {
	const user, password = "u", "s3cr3t"
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			f := newFake(t, kfake.EnableSASL(), kfake.Superuser(mechanism, user, password))
			now := Security{SASL: &SASL{Mechanism: mechanism, User: user, Password: "old"}}
			var broken error
			cfg := testConfig(f.ListenAddrs()...)
			cfg.Security = func() (Security, error) { return now, broken }
			c := newTestCluster(t, cfg)
			refused := func(want string) {
				t.Helper()
				_, opening := c.Open(context.Background(), Callbacks{})
				for _, err := range []error{opening, c.Probe(context.Background())} {
					var f *failure
					if !errors.As(err, &f) || f.Reason() != want || f.MissingRight() || strings.Contains(err.Error(), password) {
						t.Errorf("want reason %s: %v", want, err)
					}
				}
			}
			refused(reasonConnection) // kfake hangs up; what Kafka answers is seen in test/integration
			broken = errors.New("no such file")
			refused(reasonSecret)
			broken, now.SASL = nil, &SASL{Mechanism: mechanism, User: user, Password: password}
			if err := c.Probe(context.Background()); err != nil {
				t.Error(err)
			}
			p, _ := openSession(t, c)
			if err := p.Close(done()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A token server's answer may repeat what it was sent; what we say of it does not.
func TestTokenRefused(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error": "invalid_client", "error_description": "s3cr3t is wrong"}`))
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { answer(w, req) }))
	defer srv.Close()
	_, err := tokens{context.Background(), &SASL{User: "u", Password: "s3cr3t", TokenURL: srv.URL}}.Token()
	if err == nil || !strings.Contains(err.Error(), srv.URL+" (kafka.sasl.token_url): the answer is 401 Unauthorized, \"invalid_client\"") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("refused: %v", err)
	}
	if kindOf(err).reason != reasonSecret {
		t.Errorf("reason %s", kindOf(err).reason)
	}
	answer = func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("s3cr3t"))
	}
	if _, err := (tokens{context.Background(), &SASL{User: "u", Password: "s3cr3t", TokenURL: srv.URL}}).Token(); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("broken: %v", err)
	}
	// Nor does it repeat what stands behind the ? of the URL, or the error of a request that nobody answers.
	for _, server := range []string{srv.URL, "http://127.0.0.1:1"} {
		_, err := tokens{context.Background(), &SASL{User: "u", Password: "p", TokenURL: server + "/t?key=s3cr3t"}}.Token()
		if err == nil || strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), server+"/t (kafka.sasl.token_url): ") {
			t.Errorf("%s: %v", server, err)
		}
	}
}
