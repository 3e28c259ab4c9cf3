package sender

import (
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// TestRealRestart: a broker of three is killed and started again while records are sent. The session survives, and no
// record is lost, stored twice or out of order.
func TestRealRestart(t *testing.T) {
	k := kafkatest.RealsForTest(t, 3, kafkatest.RealOptions{QuickStart: true})
	ctx := within(t, 5*time.Minute)
	const partitions = 6
	must(t, kafkatest.CreateTopic(ctx, k.Brokers(), "orders", partitions, nil))
	cfg := kafka.DefaultConfig()
	cfg.Brokers, cfg.ClientID, cfg.Compression = k.Brokers(), "outboxcdc-test", "lz4"
	s := New(newCluster(t, cfg), Options{Rate: 5000})
	t.Cleanup(s.Close)
	n := 1
	send(t, s, "orders", n) // it opens the session
	restarted := make(chan error, 1)
	go func() {
		err := k.Nodes[0].Kill()
		if err == nil {
			err = k.Nodes[0].StartAgain(ctx)
		}
		if err == nil {
			err = kafkatest.AwaitInSync(ctx, k.Brokers(), "orders", partitions, 3)
		}
		restarted <- err
	}()
	for len(restarted) == 0 {
		n++
		send(t, s, "orders", n)
	}
	must(t, <-restarted)
	must(t, s.Wait(ctx))
	if s.Acked() != int64(n) {
		t.Errorf("%d of %d are acknowledged", s.Acked(), n)
	}
	t.Logf("%d records", n)
	got, err := kafkatest.ReadAll(ctx, k.Brokers(), "orders")
	must(t, err)
	checkOrder(t, got, n)
}
