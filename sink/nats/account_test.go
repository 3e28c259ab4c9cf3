package natssink

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/natstest"
)

// accountSender sends with a credentials file.
func accountSender(t *testing.T, server *natstest.Server, credentials string) (*sender, error) {
	t.Helper()
	login, err := ParseCredentials([]byte(credentials))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := testReceiver(t, "", func(c *Config) {
		c.Target = func() (Target, error) { return Target{URL: "nats://" + server.Addr, Login: login}, nil }
		c.Timeout = time.Minute
	}).Reach(t.Context())
	if err != nil {
		return nil, err
	}
	t.Cleanup(tr.Close)
	return &sender{t, tr}, nil
}

// TestCredentialsFile: a server with an operator takes the user of a credentials file. One that is wrong or expires is
// refused, and the error says when it expired, without the secret.
func TestCredentialsFile(t *testing.T) {
	account := natstest.NewAccount(t)
	server := account.Start(natstest.Limits{Disk: -1, Payload: -1})
	server.Create(jetstream.StreamConfig{Subjects: []string{topic}})
	valid := account.Credentials(time.Now().Add(time.Hour))
	s, err := accountSender(t, server, valid)
	if err != nil {
		t.Fatal(err)
	}
	if why := s.send(recordAt("a", "k", topic, 1)); why != nil {
		t.Error(why)
	}
	jwt, _, _ := strings.Cut(valid, "-----BEGIN USER")
	_, seed, _ := strings.Cut(account.Credentials(time.Time{}), "-----BEGIN USER")
	for what, test := range map[string]struct{ credentials, says string }{
		"another account": {natstest.NewAccount(t).Credentials(time.Time{}), "let the server accept"},
		"another seed":    {jwt + "-----BEGIN USER" + seed, "let the server accept"},
		"expired":         {account.Credentials(time.Unix(1_700_000_000, 0)), "has expired at 2023-11-14T22:13:20Z; put a new one there"},
	} {
		_, err := accountSender(t, server, test.credentials)
		var f *lane.Failure
		if !errors.As(err, &f) || !f.PermissionDenied() || f.Code != lane.CodeDenied || !strings.Contains(f.Error(), test.says) || hasLineOf(f.Error(), test.credentials) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s, err = accountSender(t, server, account.Credentials(time.Now().Add(3*time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // the connection is cut when the JWT expires
		why := s.send(recordAt("b", "k", topic, 2))
		if why == nil && time.Now().Before(end) {
			continue
		}
		if why != nil && why.Meaning == lane.Again && time.Now().Before(end) {
			continue
		}
		if why == nil || !why.PermissionDenied() || !strings.Contains(why.Error(), "has expired at") {
			t.Error(why)
		}
		break
	}
}

// hasLineOf reports whether a text has a line of a credentials file that is a secret.
func hasLineOf(text, credentials string) bool {
	for line := range strings.Lines(credentials) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "-") && strings.Contains(text, line) {
			return true
		}
	}
	return false
}

// TestAccountLimits: at the limit of an account, or of a server, an event is not acknowledged, and is taken when there
// is room. An event that is larger than what the account may send is recognised before it is sent.
func TestAccountLimits(t *testing.T) {
	account := natstest.NewAccount(t)
	server := account.Start(natstest.Limits{Disk: 20_000, Payload: 3000})
	server.Create(jetstream.StreamConfig{Subjects: []string{topic}})
	s, err := accountSender(t, server, account.Credentials(time.Time{}))
	if err != nil {
		t.Fatal(err)
	}
	large := recordAt("large", "k", topic, 1)
	large.Value = []byte(strings.Repeat("x", 3000))
	if p := s.Check(large); p == nil || !strings.Contains(p.Message, "NATS takes 3000 (max_payload)") {
		t.Errorf("larger than the account may send: %v", p)
	}
	if why := s.send(large); why == nil || why.Meaning != lane.Refused {
		t.Errorf("larger than the account may send: %v", why)
	}
	fill := func(s *sender, says string) {
		t.Helper()
		stored := server.Count()
		for i := 1; ; i++ {
			rec := recordAt(fmt.Sprint("e", stored+i), "k", topic, uint64(stored+i))
			rec.Value = []byte(strings.Repeat("x", 2000))
			why := s.send(rec)
			if why == nil && i < 1000 {
				continue
			}
			if why == nil || why.Meaning != lane.Again || why.Code != lane.CodeUnavailable || !strings.Contains(why.Error(), says) {
				t.Errorf("%d: %v", i, why)
			}
			if n := server.Count(); n != stored+i-1 {
				t.Errorf("%d messages of %d acknowledged ones", n, stored+i-1)
			}
			return
		}
	}
	fill(s, "resource limits exceeded for account")
	server.Reload(account.Lines(natstest.Limits{Disk: 40_000, Payload: 3000}))
	fill(s, "resource limits exceeded for account")
	server.Purge()
	if why := s.send(recordAt("after", "k", topic, 10_000)); why != nil {
		t.Error(why)
	}

	server = natstest.Start(t, "", "jetstream: {max_file_store: 20000}")
	server.Create(jetstream.StreamConfig{Subjects: []string{topic}})
	s = newSender(t, "nats://"+server.Addr)
	fill(s, "insufficient resources")
	server.Purge()
	if why := s.send(recordAt("after", "k", topic, 10_000)); why != nil {
		t.Error(why)
	}
}
