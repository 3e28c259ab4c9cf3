package natssink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/natstest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// TestLogin: each way to log in, with TLS, and what a login that fails says, without the secret.
func TestLogin(t *testing.T) {
	authority, err := testcert.New("authority")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := authority.Issue("server", "localhost")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"cert": certificate, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := pair.PublicKey()
	seed, _ := pair.Seed()
	login, err := ParseCredentials(append(seed, '\n'))
	if err != nil {
		t.Fatal(err)
	}
	plain := natstest.Start(t, admin, fmt.Sprintf("authorization: {users: [{user: admin, password: admin}, {nkey: %s}]}", public))
	withToken := natstest.Start(t, "t0ken", "authorization: {token: t0ken}")
	stranger, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, _ = stranger.Seed()
	unknown, err := ParseCredentials(seed)
	if err != nil {
		t.Fatal(err)
	}
	secure := natstest.Start(t, "", "tls: {cert_file: "+filepath.Join(dir, "cert")+", key_file: "+filepath.Join(dir, "key")+"}", "allow_non_tls: true")
	_, number, _ := strings.Cut(secure.Addr, ":")
	port := ":" + number
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM)
	for _, test := range []struct {
		url, code string
		login     Login
		tls       *tls.Config
	}{
		{"nats://admin:admin@" + plain.Addr, "", Login{}, nil},
		{"nats://127.0.0.1:1,nats://admin:admin@" + plain.Addr, "", Login{}, nil},
		{"nats://" + plain.Addr, "", login, nil},
		{"nats://" + plain.Addr, lane.CodeDenied, Login{}, nil},
		{"nats://" + plain.Addr, lane.CodeDenied, unknown, nil},
		{"nats://t0ken@" + withToken.Addr, "", Login{}, nil},
		{"nats://Geh3im@" + withToken.Addr, lane.CodeDenied, Login{}, nil},
		{"nats://admin:Geh3im@" + plain.Addr, lane.CodeDenied, Login{}, nil},
		{"nats://Geh3im@" + plain.Addr, lane.CodeDenied, Login{}, nil},
		{"tls://admin:Geh3im@" + plain.Addr, lane.CodeTLS, Login{}, nil},
		{"tls://localhost" + port, "", Login{}, &tls.Config{RootCAs: roots}},
		{"tls://localhost" + port, lane.CodeTLS, Login{}, nil},
		{"nats://u:Geh3im@127.0.0.1:1", lane.CodeConnection, Login{}, nil},
		{"nats://Geh3im%", lane.CodeSecret, Login{}, nil},
		{"http://Geh3im", lane.CodeSecret, Login{}, nil},
	} {
		r := testReceiver(t, "", func(c *Config) {
			c.Target = func() (Target, error) { return Target{URL: test.url, Login: test.login, TLS: test.tls}, nil }
		})
		err := r.Probe(t.Context())
		var f *lane.Failure
		switch {
		case test.code == "" && err == nil:
		case !errors.As(err, &f) || f.Code != test.code || f.PermissionDenied() != (test.code == lane.CodeDenied) || strings.Contains(f.Error(), "Geh3im"):
			t.Errorf("%s: %v", test.url, err)
		}
	}
	for _, text := range []string{"", "Geh3im", "-----BEGIN NATS USER JWT-----\nGeh3im\n"} {
		if _, err := ParseCredentials([]byte(text)); err == nil || strings.Contains(err.Error(), "Geh3im") {
			t.Error(err)
		}
	}
}

// TestDurability: what doctor says about a stream is what the server says about it.
func TestDurability(t *testing.T) {
	server := natstest.Start(t, admin, users(documented))
	daemon := testReceiver(t, "nats://daemon:"+password+"@"+server.Addr)
	says := func(what, means string, risks ...string) {
		t.Helper()
		got, all, err := daemon.Durability(t.Context())
		ok := err == nil && strings.Contains(got, means) && len(all) == len(risks)
		for i := range risks {
			ok = ok && strings.Contains(all[i], risks[i])
		}
		if !ok {
			t.Errorf("%s: %s, %q, %v", what, got, all, err)
		}
	}
	says("none", "nothing yet", "it has no stream EVENTS")
	const synced = "sync_interval"
	for _, test := range []struct {
		cfg   jetstream.StreamConfig
		means string
		risks []string
	}{
		{jetstream.StreamConfig{}, "may not have synced to the disk yet, on one server; a repeat within 2m0s", []string{synced}},
		{jetstream.StreamConfig{Storage: jetstream.MemoryStorage, Duplicates: time.Minute}, "in memory, on one server; a repeat within 1m0s", []string{"a restart of the server loses all"}},
		{jetstream.StreamConfig{NoAck: true}, "", []string{"no_ack", synced}},
		{jetstream.StreamConfig{MaxMsgs: 9}, "", []string{synced, "drops the oldest"}},
		{jetstream.StreamConfig{MaxMsgs: 9, Discard: jetstream.DiscardNew}, "", []string{synced}},
		{jetstream.StreamConfig{MaxMsgsPerSubject: 9, Discard: jetstream.DiscardNew}, "", []string{synced, "oldest events of a subject"}},
		{jetstream.StreamConfig{MaxMsgsPerSubject: 9, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true}, "", []string{synced}},
		{jetstream.StreamConfig{Mirror: &jetstream.StreamSource{Name: "ORIGIN"}}, "", []string{"takes no event", synced}},
		{jetstream.StreamConfig{MaxAge: time.Hour}, "", []string{synced, "after 1h0m0s"}},
		{jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "", []string{synced, "retention interest"}},
		{jetstream.StreamConfig{PersistMode: jetstream.AsyncPersistMode}, "", []string{synced, "before it is written"}},
	} {
		server.Delete(natstest.Stream)
		if test.cfg.Mirror == nil {
			test.cfg.Subjects = []string{topic}
		}
		server.Create(test.cfg)
		says(fmt.Sprintf("%+v", test.cfg), test.means, test.risks...)
	}
	if means, _ := ofStream(&streamConfig{Storage: "file", Replicas: 3}); !strings.Contains(means, "on 2 of 3 servers") {
		t.Error(means)
	}
	server.Reload(users(`"orders"`))
	says("forbidden", "unknown", "let the user publish to $JS.API.STREAM.INFO.EVENTS")
	server.Kill()
	if _, _, err := daemon.Durability(t.Context()); err == nil {
		t.Error("a server that is down")
	}
	server.Start()
}
