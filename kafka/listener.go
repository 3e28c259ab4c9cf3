package kafka

import (
	"context"
	"crypto/tls"

	"github.com/IBM/sarama"
)

// speaksTheOther reports whether the listener at addr takes TLS although our settings have none, or Kafka's protocol without
// TLS although they have. A client that is set wrongly sees no more than a connection that is closed.
func (c *control) speaksTheOther(ctx context.Context, addr string) bool {
	if c.conf.Net.TLS.Enable {
		return c.speaksPlainly(ctx, addr)
	}
	return c.speaksTLS(ctx, addr)
}

// speaksPlainly asks for the versions that the broker supports, which needs no authentication.
func (c *control) speaksPlainly(ctx context.Context, addr string) bool {
	conf := *c.conf
	conf.Net.TLS.Enable, conf.Net.SASL.Enable = false, false
	own := &control{cluster: c.cluster, dialer: c.dialer, conf: &conf}
	defer own.hangUp()
	return own.askAt(ctx, addr, func(b *sarama.Broker) error {
		_, err := b.ApiVersions(&sarama.ApiVersionsRequest{})
		return err
	}) == nil
}

func (c *control) speaksTLS(ctx context.Context, addr string) bool {
	conn, err := c.dialer.dial(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	// Nothing is sent over it: whose certificate it is does not matter.
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) == nil //nolint:gosec // see above
}
