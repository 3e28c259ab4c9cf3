package inbox

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The coordinator answers a member's SyncGroup when the group's leader has sent its own. If the leader was killed,
// that takes a timeout. A consumer that is to end does not wait so long.
func TestInboxLeavesWithoutAnswer(t *testing.T) {
	useShared(t)
	t.Parallel()
	pg, kafka := startShared(t)
	r := roomOn(t, pg, kafka, "kgo", 1)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, r.Topic))
	must(t, err)
	t.Cleanup(cluster.Close)
	asked, over := make(chan struct{}), make(chan struct{})
	closeAsked := sync.OnceFunc(func() { close(asked) })
	cluster.ControlKey(int16(kmsg.SyncGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		closeAsked()
		cluster.SleepControl(func() { <-over })
		return nil, nil, false
	})
	r.Brokers, r.Session = cluster.ListenAddrs(), 5*time.Minute // the client would give up by itself after three sessions
	stop := r.start(func(context.Context, pgx.Tx, record) error { return nil })
	t.Cleanup(func() { close(over) })
	<-asked
	result := make(chan error, 1)
	go func() { result <- stop() }()
	select {
	case err := <-result:
		must(t, err)
	case <-time.After(patience):
		t.Error("the consumer waits for the coordinator without end")
	}
}
