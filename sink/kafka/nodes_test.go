package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestThreeNodes runs faults in a cluster of three nodes, with three replicas and min.insync.replicas=2. Each fault
// happens within one session under load, with one and with five open requests. No record may be lost, duplicated, out
// of order, or acknowledged out of order.
func TestThreeNodes(t *testing.T) {
	if os.Getenv("OUTBOXCDC_PROVE") == "" {
		t.Skip("only `make prove` runs it (OUTBOXCDC_PROVE=1): it takes minutes")
	}
	k := kafkatest.RealsForTest(t, 3, kafkatest.RealOptions{QuickStart: true, MaxHeap: "384m"})
	faults := []struct {
		name string
		harm func(ctx context.Context, s *nodesTest) error
	}{
		{"elections", elections},
		{"rolling restart", rollingRestart},
		{"a broker killed", brokersKilled},
		{"too few replicas for a minute", tooFewReplicas},
		{"connections cut", func(context.Context, *nodesTest) error { time.Sleep(20 * time.Second); return nil }},
	}
	for _, f := range faults {
		for _, requests := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s, %d requests", f.name, requests), func(t *testing.T) {
				s := &nodesTest{t: t, k: k, topic: fmt.Sprintf("nodes-%d-%d", rand.Int32(), requests), cut: f.name == "connections cut"}
				s.result = nodesResult{Fault: f.name, Requests: requests}
				t.Cleanup(s.keep)
				s.run(requests, f.harm)
			})
		}
	}
}

// nodesTest is one fault.
type nodesTest struct {
	t     *testing.T
	k     *kafkatest.Reals
	topic string
	cut   bool

	result nodesResult
}

// nodesResult is a row of `make prove`, which test/testrun writes.
type nodesResult struct {
	Fault    string  `json:"fault"`
	Requests int     `json:"requests"`
	Records  int     `json:"records"`
	Resent   int     `json:"resent"`
	Seconds  float64 `json:"seconds"`
	Passed   bool    `json:"passed"`
}

// keep adds the result to those of `make prove`.
func (s *nodesTest) keep() {
	dir := os.Getenv("OUTBOXCDC_TEST_DIR")
	if dir == "" {
		return
	}
	s.result.Passed = !s.t.Failed()
	line, err := json.Marshal(s.result)
	if err != nil {
		s.t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "cluster.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		s.t.Fatal(err)
	}
}

const nodesPartitions = 6

func (s *nodesTest) run(requests int, harm func(context.Context, *nodesTest) error) {
	t := s.t
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	must(t, kafkatest.CreateTopic(ctx, s.k.Brokers(), s.topic, nodesPartitions, nil))
	cfg := testConfig(s.k.Brokers()...)
	cfg.Requests, cfg.BatchLimit = requests, 8000 // so that a partition has several batches
	cfg.RetryMin, cfg.RetryMax, cfg.Retries = 20*time.Millisecond, time.Second, 200
	cfg.AwayBudget = 2 * time.Minute
	cfg.Compression = "lz4"
	c := newTestCluster(t, cfg)
	p, l := openSession(t, c)
	cuts := &cuttingDialer{next: p.produce.Net.Proxy.Dialer}
	if s.cut {
		p.produce.Net.Proxy.Dialer = cuts
	}
	waitReady(t, p, s.topic)
	begun := time.Now()
	over := make(chan error, 1)
	go func() {
		for range 5 { // on a busy machine a fault can come while no request is open
			if err := harm(ctx, s); err != nil || testutil.ToFloat64(c.metrics.retries) > 0 {
				over <- err
				return
			}
		}
		over <- nil
	}()
	n := uint64(1)
	for harmed := false; !harmed; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-over:
			if harmed = true; err != nil {
				t.Fatal(err)
			}
		case err := <-l.failed:
			t.Fatalf("the session has failed: %v", err)
		default:
		}
		if p.inflight.Load() < 50_000 {
			sendMany(t, p, s.topic, n, n+100)
			n += 100
		}
	}
	cuts.stop()
	if err := finish(within(90*time.Second), p); err != nil {
		if len(l.failed) > 0 {
			t.Error(<-l.failed)
		}
		t.Fatal(err)
	}
	s.result.Seconds, s.result.Records = time.Since(begun).Seconds(), int(n-1)
	resent := testutil.ToFloat64(c.metrics.retries)
	t.Logf("%d records, %v batches sent again, %d connections cut", n-1, resent, cuts.count)
	if s.result.Resent = int(resent); resent == 0 {
		t.Error("nothing had to be sent again: this run proved nothing")
	}
	checkAcks(t, l.acks(), nodesPartitions, n-1)
	recs, err := kafkatest.ReadAll(ctx, s.k.Brokers(), s.topic)
	must(t, err)
	if err := checkOrderAndHash(recs, nodesPartitions); err != nil || uint64(len(recs)) != n-1 {
		t.Errorf("%d records, want %d; %v", len(recs), n-1, err)
	}
}

