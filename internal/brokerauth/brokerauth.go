// Package brokerauth configures the security of connections to the brokers: TLS, and SASL with PLAIN, SCRAM,
// OAUTHBEARER and the tokens of Amazon MSK.
package brokerauth

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

	"github.com/outboxcdc/outboxcdc/internal/credential"
)

// Config says how a connection is protected and authenticated.
type Config struct {
	TLS  *tls.Config // nil: plain text
	SASL *SASL       // nil: none
}

// SASL is how a client authenticates itself.
type SASL struct {
	Mechanism      string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM
	User, Password string
	// For OAUTHBEARER: the address at which User and Password, the id and the secret of a client, get a token (RFC
	// 6749, section 4.4), and the scopes that the token is to have.
	TokenURL string
	Scopes   []string
	// TokenCommand prints a token for OAUTHBEARER, instead of TokenURL, or the credentials for AWS_MSK_IAM; none: there is
	// no command.
	TokenCommand []string
	Region       string // of AWS, for AWS_MSK_IAM
}

// tokenTimeout is the maximum time of one request for a token. Sarama sends it while it opens or reauthenticates a
// connection.
const tokenTimeout = 10 * time.Second

// Apply sets the configuration of connections. Requests for tokens end with ctx.
func (s Config) Apply(ctx context.Context, conf *sarama.Config) {
	if s.TLS != nil {
		conf.Net.TLS.Enable, conf.Net.TLS.Config = true, s.TLS
	}
	if s.SASL == nil {
		return
	}
	sasl := &conf.Net.SASL
	sasl.Enable, sasl.Handshake, sasl.Version = true, true, sarama.SASLHandshakeV1
	sasl.Mechanism, sasl.User, sasl.Password = sarama.SASLMechanism(s.SASL.Mechanism), s.SASL.User, s.SASL.Password
	if s.SASL.Mechanism == credential.MSK {
		sasl.Mechanism = sarama.SASLTypeOAuth // how MSK takes such tokens
	}
	switch sasl.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: sha256.New} }
	case sarama.SASLTypeSCRAMSHA512:
		sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: sha512.New} }
	case sarama.SASLTypeOAuth:
		sasl.TokenProvider = newTokens(ctx, s.SASL)
	}
}

// scramClient adapts a conversation of package scram to sarama's interface (RFC 5802; Kafka uses no channel binding).
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

// tokens are those of one sarama configuration.
type tokens struct{ shared }

func newTokens(ctx context.Context, sasl *SASL) *tokens {
	return &tokens{shared{ctx: ctx, request: sasl.requestToken}}
}

// Token implements [sarama.AccessTokenProvider]. The error is a *TokenError.
func (t *tokens) Token() (*sarama.AccessToken, error) {
	token, err := t.get()
	if err == nil {
		return &sarama.AccessToken{Token: token}, nil
	}
	if _, ok := errors.AsType[*TokenError](err); !ok {
		err = &TokenError{err: err}
	}
	return nil, err
}

// requestToken makes a token, or requests one from TokenURL.
func (s *SASL) requestToken(ctx context.Context) (string, error) {
	if s.Local() {
		return s.Token(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	conf := clientcredentials.Config{ClientID: s.User, ClientSecret: s.Password, TokenURL: s.TokenURL, Scopes: s.Scopes}
	token, err := conf.Token(ctx)
	if err != nil {
		return "", &TokenError{url: s.TokenURL, err: err}
	}
	return token.AccessToken, nil
}

// Local is whether [SASL.Token] makes the tokens, without a token server.
func (s *SASL) Local() bool { return s.Mechanism == credential.MSK || len(s.TokenCommand) > 0 }

// Token runs the command that prints a token, or signs one for Amazon MSK.
func (s *SASL) Token(ctx context.Context) (string, error) {
	if s.Mechanism == credential.MSK {
		return credential.MSKToken(ctx, s.TokenCommand, s.Region)
	}
	token, err := credential.Run(ctx, s.TokenCommand, nil)
	if err != nil {
		return "", fmt.Errorf("kafka.sasl.token_command: %w", err)
	}
	return token, nil
}

// TokenError says why a request for a token failed. It does not repeat the server's answer, which may contain the
// secret.
type TokenError struct {
	url string // "": no server was asked
	err error
}

func (e *TokenError) Error() string {
	why := e.err.Error()
	if e.url == "" {
		return "get a token for Kafka: " + why
	}
	if answer, ok := errors.AsType[*oauth2.RetrieveError](e.err); ok {
		why = "the answer is " + answer.Response.Status
		if answer.ErrorCode != "" {
			why += ", " + strconv.Quote(answer.ErrorCode)
		}
	}
	if request, ok := errors.AsType[*url.Error](e.err); ok { // it contains the whole URL
		why = request.Err.Error()
	}
	server, _, _ := strings.Cut(e.url, "?") // the rest may contain a key
	return "get a token from " + server + " (kafka.sasl.token_url): " + why
}

func (e *TokenError) Unwrap() error { return e.err }
