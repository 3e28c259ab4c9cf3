package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// linkRow is a drain by the daemon over one kind of link.
type linkRow struct {
	Kind string `json:"kind"` // "link"
	Link string `json:"link"`
	*drainRow
}

// farLatency is the delay in each direction to a server in another region.
const farLatency = 5 * time.Millisecond

// links are the kinds of connection to the servers. The pauses between reads must do no harm on any of them.
var links = []string{"loopback", "TLS to Postgres", "TLS to Postgres and Kafka", "10 ms there and back"}

// link drains over each link.
func (b *bench) link(ctx context.Context, o *options) error {
	if err := b.warm(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	if _, err := b.pg.UseTLS(); err != nil {
		return err
	}
	direct, err := url.Parse(b.pg.SuperURL("postgres"))
	if err != nil {
		return err
	}
	far, err := faultproxy.Start(direct.Host)
	if err != nil {
		return err
	}
	defer far.Close() //nolint:errcheck // at the end
	late := faultproxy.Way{Latency: farLatency}
	if err := far.Set(faultproxy.Faults{Up: late, Down: late}); err != nil {
		return err
	}
	sslmode := func(u string) string { return strings.Replace(u, "sslmode=disable", "sslmode=require", 1) }
	ways := map[string]func(string) string{
		links[0]: func(u string) string { return u },
		links[1]: sslmode,
		links[2]: sslmode,
		links[3]: func(u string) string { return strings.Replace(u, direct.Host, far.Addr(), 1) },
	}
	toKafka, err := b.kafkaTLS()
	if err != nil {
		return err
	}
	defer func(saved []string) { b.settings, b.way = saved, nil }(b.settings)
	for _, perTx := range []int{1, 100} {
		l := &load{Name: fmt.Sprintf("link%d", perTx), Rows: int(300_000*o.scale) / 100 * 100, PerTx: perTx, Payload: 200, About: fmt.Sprintf("transactions of %d", perTx)}
		l.complete()
		if err := l.write(ctx, b.pg); err != nil {
			return err
		}
		saved := b.settings
		for round := range b.roundsOr(1) {
			for _, link := range links {
				b.way, b.settings = ways[link], slices.Clone(saved)
				if link == links[2] {
					b.settings = append(b.settings, toKafka...)
				}
				row, err := b.repeatDisturbed(ctx, l, &subjects[0], func(row *drainRow) error {
					row.Kind, row.Round = "link", round+1
					return b.out.add(linkRow{"link", link, row})
				})
				if err != nil {
					return fmt.Errorf("%s: %w", link, err)
				}
				b.say("%d rows a transaction, %s: %s", perTx, link, b.runLine(row))
			}
		}
		b.settings = saved
		if err := b.drop(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// kafkaTLS is what the daemon needs to reach the broker over TLS, with a certificate.
func (b *bench) kafkaTLS() ([]string, error) {
	real, ok := b.kafka.(*kafkatest.Real)
	if !ok {
		return nil, errors.New("the links need a Kafka started by the benchmark")
	}
	certificate, key, err := b.authority.Issue("bench")
	if err != nil {
		return nil, err
	}
	settings := []string{"OUTBOXCDC_KAFKA_BROKERS=" + real.TLSBrokers()[0], "OUTBOXCDC_KAFKA_TLS_ENABLED=true"}
	for name, text := range map[string][]byte{"CA": b.authority.PEM, "CERT": certificate, "KEY": key} {
		path := filepath.Join(b.dir, strings.ToLower(name)+".pem")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return nil, err
		}
		settings = append(settings, "OUTBOXCDC_KAFKA_TLS_"+name+"_FILE="+path)
	}
	return settings, nil
}
