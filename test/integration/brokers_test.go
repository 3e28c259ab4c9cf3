package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// hungBroker returns an address that accepts connections and answers nothing, as a stopped process does.
func hungBroker(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return l.Addr().String()
}

// offBroker returns an address where no connect is answered, like that of a machine that is off.
func offBroker(t *testing.T) string {
	t.Helper()
	p, err := faultproxy.Start("")
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	must(t, p.Set(faultproxy.Faults{Silent: true}))
	return p.Addr()
}

// Brokers at the beginning of kafka.brokers are silent. The daemon tries the next ones, at the first start and after a
// kill -9, in both modes, and logs the silent ones.
func TestSilentBrokersFirst(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(*testing.T) []string{
		"one hangs":                func(t *testing.T) []string { return []string{hungBroker(t)} },
		"two are off":              func(t *testing.T) []string { return []string{offBroker(t), offBroker(t)} },
		"one hangs and one is off": func(t *testing.T) []string { return []string{hungBroker(t), offBroker(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{})
			silent := first(t)
			o.proves("F64", "%d silent brokers first in kafka.brokers (%s), kill -9", len(silent), name)
			o.sample()
			brokers := "OUTBOXCDC_KAFKA_BROKERS=" + strings.Join(slices.Concat(silent, o.kafka.Brokers()), ",")
			once := append(o.deduplicating(fence), brokers)
			o.insert("order", "a", 1, 5)
			for i, env := range [][]string{once, once, {brokers, atLeastOnce}} {
				r := o.startStreaming(env...)
				o.insert("order", "a", 6+5*i, 5)
				o.awaitHealed()
				for _, addr := range silent {
					if n := len(slices.DeleteFunc(r.logged("broker does not answer; asking another one"), func(e entry) bool { return e["broker"] != addr })); n != 1 {
						t.Errorf("start %d: the log names %s %d times", i+1, addr, n)
					}
				}
				if r.hasBeenIn("parked") {
					t.Errorf("start %d was parked; states: %s", i+1, states(r))
				}
				r.kill9()
			}
			o.repeatsAtMost(o.verify(patience), 0, "all events were confirmed at each kill -9")
		})
	}
}

// The first of three brokers is stopped (SIGSTOP). A running daemon continues once other brokers lead its partitions,
// and a daemon that is started meanwhile delivers.
func TestFrozenBrokerOfThree(t *testing.T) {
	skipUnlessProving(t)
	needRealKafka(t)
	k := kafkatest.RealsForTest(t, 3, kafkatest.RealOptions{QuickStart: true, MaxHeap: "384m"})
	o := newOutbox(t, options{kafka: k.Nodes[1], partitions: 6})
	o.proves("F65", "the first of three brokers stopped by SIGSTOP, kill -9 and a start of the daemon meanwhile")
	o.sample()
	env := append(o.deduplicating(fence), "OUTBOXCDC_KAFKA_BROKERS="+strings.Join(k.Brokers(), ","))
	r := o.startStreaming(env...)
	n := 0
	deliver := func() time.Duration {
		t.Helper()
		n++
		for i := range 12 {
			o.insert("order", fmt.Sprint("key-", i), n, 1)
		}
		return o.awaitConfirmed(o.walFlushed(), 2*patience)
	}
	deliver()
	must(t, k.Nodes[0].Freeze(testContext(t)))
	o.outcome("the running daemon delivered again after %v", deliver().Round(time.Second))
	r.kill9()
	r = o.startStreaming(env...)
	o.outcome("after kill -9, %v", deliver().Round(time.Second))
	await(t, patience, "the log to name the broker", func() error {
		if !slices.ContainsFunc(r.logged("broker does not answer; asking another one"), func(e entry) bool { return e["broker"] == k.Nodes[0].Brokers()[0] }) {
			return errors.New("not yet")
		}
		return nil
	})
	must(t, k.Nodes[0].Thaw())
	deliver()
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 12, "the records in flight to the broker when it stopped")
}

// One of three brokers ends, and each partition needs all three: Kafka answers NOT_ENOUGH_REPLICAS. With default
// settings the daemon is soon not ready, and its state, its log and /readyz name the reason. When the broker is back,
// everything is delivered, without a repeat.
func TestTooFewReplicasOfThree(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	k := kafkatest.RealsForTest(t, 3, kafkatest.RealOptions{QuickStart: true, MaxHeap: "384m", Settings: map[string]string{"min.insync.replicas": "3"}})
	o := newOutbox(t, options{kafka: k.Nodes[1]})
	o.proves("F60", "three brokers, min.insync.replicas=3, one of them ends: NOT_ENOUGH_REPLICAS from a real Kafka, default settings")
	env := append(o.deduplicating(fence), "OUTBOXCDC_KAFKA_BROKERS="+strings.Join(k.Brokers(), ","))
	r := o.startStreaming(env...)
	o.insert("order", "a", 1, 10)
	o.awaitHealed()
	must(t, k.Nodes[0].Stop(testContext(t)))
	began := time.Now()
	o.insert("order", "a", 11, 10)
	const reason = "in-sync replicas"
	text := ""
	await(t, patience, "/readyz to name the reason", func() error {
		code, body, err := r.get("/readyz")
		if text = string(body); err != nil || code != 503 || !strings.Contains(text, reason) {
			return errors.Join(err, fmt.Errorf("%d: %s", code, body))
		}
		return nil
	})
	o.outcome("not ready after %v", time.Since(began).Round(100*time.Millisecond))
	t.Logf("not ready after %v: %s", time.Since(began), text)
	await(t, patience, "the log to name the reason", func() error {
		for _, e := range r.entries() {
			if why, _ := e["reason"].(string); e["level"] == "WARN" && strings.Contains(why, reason) {
				t.Logf("the log after %v: %v", time.Since(began), e)
				return nil
			}
		}
		return errors.New("not yet")
	})
	must(t, k.Nodes[0].StartAgain(context.Background()))
	o.awaitHealed()
	await(t, patience, "/readyz", func() error {
		if code, body, err := r.get("/readyz"); err != nil || code != 200 {
			return errors.Join(err, fmt.Errorf("%d: %s", code, body))
		}
		return nil
	})
	t.Logf("states: %s", states(r))
	o.repeatsAtMost(o.verify(patience), 0, "the batch was never appended")
}