func elections(ctx context.Context, s *nodesTest) error {
	for range 40 {
		if err := kafkatest.MoveLeader(ctx, s.k.Brokers(), s.topic, rand.IntN(nodesPartitions)); err != nil {
			return err
		}
	}
	return nil
}

func rollingRestart(ctx context.Context, s *nodesTest) error {
	for _, node := range s.k.Nodes {
		if err := node.Stop(ctx); err != nil {
			return err
		}
		if err := s.restart(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func brokersKilled(ctx context.Context, s *nodesTest) error {
	for range 2 {
		node := s.k.Nodes[rand.IntN(len(s.k.Nodes))]
		if err := node.Kill(); err != nil {
			return err
		}
		time.Sleep(5 * time.Second) // its partitions get new leaders after broker.session.timeout.ms
		if err := s.restart(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// restart starts a node and waits until its replicas are in sync, so that the next fault does not hit the last copy.
func (s *nodesTest) restart(ctx context.Context, node *kafkatest.Real) error {
	if err := node.StartAgain(ctx); err != nil {
		return err
	}
	return kafkatest.AwaitInSync(ctx, s.k.Brokers(), s.topic, nodesPartitions, len(s.k.Nodes))
}

// tooFewReplicas requires three in-sync replicas while one node is stopped. (With two stopped nodes the controllers
// would have no majority.)
func tooFewReplicas(ctx context.Context, s *nodesTest) error {
	want := func(n string) error {
		return kafkatest.SetTopicConfig(ctx, s.k.Brokers(), s.topic, map[string]string{"min.insync.replicas": n})
	}
	if err := want("3"); err != nil {
		return err
	}
	node := s.k.Nodes[rand.IntN(len(s.k.Nodes))]
	if err := node.Kill(); err != nil {
		return err
	}
	time.Sleep(time.Minute)
	if err := s.restart(ctx, node); err != nil {
		return err
	}
	return want("2")
}

// cuttingDialer cuts the connection of about every tenth request: before the request, within the request, or after
// it, so that the request is stored and its answer is lost.
type cuttingDialer struct {
	next interface {
		Dial(network, addr string) (net.Conn, error)
	}
	mu      sync.Mutex
	count   int
	stopped bool
}

func (d *cuttingDialer) Dial(network, addr string) (net.Conn, error) {
	conn, err := d.next.Dial(network, addr)
	if err != nil {
		return nil, err
	}
	return &cuttingConn{conn, d}, nil
}

func (d *cuttingDialer) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
}

// draw returns how the next write is cut: 0 to 2, or -1 for not at all.
func (d *cuttingDialer) draw(size int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || size < 500 || rand.IntN(10) != 0 {
		return -1
	}
	d.count++
	return rand.IntN(3)
}

type cuttingConn struct {
	net.Conn
	dialer *cuttingDialer
}

func (c *cuttingConn) Write(b []byte) (int, error) {
	switch c.dialer.draw(len(b)) {
	case 0:
		_ = c.Close()
		return 0, net.ErrClosed
	case 1:
		_, _ = c.Conn.Write(b[:len(b)/2])
		_ = c.Close()
		return 0, net.ErrClosed
	case 2:
		n, err := c.Conn.Write(b)
		time.AfterFunc(3*time.Millisecond, func() { _ = c.Close() }) // before or after the answer
		return n, err
	}
	return c.Conn.Write(b)
}
