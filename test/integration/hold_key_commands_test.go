package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// releaseOutbox is an outbox with a daemon that holds keys: events of more than 100,000 bytes are poison.
type releaseOutbox struct {
	*poisonOutbox
	with []string
}

func newReleaseOutbox(t *testing.T) *releaseOutbox {
	o := &releaseOutbox{poisonOutbox: newPoisonOutbox(t, options{missing: []string{"dead"}})}
	o.makeTopic("dead", 3, nil)
	o.makeTopic("narrow", 3, map[string]string{"max.message.bytes": "100000"})
	o.with = append(o.deduplicating(time.Second), "OUTBOXCDC_POISON_POLICY=hold_key", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
	return o
}

func (o *releaseOutbox) limit(bytes string) {
	o.t.Helper()
	must(o.t, kafkatest.SetTopicConfig(testContext(o.t), o.kafka.Brokers(), o.topic("narrow"), map[string]string{"max.message.bytes": bytes}))
}

// insert commits one event, and returns its id.
func (o *releaseOutbox) insert(key string, large bool) (id string) {
	o.t.Helper()
	payload := "'{}'"
	if large {
		payload = tooLarge.values[strings.Index(tooLarge.values, "(SELECT"):]
	}
	o.tx(func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('narrow', $1, 'e', `+payload+`) RETURNING id::text`, key).Scan(&id)
	})
	return id
}

// events returns the ids of the records of a key, in their order.
func (o *releaseOutbox) events(key string) (ids []string) {
	o.t.Helper()
	all, err := kafkatest.ReadAll(testContext(o.t), o.kafka.Brokers(), o.topic("narrow"))
	must(o.t, err)
	for _, r := range all {
		for _, h := range r.Headers {
			if h.Key == "id" && string(r.Key) == key {
				ids = append(ids, string(h.Value))
			}
		}
	}
	return ids
}

// has waits until the records of a key are these.
func (o *releaseOutbox) has(key string, want ...string) {
	o.t.Helper()
	await(o.t, patience, "the events of key "+key, func() error {
		if got := o.events(key); !slices.Equal(got, want) {
			return fmt.Errorf("they are %v, want %v", got, want)
		}
		return nil
	})
}

// flows is has, after a release: a daemon that does not know yet that the key is free makes a letter of the event.
func (o *releaseOutbox) flows(key string, want ...string) {
	o.t.Helper()
	await(o.t, patience, "the events of key "+key, func() error {
		if len(o.list()) > 0 {
			o.dlq(0, "retry", "--key", o.topic("narrow")+"/"+key)
		}
		if got := o.events(key); !slices.Equal(got, want) {
			return fmt.Errorf("they are %v, want %v", got, want)
		}
		return nil
	})
}

// listedLetter is a line of `dlq list -o json`.
type listedLetter struct {
	ID, Key, Cause string
	HeldBy         string `json:"held_by"`
	Held           *struct {
		Followers int
		Seconds   float64
	}
}

func (o *releaseOutbox) dlq(exit int, args ...string) (out, notes string) {
	o.t.Helper()
	out, notes, got := o.runBinary(o.with, append([]string{"dlq"}, args...)...)
	if got != exit {
		o.t.Errorf("dlq %v: exit code %d, want %d: %s%s", args, got, exit, out, notes)
	}
	return out, notes
}

func (o *releaseOutbox) list(args ...string) (all []listedLetter) {
	o.t.Helper()
	out, _ := o.dlq(0, append([]string{"list", "-o", "json"}, args...)...)
	for line := range strings.Lines(out) {
		var l listedLetter
		must(o.t, json.Unmarshal([]byte(line), &l))
		all = append(all, l)
	}
	return all
}

// await waits until that many letters are open.
func (o *releaseOutbox) await(letters int) {
	o.t.Helper()
	await(o.t, patience, fmt.Sprint(letters, " open letters"), func() error {
		if all := o.list("--followers"); len(all) != letters {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
}

// The commands list, retry and drop held keys, beside a daemon and without one. Then the keys flow again.
func TestHoldKeyCommands(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%v", stopped), func(t *testing.T) {
			t.Parallel()
			o := newReleaseOutbox(t)
			r := o.startStreaming(o.with...)
			var a, b []string
			for n := range 4 {
				a = append(a, o.insert("a", n == 0 || n == 2))
				b = append(b, o.insert("b", n == 0))
			}
			c := o.insert("c", false)
			o.has("c", c)
			o.await(8)
			if stopped {
				r.term()
			}

			listed := o.list()
			slices.SortFunc(listed, func(x, y listedLetter) int { return strings.Compare(x.Key, y.Key) })
			if len(listed) != 2 || listed[0].ID != a[0] || listed[1].ID != b[0] || listed[0].Cause != "too_large" || listed[0].HeldBy != a[0] ||
				listed[0].Held == nil || listed[0].Held.Followers != 3 || listed[1].Held == nil || listed[1].Held.Followers != 3 {
				t.Errorf("list shows %+v", listed)
			}
			if all := o.list("--key", o.topic("narrow")+"/a"); len(all) != 4 || all[1].ID != a[1] || all[1].HeldBy != a[0] || all[1].Cause != "held" {
				t.Errorf("the letters of a key: %+v", all)
			}
			out, _ := o.dlq(1, "retry", "--id", a[1])
			remedy := regexp.MustCompile(`outboxcdc dlq (retry --at \d+:\d+)`).FindStringSubmatch(out)
			if remedy == nil {
				t.Fatalf("a follower alone: %s", out)
			}
			o.dlq(1, "retry", "--id", a[0]) // still too large
			o.await(8)
			o.limit("1000000")
			o.dlq(0, strings.Fields(remedy[1])...)
			o.has("a", a...)
			o.dlq(0, "drop", "--id", b[0])
			o.has("b", b[1:]...)
			o.await(0)

			d := o.insert("a", false)
			if stopped {
				r = o.startStreaming(o.with...)
			}
			o.flows("a", append(slices.Clone(a), d)...)
			e := o.insert("b", false)
			o.flows("b", append(b[1:], e)...)
			r.term()
		})
	}
}

// A daemon that stops at the limit of letters continues after each of the remedies that it names.
func TestHoldKeyLimitRemedies(t *testing.T) {
	t.Parallel()
	o := newReleaseOutbox(t)
	with := append(o.env(), append(slices.Clone(o.with), "OUTBOXCDC_TUNING_MAX_HELD_LETTERS=2")...)
	run := func(more ...string) *relay { return o.startAs(slices.Concat(o.args, []string{"run"}, more), with) }
	stops := func(r *relay, remedy string) string {
		t.Helper()
		r.awaitStop(patience, 65, "must not overtake the letters of its key")
		found := regexp.MustCompile(remedy).FindStringSubmatch(r.remedy())
		if found == nil {
			t.Fatalf("the remedy is: %s", r.remedy())
		}
		return found[1]
	}
	ids := []string{o.insert("a", true)}
	for range 3 {
		ids = append(ids, o.insert("a", false))
	}
	r := run(strings.Fields(stops(run(), `start with (--set \S+=\d+);`))...)
	o.await(len(ids))
	ids = append(ids, o.insert("a", false))
	retry := stops(r, `outboxcdc dlq (retry --key TOPIC/KEY)`)
	o.limit("1000000")
	o.dlq(0, strings.Fields(strings.Replace(retry, "TOPIC/KEY", o.topic("narrow")+"/a", 1))...)
	r = run()
	o.flows("a", ids...)
	r.term()
}

// A retry that is killed while it releases a key repeats at most one record, and the next one continues in order. A
// second one beside it is refused.
func TestHoldKeyRetryKilled(t *testing.T) {
	t.Parallel()
	o := newReleaseOutbox(t)
	r := o.startStreaming(o.with...)
	ids := []string{o.insert("a", true)}
	for range 60 {
		ids = append(ids, o.insert("a", false))
	}
	o.await(len(ids))
	o.limit("1000000")
	cmd := exec.Command(testSuite.binary, slices.Concat(o.args, []string{"dlq", "retry", "--key", o.topic("narrow") + "/a"})...)
	cmd.Env = append(o.outbox.env(), o.with...)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	for n := 0; n < 10 && lines.Scan(); n++ {
	}
	if _, notes := o.dlq(69, "retry", "--all"); !strings.Contains(notes, "in use") {
		t.Errorf("a second one: %s", notes)
	}
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); !errors.As(err, new(*exec.ExitError)) {
		t.Errorf("the first one has ended: %v", err)
	}
	await(t, patience, "the group to be free", func() error {
		if _, notes, exit := o.runBinary(o.with, "dlq", "retry", "--key", o.topic("narrow")+"/a"); exit != 0 {
			return errors.New(notes)
		}
		return nil
	})
	o.await(0)
	got := o.events("a")
	repeated := len(got) - len(ids)
	if repeated < 0 || repeated > 1 || !slices.Equal(slices.Compact(slices.Clone(got)), ids) {
		t.Errorf("%d records of %d events: %v", len(got), len(ids), got)
	}
	r.term()
}
