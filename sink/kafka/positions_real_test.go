package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// missingPermissions: without the permission to read, ends count as read, and the position topic is unusable.
func (r *realEnds) missingPermissions(ctx context.Context, t *testing.T, authority *testcert.Authority) {
	r.create(ctx, t, "writable", 2, nil)
	r.create(ctx, t, "writable-positions", 1, map[string]string{"cleanup.policy": "compact"})
	for _, topic := range []string{"writable", "writable-positions"} {
		must(t, kafkatest.Allow(ctx, r.k.Brokers(), "writer", topic))
	}
	cfg := r.cfg
	cfg.Brokers, cfg.PositionTopic, cfg.Slot = r.k.SASLBrokers(), "writable-positions", "s"
	log := &logged{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	cfg.Security = func() (brokerauth.Config, error) {
		return brokerauth.Config{TLS: trust(authority), SASL: &brokerauth.SASL{Mechanism: "PLAIN", User: "writer", Password: "secret"}}, nil
	}
	id := earlierSession(t, cfg, toPartition(0, event("writable", "k", at(10))))
	s := searchIn(t, cfg, 100, []string{"writable"}, id).read(t)
	s.want(t)
	p, l, c := s.Producer, s.log, s.cluster
	waitReady(t, p, "writable")
	if unreadable, none := endReads(c, endUnreadable), endReads(c, endNone); unreadable != 1 || none != 1 {
		t.Errorf("%v are unreadable, %v are empty", unreadable, none)
	}
	send(t, p, 1, event("writable", "k", at(11)))
	l.waitAcks(t, 1)
	var u *checkpoint.Unusable
	if _, err := p.LoadPosition(ctx); !errors.As(err, &u) || !strings.Contains(err.Error(), "grant") {
		t.Errorf("load: %v", err)
	} else {
		t.Log(err)
	}
	if err := c.CheckPositionTopic(ctx, "writable-positions"); !errors.As(err, &u) {
		t.Errorf("check: %v", err)
	}
	if err := finish(within(5*time.Second), p); err != nil {
		t.Error(err)
	}
	if n := log.lines("level=WARN"); n != 1 || log.lines("grant the user Read on topic writable") != 1 {
		t.Errorf("%d warnings:\n%s", n, &log.buf)
	}
}

func trust(a *testcert.Authority) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.PEM)
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

// positions: the topic is created with its configuration, and position records are stored although the broker is
// restarted.
func (r *realEnds) positions(ctx context.Context, t *testing.T) {
	cfg := withPositions(r.cfg)
	cfg.ReadTimeout, cfg.ProduceTimeout = 1500*time.Millisecond, time.Second
	c := newTestCluster(t, cfg)
	for _, want := range []bool{true, false} {
		if created, err := c.CreateTopic(ctx, positions, PositionTopic(-1)); err != nil || created != want {
			t.Fatal(created, err)
		}
	}
	if err := c.CheckPositionTopic(ctx, positions); err != nil {
		t.Error(err)
	}
	for topic, partitions := range map[string]int{"pos-two": 2, "pos-delete": 1} {
		r.create(ctx, t, topic, partitions, nil)
		var u *checkpoint.Unusable
		if err := c.CheckPositionTopic(ctx, topic); !errors.As(err, &u) {
			t.Errorf("%s: %v", topic, err)
		} else {
			t.Log(err)
		}
	}
	p, l := openSession(t, c)
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v", s)
	}
	results := make(chan error, 100)
	n := 0
	put := func() {
		n++
		p.SavePosition(checkpoint.PositionRecord{Slot: "s", Generation: 1, SystemID: historySystem, Confirm: at(n).CommitLSN}, func(err error) { results <- err })
	}
	for range 3 {
		put()
		must(t, <-results)
	}
	must(t, r.k.Freeze(ctx))
	for range 5 {
		put()
	}
	time.Sleep(2 * time.Second) // longer than the read time-out, so the first request is sent twice
	must(t, r.k.Thaw())
	for range 5 {
		select {
		case err := <-results:
			must(t, err)
		case err := <-l.failed:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("not saved after the broker has come back")
		}
	}
	recs, err := kafkatest.ReadAll(ctx, r.k.Brokers(), positions)
	must(t, err)
	recs = slices.DeleteFunc(recs, func(r kafkatest.Record) bool { return strings.HasSuffix(string(r.Key), markKey) })
	for i, rec := range recs {
		var s checkpoint.PositionRecord
		if err := s.UnmarshalText(rec.Value); err != nil || s.Confirm != at(i+1).CommitLSN {
			t.Errorf("record %d: %s %v", i, rec.Value, err)
		}
	}
	if len(recs) != n {
		t.Errorf("%d records of %d", len(recs), n)
	}
	if s := load(t, p); s == nil || s.Confirm != at(n).CommitLSN {
		t.Errorf("loaded %+v", s)
	}
}
