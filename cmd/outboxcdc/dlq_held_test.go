package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

var updateDLQ = flag.Bool("update-dlq", false, "write the expected output of the dlq commands")

// heldWorld is a Kafka with letters of held keys.
type heldWorld struct {
	t   *testing.T
	f   *kfake.Cluster
	cl  *kgo.Client
	log strings.Builder
}

func newHeldWorld(t *testing.T) *heldWorld {
	t.Helper()
	f, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "small", "dead"))
	must(t, err)
	t.Cleanup(f.Close)
	w := &heldWorld{t: t, f: f}
	w.cl, err = kgo.NewClient(kgo.SeedBrokers(f.ListenAddrs()...), kgo.ConsumeTopics("orders", "small"), kgo.DefaultProduceTopic("dead"))
	must(t, err)
	t.Cleanup(w.cl.Close)
	return w
}

// letter stores a letter of a held key; cause "": the event only follows. by is "" for a letter that holds no key.
func (w *heldWorld) letter(id, topic, key, cause, by string) {
	w.t.Helper()
	text := map[string]string{"": "its key is held by the event " + by}[cause]
	if cause == "" {
		cause = string(relay.CauseHeld)
	} else {
		text = "Kafka refuses it"
	}
	h := []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}
	for _, p := range [][2]string{{relay.HeaderTopic, topic}, {relay.HeaderSlot, "s"}, {relay.HeaderError, cause}, {relay.HeaderMessage, text}} {
		h = append(h, kgo.RecordHeader{Key: p[0], Value: []byte(p[1])})
	}
	if by != "" {
		h = append(h, kgo.RecordHeader{Key: relay.HeaderHeldBy, Value: []byte(by)})
	}
	value := id + " "
	if strings.HasPrefix(id, "big") { // also when it is compressed
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 1000 {
			value += strconv.Itoa(rnd.Int())
		}
	}
	r := &kgo.Record{Key: []byte(key), Value: []byte(value), Headers: h, Timestamp: time.Now().Add(-3 * time.Hour)}
	must(w.t, w.cl.ProduceSync(w.t.Context(), r).FirstErr())
}

// run runs a command, and returns its output and exit code.
func (w *heldWorld) run(args ...string) (string, int) {
	cmd := newDLQCommand(func() (*config.Config, error) {
		cfg := config.Default()
		cfg.Postgres.Slot, cfg.Poison.Topic, cfg.Kafka.Brokers = "s", "dead", w.f.ListenAddrs()
		return cfg, nil
	})
	var out strings.Builder
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(w.t.Context())
	if err != nil {
		fmt.Fprintf(&out, "error: %v\n", err)
	}
	return out.String(), exit.Code(err)
}

