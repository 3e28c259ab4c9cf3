package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/relay"
)

// TestRetryEndsWithTheGroup: a retry that waits for Kafka to take a record does not send it once another command may
// have the group. The other one may have sent it, and later ones, already.
func TestRetryEndsWithTheGroup(t *testing.T) {
	f, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "dead"))
	must(t, err)
	defer f.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...))
	must(t, err)
	defer cl.Close()
	must(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{
		{Key: "id", Value: []byte("1")}, {Key: relay.HeaderTopic, Value: []byte("orders")}, {Key: relay.HeaderError, Value: []byte("too_large")},
	}}).FirstErr())

	refused := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	var cmdErr error
	var out strings.Builder
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd := newDLQCommand(func() (*config.Config, error) {
			cfg := config.Default()
			cfg.Postgres.Slot, cfg.Poison.Topic, cfg.Kafka.Brokers = "s", "dead", f.ListenAddrs()
			return cfg, nil
		})
		cmd.SetArgs([]string{"retry", "--all"})
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmdErr = cmd.ExecuteContext(t.Context())
	}()
	hit := func(what string, hits func() int, n int) {
		t.Helper()
		for hits() < n {
			select {
			case <-ended:
				if hits() >= n {
					return
				}
				t.Fatalf("%s: the command has ended: %v\n%s", what, cmdErr, out.String())
			case <-time.After(10 * time.Millisecond): // look again
			}
		}
	}
	hit("it sends the record again and again", refused.Hits, 3)
	removed := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID, Count: -1})
	hit("a heartbeat", removed.Hits, 1)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the command sends on")
		refused.Remove()
		<-ended
	}
	refused.Remove()
	if code := exit.Code(cmdErr); code != exit.Unavailable || !strings.Contains(cmdErr.Error(), "the group is not ours any more") {
		t.Errorf("exit code %d: %v\n%s", code, cmdErr, out.String())
	}
	must(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("end")}).FirstErr())
	cl.AddConsumeTopics("orders")
	if all := cl.PollFetches(t.Context()).Records(); len(all) != 1 || string(all[0].Value) != "end" {
		t.Errorf("%d records are in the topic, want one: none of the command", len(all))
	}
}
