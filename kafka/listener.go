package kafka

import (
	"context"
	"crypto/tls"

	"github.com/IBM/sarama"
)

// mismatchesTLS reports whether the listener at addr uses TLS and our settings do not, or the other way around. The client that
// failed there has seen no more than a closed connection.
func (c *control) mismatchesTLS(ctx context.Context, addr string) bool {
	ctx, cancel := c.withinReach(ctx)
	defer cancel()
	if c.conf.Net.TLS.Enable {
		return c.answersWithoutTLS(ctx, addr)
	}
	return c.acceptsTLS(ctx, addr)
}

// answersWithoutTLS asks for the versions that the broker supports, which needs no authentication.
func (c *control) answersWithoutTLS(ctx context.Context, addr string) bool {
	conf := *c.conf
	conf.Net.TLS.Enable, conf.Net.SASL.Enable = false, false
	own := &control{cluster: c.cluster, dialer: c.dialer, conf: &conf}
	defer own.hangUp()
	return own.askAt(ctx, addr, func(b *sarama.Broker) error {
		_, err := b.ApiVersions(&sarama.ApiVersionsRequest{})
		return err
	}) == nil
}

func (c *control) acceptsTLS(ctx context.Context, addr string) bool {
	conn, err := c.dialer.dial(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	// Nothing is sent over it: whose certificate it is does not matter.
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) == nil //nolint:gosec // see above
}