// say runs a command, and writes it down.
func (w *heldWorld) say(line string) {
	out, code := w.run(strings.Fields(line)...)
	out = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`).ReplaceAllString(out, "TIME")
	out = regexp.MustCompile(`"seconds":10[0-9.]+`).ReplaceAllString(out, `"seconds":10800`)
	fmt.Fprintf(&w.log, "$ outboxcdc dlq %s\n%s# exit code %d%s\n\n", line, out, code, w.sent())
}

// sent is what was sent since the last call.
func (w *heldWorld) sent() string {
	must(w.t, w.cl.ProduceSync(w.t.Context(), &kgo.Record{Topic: "orders", Value: []byte("end")}, &kgo.Record{Topic: "small", Value: []byte("end")}).FirstErr())
	var all []string
	for ends := 0; ends < 2; {
		ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
		f := w.cl.PollFetches(ctx)
		cancel()
		must(w.t, f.Err())
		f.EachRecord(func(r *kgo.Record) {
			if string(r.Value) == "end" {
				ends++
				return
			}
			id, _, _ := strings.Cut(string(r.Value), " ")
			all = append(all, fmt.Sprintf("%s/%s:%s", r.Topic, r.Key, id))
		})
	}
	if len(all) == 0 {
		return ""
	}
	return ", sent " + strings.Join(all, " ")
}

// limit sets the size of a batch that a topic takes.
func (w *heldWorld) limit(topic, bytes string) {
	w.t.Helper()
	must(w.t, kafkatest.SetTopicConfig(w.t.Context(), w.f.ListenAddrs(), topic, map[string]string{"max.message.bytes": bytes}))
}

// TestHeldCommands writes down what the commands print and send.
func TestHeldCommands(t *testing.T) {
	var golden strings.Builder
	part := func(title string, run func(w *heldWorld)) {
		w := newHeldWorld(t)
		run(w)
		fmt.Fprintf(&golden, "## %s\n\n%s", title, w.log.String())
	}
	twoKeys := func(w *heldWorld) { // 0:0 to 0:7
		w.letter("a1", "orders", "a", "too_large", "a1")
		w.letter("b1", "orders", "b", "rejected", "b1")
		w.letter("a2", "orders", "a", "", "a1")
		w.letter("b2", "orders", "b", "", "b1")
		w.letter("n1", "", "", "no_route", "")
		w.letter("a3", "orders", "a", "too_large", "a1")
		w.letter("sa", "small", "a", "rejected", "sa")
		w.letter("a4", "orders", "a", "", "a1")
	}
	part("what list shows", func(w *heldWorld) {
		twoKeys(w)
		w.say("list")
		w.say("list --followers")
		w.say("list --key orders/b")
		w.say("list --cause held -o json")
		w.say("list --at 0:0 -o json")
	})
	part("retry of a key, and of its oldest letter", func(w *heldWorld) {
		twoKeys(w)
		w.say("retry --key orders/a --dry-run")
		w.say("retry --key orders/a")
		w.say("retry --id b1")
		w.say("list")
	})
	part("retry of a follower is refused", func(w *heldWorld) {
		twoKeys(w)
		w.say("retry --at 0:2")
		w.say("retry --id b2")
		w.say("retry --cause held")
		w.say("retry --at 0:0") // the remedy
		w.say("retry --key orders/zz")
		w.say("retry --key orders")
	})
	part("a follower that Kafka refuses is the oldest one then", func(w *heldWorld) {
		w.letter("a1", "orders", "a", "rejected", "a1")
		w.letter("x1", "small", "x", "rejected", "x1")
		w.letter("big", "orders", "a", "", "a1")
		w.letter("a3", "orders", "a", "", "a1")
		w.letter("x2", "small", "x", "", "x1")
		w.limit("orders", "1000")
		w.say("retry --all")
		w.say("list --all")
		w.say("drop --cause rejected") // a1 is handled
		w.say("retry --at 0:3")
		w.limit("orders", "1000000")
		w.say("retry --at 0:2") // the remedy
	})
	part("drop of the oldest letter", func(w *heldWorld) {
		twoKeys(w)
		w.say("drop --id a1 --dry-run")
		w.say("drop --id a1")
		w.say("drop --id b2")
		w.say("drop --at 0:1 --with-followers") // the remedy
		w.say("list")
	})
	part("drop of a key needs --with-followers", func(w *heldWorld) {
		twoKeys(w)
		w.say("drop --key orders/a")
		w.say("drop --key orders/a --with-followers")
		w.say("list")
	})
	part("drop of all poison events", func(w *heldWorld) {
		twoKeys(w)
		w.say("drop --all")
		w.say("list")
	})
	const file = "testdata/dlq_held.txt"
	if *updateDLQ {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(file, []byte(golden.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if string(want) != golden.String() {
		t.Errorf("the output is not that of %s (-update-dlq writes it, git diff shows the difference):\n%s", file, golden.String())
	}
}

// recorded is the offset that the group has committed.
func (w *heldWorld) recorded() int64 {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "outboxcdc-dlq-s", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "dead", Partitions: []int32{0}}}}}
	res, err := req.RequestWith(w.t.Context(), w.cl)
	if err != nil || len(res.Groups) != 1 || len(res.Groups[0].Topics) != 1 {
		w.t.Errorf("the group's offset: %v", err)
		return -1
	}
	return res.Groups[0].Topics[0].Partitions[0].Offset
}

// TestHeldIsRecordedAtOnce: a drop is recorded before a follower is sent. A command that is killed in between must not
// leave it to the next one to send the event that was dropped after its followers.
func TestHeldIsRecordedAtOnce(t *testing.T) {
	for _, args := range [][]string{{"drop", "--id", "a1"}, {"retry", "--id", "a1"}} {
		w := newHeldWorld(t)
		w.letter("a1", "orders", "a", "rejected", "a1")
		w.letter("a2", "orders", "a", "", "a1")
		w.letter("a3", "orders", "a", "", "a1")
		next := int64(0)
		w.f.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
			w.f.KeepControl()
			r, ok := req.(*kmsg.ProduceRequest)
			if !ok || len(r.Topics) == 0 {
				return nil, nil, false
			}
			var at int64
			w.f.SleepControl(func() { at = w.recorded() })
			if want := next; args[0] == "drop" && at != want+1 || args[0] == "retry" && at != want {
				t.Errorf("%v: letters before %d are recorded when record %d is sent", args, at, next)
			}
			next++
			return nil, nil, false
		})
		if out, code := w.run(args...); code != 0 {
			t.Errorf("%v: exit code %d: %s", args, code, out)
		}
		if want := map[string]int64{"drop": 2, "retry": 3}[args[0]]; next != want {
			t.Errorf("%v: %d records are sent, want %d", args, next, want)
		}
	}
}

// TestHeldScattered: the letters of a key that are in two partitions are listed, sent and dropped by the positions of
// their events.
func TestHeldScattered(t *testing.T) {
	for _, c := range []struct{ command, want string }{
		{"retry --key orders/k", " orders/k:e1 orders/k:e2 orders/k:e3 orders/k:e4"},
		{"retry --all", " orders/k:e1 orders/k:e2 orders/k:e3 orders/k:e4"},
		{"drop --id e1", " orders/k:e2 orders/k:e3 orders/k:e4"},
		{"retry --id e2", ""}, // it is in the first partition, and only follows
	} {
		w := newHeldWorld(t)
		must(t, kafkatest.AddPartitions(t.Context(), w.f.ListenAddrs(), "dead", 2))
		cl, err := kgo.NewClient(kgo.SeedBrokers(w.f.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		must(t, err)
		defer cl.Close()
		for _, e := range []struct {
			id        string
			partition int32
			position  int
		}{{"e2", 0, 2}, {"e4", 0, 4}, {"e1", 1, 1}, {"e3", 1, 3}} {
			h := []kgo.RecordHeader{{Key: "id", Value: []byte(e.id)}, {Key: headerPosition, Value: fmt.Appendf(nil, "1:7:1:%016x:0", e.position)}}
			for _, p := range [][2]string{{relay.HeaderTopic, "orders"}, {relay.HeaderSlot, "s"}, {relay.HeaderError, "held"}, {relay.HeaderHeldBy, "e1"}} {
				h = append(h, kgo.RecordHeader{Key: p[0], Value: []byte(p[1])})
			}
			must(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "dead", Partition: e.partition, Key: []byte("k"), Value: []byte(e.id), Headers: h}).FirstErr())
		}
		if out, _ := w.run("list"); !strings.Contains(out, "1:0 ") || !strings.Contains(out, "id=e1") || !strings.Contains(out, "followers=3") || strings.Contains(out, "id=e2") {
			t.Errorf("list prints\n%s", out)
		}
		out, code := w.run(strings.Fields(c.command)...)
		if got := w.sent(); strings.TrimPrefix(got, ", sent") != c.want || (code == 0) != (c.want != "") {
			t.Errorf("%s ends with %d and has sent %q, want %q:\n%s", c.command, code, got, c.want, out)
		}
	}
}
