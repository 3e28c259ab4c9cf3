package kafkatest

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// Guarded gives a real broker listeners for authenticated clients, besides the plain listener of the test, which may do
// anything. Other clients need permissions ([Allow]).
type Guarded struct {
	// Authority issued the broker's certificate, and must have issued those of clients.
	Authority *testcert.Authority
	// Plain are the passwords of the mechanism PLAIN, by user.
	Plain map[string]string
	// Reauthenticate is after how many milliseconds a connection must authenticate again; 0: never.
	Reauthenticate int
	// JWKS is the address of the keys with which tokens of OAUTHBEARER are signed, those of [TokenIssuer] for
	// [TokenAudience]. Empty: tokens have no signature. Kafka allows no skew of the clock, and logs the end of
	// connections that have not authenticated again in time ([Expired]).
	JWKS string
}

// What a token is checked for besides its signature and its times.
const (
	TokenIssuer   = "outboxcdc-test"
	TokenAudience = "kafka"
)

// Expired is in Kafka's log for each connection that it has closed because its token had expired.
const Expired = "Disconnecting expired channel"

// The guarded listeners, by Kafka's protocol.
const (
	listenerTLS  = "TLS"  // SSL with a client's certificate
	listenerSASL = "SASL" // SASL_SSL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
)

// guard finds ports and writes the broker's certificate.
func (r *Real) guard() error {
	if r.options.Guarded == nil {
		return nil
	}
	for _, port := range []*int{&r.tlsPort, &r.saslPort} {
		var err error
		if *port, err = child.FreePort(); err != nil {
			return err
		}
	}
	return r.Certify(r.options.Guarded.Authority)
}

// Certify gives the broker a certificate of that authority, which must issue clients' certificates from then on too. It
// takes effect at the next start.
func (r *Real) Certify(a *testcert.Authority) error {
	certificate, key, err := a.Issue("localhost")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{r.keystore(): append(key, certificate...), r.truststore(): a.PEM} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return fmt.Errorf("write the broker's certificate: %w", err)
		}
	}
	return nil
}

func (r *Real) keystore() string   { return filepath.Join(r.dir, "broker.pem") }
func (r *Real) truststore() string { return filepath.Join(r.dir, "authority.pem") }

// TLSBrokers is the listener for clients with a certificate, SASLBrokers for clients with a password or a token.
func (r *Real) TLSBrokers() []string  { return []string{"127.0.0.1:" + strconv.Itoa(r.tlsPort)} }
func (r *Real) SASLBrokers() []string { return []string{"127.0.0.1:" + strconv.Itoa(r.saslPort)} }

// guardedSettings returns the broker's properties for the listeners.
func (r *Real) guardedSettings() map[string]string {
	g := r.options.Guarded
	if g == nil {
		return nil
	}
	const module = "org.apache.kafka.common.security."
	plain := module + "plain.PlainLoginModule required"
	for user, password := range g.Plain {
		plain += fmt.Sprintf(" user_%s=%q", user, password)
	}
	all := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.location": r.keystore(), "ssl.truststore.type": "PEM", "ssl.truststore.location": r.truststore(),
		"listener.name.tls.ssl.client.auth":                 "required",
		"listener.name.sasl.sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.sasl.plain.sasl.jaas.config":         plain + ";",
		"listener.name.sasl.scram-sha-256.sasl.jaas.config": module + "scram.ScramLoginModule required;",
		"listener.name.sasl.scram-sha-512.sasl.jaas.config": module + "scram.ScramLoginModule required;",
		"listener.name.sasl.oauthbearer.sasl.jaas.config":   module + "oauthbearer.OAuthBearerLoginModule required;",
	}
	if g.JWKS != "" {
		const listener = "listener.name.sasl.oauthbearer.sasl."
		all[listener+"server.callback.handler.class"] = module + "oauthbearer.OAuthBearerValidatorCallbackHandler"
		all[listener+"oauthbearer.jwks.endpoint.url"] = g.JWKS
		all[listener+"oauthbearer.expected.issuer"] = TokenIssuer
		all[listener+"oauthbearer.expected.audience"] = TokenAudience
		all[listener+"oauthbearer.clock.skew.seconds"] = "0"
	}
	all["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
	all["super.users"] = "User:ANONYMOUS"
	if g.Reauthenticate > 0 {
		all["connections.max.reauth.ms"] = strconv.Itoa(g.Reauthenticate)
	}
	return all
}

