package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A batch of one record fails permanently while later records of its partition wait. None of the later records may be
// stored.
func TestNothingFollowsAFailedBatch(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	c := newTestCluster(t, testConfig(f.ListenAddrs()...))
	for round := range 40 {
		p, l := openSession(t, c)
		waitReady(t, p, "orders")
		asked, piled := make(chan struct{}), make(chan struct{})
		f.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			f.DropControl()
			close(asked)
			<-piled
			return nil, nil, false
		})
		f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError})
		send(t, p, 1, record("orders", "key", "first"))
		<-asked
		sendMany(t, p, "orders", 2, 50)
		close(piled)
		if err := l.failure(t); err == nil {
			t.Fatal("no failure")
		}
		_ = p.Close(endedContext())
		if n := f.PartitionInfo("orders", 0).HighWatermark; n != 0 {
			t.Fatalf("round %d: %d records were stored after one that failed", round, n)
		}
	}
}
