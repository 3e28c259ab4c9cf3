package natstest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Account is an account of an operator, whose users log in with a credentials file.
type Account struct {
	t                         testing.TB
	operator, system, account nkeys.KeyPair
	trust                     string // the JWT of the operator; a server that runs takes no other one
}

// Limits are those of an account; -1: there is none.
type Limits struct {
	Disk    int // bytes of its streams in files
	Payload int // bytes of a message
}

// NewAccount returns an account.
func NewAccount(t testing.TB) *Account {
	a := &Account{t: t}
	for _, key := range []struct {
		to   *nkeys.KeyPair
		make func() (nkeys.KeyPair, error)
	}{{&a.operator, nkeys.CreateOperator}, {&a.system, nkeys.CreateAccount}, {&a.account, nkeys.CreateAccount}} {
		var err error
		if *key.to, err = key.make(); err != nil {
			t.Fatal(err)
		}
	}
	a.trust = a.sign(a.operator, a.operator, map[string]any{"type": "operator", "system_account": a.public(a.system)})
	return a
}

// Lines are those of the configuration of a server that has the account.
func (a *Account) Lines(l Limits) string {
	limits := map[string]int{"subs": -1, "data": -1, "payload": l.Payload, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
	system := a.sign(a.operator, a.system, map[string]any{"type": "account", "limits": limits})
	limits["disk_storage"], limits["streams"], limits["consumer"] = l.Disk, -1, -1
	account := a.sign(a.operator, a.account, map[string]any{"type": "account", "limits": limits})
	return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {%s: %s, %s: %s}",
		a.trust, a.public(a.system), a.public(a.system), system, a.public(a.account), account)
}

// Credentials returns a credentials file of a new user, until a time; zero: always.
func (a *Account) Credentials(until time.Time) string {
	user, err := nkeys.CreateUser()
	if err != nil {
		a.t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		a.t.Fatal(err)
	}
	return fmt.Sprintf("-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n",
		a.sign(a.account, user, map[string]any{"type": "user", "subs": -1, "data": -1, "payload": -1}, until), seed)
}

// Start runs a server that has the account, whose user is the administrator.
func (a *Account) Start(l Limits) *Server {
	a.t.Helper()
	return start(a.t, []nats.Option{nats.UserCredentialBytes([]byte(a.Credentials(time.Time{})))}, a.Lines(l))
}

// sign returns the JWT of a subject.
func (a *Account) sign(by, subject nkeys.KeyPair, of map[string]any, until ...time.Time) string {
	of["version"] = 2
	claims := map[string]any{"jti": rand.Text(), "iat": time.Now().Unix(), "iss": a.public(by), "sub": a.public(subject), "name": "test", "nats": of}
	for _, end := range until {
		if !end.IsZero() {
			claims["exp"] = end.Unix()
		}
	}
	var parts []string
	for _, part := range []any{map[string]string{"typ": "JWT", "alg": "ed25519-nkey"}, claims} {
		text, err := json.Marshal(part)
		if err != nil {
			a.t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(text))
	}
	signature, err := by.Sign([]byte(strings.Join(parts, ".")))
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.Join(append(parts, base64.RawURLEncoding.EncodeToString(signature)), ".")
}

func (a *Account) public(key nkeys.KeyPair) string {
	text, err := key.PublicKey()
	if err != nil {
		a.t.Fatal(err)
	}
	return text
}