// SetPassword sets or replaces a user's password for a mechanism, SCRAM-SHA-256 or SCRAM-SHA-512.
func SetPassword(ctx context.Context, brokers []string, mechanism, user, password string) error {
	return admin(brokers, "set the password of "+user, func(client *kgo.Client) error {
		const iterations = 4096
		salt := make([]byte, 16)
		_, _ = rand.Read(salt) // never fails
		number := int8(1)
		salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
		if mechanism == "SCRAM-SHA-512" {
			number = 2
			salted, err = pbkdf2.Key(sha512.New, password, salt, iterations, sha512.Size)
		}
		if err != nil {
			return err
		}
		up := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		up.Name, up.Mechanism, up.Iterations, up.Salt, up.SaltedPassword = user, number, iterations, salt, salted
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions = append(req.Upsertions, up)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return firstRefusal(resp.Results, func(r *kmsg.AlterUserSCRAMCredentialsResponseResult) (int16, *string) {
			return r.ErrorCode, r.ErrorMessage
		})
	})
}

// producerOperations are the permissions of a producer on a topic.
var producerOperations = []kmsg.ACLOperation{kmsg.ACLOperationDescribe, kmsg.ACLOperationWrite}

// Allow gives a user permissions on the topic, on all topics for "*"; without operations those of a producer. It
// returns when the brokers apply them.
func Allow(ctx context.Context, brokers []string, user, topic string, operations ...kmsg.ACLOperation) error {
	if len(operations) == 0 {
		operations = producerOperations
	}
	return allow(ctx, brokers, user, kmsg.ACLResourceTypeTopic, topic, operations)
}

// AllowGroup lets a user be a member of a consumer group.
func AllowGroup(ctx context.Context, brokers []string, user, group string) error {
	return allow(ctx, brokers, user, kmsg.ACLResourceTypeGroup, group, []kmsg.ACLOperation{kmsg.ACLOperationRead})
}

func allow(ctx context.Context, brokers []string, user string, of kmsg.ACLResourceType, name string, operations []kmsg.ACLOperation) error {
	return admin(brokers, fmt.Sprintf("allow %s %v on %v %s", user, operations, of, name), func(client *kgo.Client) error {
		req := kmsg.NewPtrCreateACLsRequest()
		for _, op := range operations {
			c := kmsg.NewCreateACLsRequestCreation()
			c.ResourceType, c.ResourceName, c.Operation = of, name, op
			c.Principal, c.Host, c.PermissionType = "User:"+user, "*", kmsg.ACLPermissionTypeAllow
			req.Creations = append(req.Creations, c)
		}
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if err := firstRefusal(resp.Results, func(r *kmsg.CreateACLsResponseResult) (int16, *string) { return r.ErrorCode, r.ErrorMessage }); err != nil {
			return err
		}
		return awaitPermissions(ctx, client, req.Creations)
	})
}

// awaitPermissions waits until every broker applies the permissions that the controller has stored.
func awaitPermissions(ctx context.Context, client *kgo.Client, rights []kmsg.CreateACLsRequestCreation) error {
	everyone := kmsg.NewPtrMetadataRequest()
	everyone.Topics = []kmsg.MetadataRequestTopic{}
	if _, err := everyone.RequestWith(ctx, client); err != nil {
		return err
	}
	brokers := client.DiscoveredBrokers()
	if len(brokers) == 0 {
		return errors.New("no broker is known")
	}
	for _, c := range rights {
		req := kmsg.NewPtrDescribeACLsRequest()
		req.ResourceType, req.ResourceName, req.ResourcePatternType = c.ResourceType, &c.ResourceName, c.ResourcePatternType
		req.Principal, req.Host, req.Operation, req.PermissionType = &c.Principal, &c.Host, c.Operation, c.PermissionType
		for i, broker := range brokers {
			if err := child.Await(ctx, func() error {
				resp, err := broker.RetriableRequest(ctx, req)
				if err != nil {
					return err
				}
				rights := resp.(*kmsg.DescribeACLsResponse)
				if err := refusal(rights.ErrorCode, rights.ErrorMessage); err != nil {
					return err
				}
				if len(rights.Resources) == 0 {
					return fmt.Errorf("broker %d of %d does not apply it yet", i+1, len(brokers))
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Forbid removes permissions given by Allow.
func Forbid(ctx context.Context, brokers []string, user, topic string, operations ...kmsg.ACLOperation) error {
	if len(operations) == 0 {
		operations = producerOperations
	}
	return admin(brokers, fmt.Sprintf("forbid %s %v on topic %s", user, operations, topic), func(client *kgo.Client) error {
		req := kmsg.NewPtrDeleteACLsRequest()
		for _, op := range operations {
			f := kmsg.NewDeleteACLsRequestFilter()
			f.ResourceType, f.ResourceName, f.Operation = kmsg.ACLResourceTypeTopic, &topic, op
			f.Principal, f.PermissionType = kmsg.StringPtr("User:"+user), kmsg.ACLPermissionTypeAllow
			req.Filters = append(req.Filters, f)
		}
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		for _, result := range resp.Results {
			if err := refusal(result.ErrorCode, result.ErrorMessage); err != nil {
				return err
			}
			if len(result.MatchingACLs) == 0 {
				return errors.New("there was no such permission")
			}
		}
		return nil
	})
}
