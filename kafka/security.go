package kafka

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// Security is how connections to the brokers are protected, and who we are to them.
type Security struct {
	TLS  *tls.Config // nil: plain text
	SASL *SASL       // nil: none
}

// SASL is who we are to the brokers.
type SASL struct {
	Mechanism      string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER
	User, Password string
	// Of OAUTHBEARER: where a token is to be had for User and Password, the id and the secret of a client (RFC 6749, section
	// 4.4), and which scopes it is to have.
	TokenURL string
	Scopes   []string
}

// tokenTimeout bounds one request for a token. Sarama asks while it opens a connection, or authenticates it again.
const tokenTimeout = 10 * time.Second

// secure asks how connections are protected now.
func (c *Cluster) secure() (Security, error) {
	if c.cfg.Security == nil {
		return Security{}, nil
	}
	s, err := c.cfg.Security()
	if err != nil {
		return s, &failure{doing: "read certificates and secrets for kafka", err: &secretError{err}}
	}
	return s, nil
}

// apply puts it into the configuration of a session's connections.
func (s Security) apply(ctx context.Context, conf *sarama.Config) {
	if s.TLS != nil {
		conf.Net.TLS.Enable, conf.Net.TLS.Config = true, s.TLS
	}
	if s.SASL == nil {
		return
	}
	sasl := &conf.Net.SASL
	sasl.Enable, sasl.Handshake, sasl.Version = true, true, sarama.SASLHandshakeV1
	sasl.Mechanism, sasl.User, sasl.Password = sarama.SASLMechanism(s.SASL.Mechanism), s.SASL.User, s.SASL.Password
	switch sasl.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: sha256.New} }
	case sarama.SASLTypeSCRAMSHA512:
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: sha512.New} }
	case sarama.SASLTypeOAuth:
		sasl.TokenProvider = tokens{ctx, s.SASL}
	}
}

// scramClient fits scram's conversation to sarama's interface (RFC 5802; Kafka binds no channel).
type scramClient struct {
	hash scram.HashGeneratorFcn
	conv *scram.ClientConversation
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("prepare user name and password for SCRAM: %w", err)
	}
	c.conv = client.NewConversation()
	return nil
}

func (c *scramClient) Step(challenge string) (string, error) { return c.conv.Step(challenge) }
func (c *scramClient) Done() bool                            { return c.conv.Done() }

// tokens asks for a token for each connection. A session has few of them, so none is kept: what was revoked is not used again.
type tokens struct {
	ctx  context.Context // ends with the session's connections
	sasl *SASL
}

func (t tokens) Token() (*sarama.AccessToken, error) {
	ctx, cancel := context.WithTimeout(t.ctx, tokenTimeout)
	defer cancel()
	conf := clientcredentials.Config{ClientID: t.sasl.User, ClientSecret: t.sasl.Password, TokenURL: t.sasl.TokenURL, Scopes: t.sasl.Scopes}
	token, err := conf.Token(ctx)
	if err != nil {
		return nil, &tokenError{t.sasl.TokenURL, err}
	}
	return &sarama.AccessToken{Token: token.AccessToken}, nil
}

// secretError is a certificate or a secret that cannot be read.
type secretError struct{ error }

func (e *secretError) Unwrap() error { return e.error }

// tokenError says why there is no token, without what the server has answered: it may repeat what it was sent.
type tokenError struct {
	url string
	err error
}

func (e *tokenError) Error() string {
	why := e.err.Error()
	if answer, ok := errors.AsType[*oauth2.RetrieveError](e.err); ok {
		why = "the answer is " + answer.Response.Status
		if answer.ErrorCode != "" {
			why += ", " + strconv.Quote(answer.ErrorCode)
		}
	}
	if request, ok := errors.AsType[*url.Error](e.err); ok { // it repeats the whole URL
		why = request.Err.Error()
	}
	server, _, _ := strings.Cut(e.url, "?") // what is behind it may be a key
	return "get a token from " + server + " (kafka.sasl.token_url): " + why
}

func (e *tokenError) Unwrap() error { return e.err }
