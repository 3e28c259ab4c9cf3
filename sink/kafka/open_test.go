package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
)

func TestOpenErrors(t *testing.T) {
	f := newFake(t)
	fault := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.ClusterAuthorizationFailed, Count: -1})
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	_, err := c.Open(context.Background(), Callbacks{})
	checkPermissionDenied(t, err, "")
	if err := c.Probe(context.Background()); err == nil {
		t.Error("probe succeeds although no producer id is given")
	}
	fault.Remove()
	if err := c.Probe(context.Background()); err != nil {
		t.Errorf("probe: %v", err)
	}
	p, _ := openSession(t, c)
	if _, err := c.Open(context.Background(), Callbacks{}); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("second session beside the first: %v", err)
	}
	_ = p.Close(endedContext())

	dead := newTestCluster(t, testConfig("127.0.0.1:1"))
	began := time.Now()
	_, err = dead.Open(context.Background(), Callbacks{})
	var e interface{ Reason() string }
	if !errors.As(err, &e) || e.Reason() != reasonConnection || time.Since(began) > 8*time.Second {
		t.Errorf("no broker: %v after %s", err, time.Since(began))
	}

	// One unreachable seed of two is not an error.
	p, _ = openSession(t, newTestCluster(t, testConfig("127.0.0.1:1", f.ListenAddrs()[0])))
	if err := p.Healthy(); err != nil {
		t.Error(err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	f := newFake(t)
	release := make(chan struct{})
	f.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) { <-release; return nil, nil, false })
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := newTestCluster(t, testConfig(f.ListenAddrs()...)).Open(ctx, Callbacks{})
	if err == nil || time.Since(began) > 8*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	close(release)
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(nil) // for its certificate
	defer srv.Close()
	f := newFake(t, kfake.TLS(&tls.Config{Certificates: srv.TLS.Certificates}))
	cfg := testConfig(f.ListenAddrs()...)
	trusted := srv.Client().Transport.(*http.Transport).TLSClientConfig
	cfg.Security = func() (brokerauth.Config, error) { return brokerauth.Config{TLS: trusted}, nil }
	p, _ := openSession(t, newTestCluster(t, cfg))
	if err := p.Close(endedContext()); err != nil {
		t.Error(err)
	}
	cfg.Security = func() (brokerauth.Config, error) { return brokerauth.Config{TLS: &tls.Config{}}, nil }
	if _, err := newTestCluster(t, cfg).Open(context.Background(), Callbacks{}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("unknown authority: %v", err)
	}
}
