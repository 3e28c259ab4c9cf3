package kafka

import (
	"context"
	"crypto/tls"

	"github.com/IBM/sarama"
)

// mismatchesTLS reports whether the listener at addr uses TLS and our settings do not, or the reverse. In both cases
// a client only sees a closed connection.
func (c *control) mismatchesTLS(ctx context.Context, addr string) bool {
	ctx, cancel := c.reachContext(ctx)
	defer cancel()
	if c.conf.Net.TLS.Enable {
		return c.answersWithoutTLS(ctx, addr)
	}
	return c.acceptsTLS(ctx, addr)
}

// answersWithoutTLS requests the versions that the broker supports, which needs no authentication.
func (c *control) answersWithoutTLS(ctx context.Context, addr string) bool {
	conf := *c.conf
	conf.Net.TLS.Enable, conf.Net.SASL.Enable = false, false
	own := &control{cluster: c.cluster, dialer: c.dialer, conf: &conf}
	defer own.hangUp()
	return own.askBroker(ctx, addr, func(b *sarama.Broker) error {
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
	// No data is sent, so the certificate is not verified.
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) == nil //nolint:gosec // see above
}
