package recovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

var relation = &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox", Columns: []decoder.Column{
	{Name: "id", TypeOID: 25}, {Name: "aggregate_type", TypeOID: 25}, {Name: "aggregate_id", TypeOID: 25}, {Name: "payload", TypeOID: 25},
}}

// table is the rows of a table: id, aggregate type, key. A key of "-" is NULL.
type table [][3]string

func (t table) Rows(_ context.Context, _ int, _ outboxtable.Range, fn func(*outboxtable.Row) error) error {
	for _, r := range t {
		values := []decoder.Value{{Data: []byte(r[0])}, {Data: []byte(r[1])}, {Data: []byte(r[2])}, {Data: []byte(`{}`)}}
		if r[2] == "-" {
			values[2] = decoder.Value{Null: true}
		}
		if err := fn(&outboxtable.Row{Event: decoder.Event{Relation: relation, Values: values}, CreatedAt: time.Unix(1, 0)}); err != nil {
			return err
		}
	}
	return nil
}

// kafka keeps what is sent. Records of topics in refuses are refused, and those of an id in a topic: "topic id".
type kafka struct {
	sent    []string
	refuses map[string]error
	waits   int
}

func (k *kafka) Send(_ context.Context, rec *router.Record) error {
	for _, what := range []string{rec.Topic, rec.Topic + " " + string(rec.ID)} {
		if err := k.refuses[what]; err != nil {
			return err
		}
	}
	text := rec.Topic + " " + string(rec.ID)
	for _, h := range rec.Headers {
		if h.Name != router.HeaderID && !strings.HasPrefix(h.Name, "outboxcdc-error-message") {
			text += " " + strings.TrimPrefix(h.Name, "outboxcdc-") + "=" + string(h.Value)
		}
	}
	k.sent = append(k.sent, text)
	return nil
}

func (k *kafka) Wait(context.Context) error { k.waits++; return nil }
func (k *kafka) Acked() int64               { return int64(len(k.sent)) }
func (k *kafka) Close()                     {}

func job(t *testing.T, policy relay.PoisonPolicy) *Job {
	t.Helper()
	c := router.Config{
		Topic: "{aggregate_type}", Columns: router.Columns{ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", Payload: "payload"},
		NullKey: router.NullKeyPoison, NullPayload: router.NullPayloadTombstone, PositionHeader: true,
	}
	r, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &Job{
		Router: r, Poison: &relay.PoisonPolicies{Policy: policy, Topic: "dead", Slot: "s"}, Tables: []Table{{}},
		Mark: router.Header{Name: "outboxcdc-recovered", Value: []byte("run")}, Progress: func(string, int64, int64) {},
		Poisoned: func(p *router.Poison) error { return nil },
	}
}

func check(t *testing.T, k *kafka, want ...string) {
	t.Helper()
	if got := strings.Join(k.sent, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("sent:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// TestRun sends what is wanted, in the order of the rows, with positions that go on from the first.
func TestRun(t *testing.T) {
	j := job(t, relay.StopAtPoison)
	var set Set
	value := audit.Hash(j.Router, []byte("{}"))
	set.Add(Event{"order", "b", "1", value})
	set.Add(Event{"order", "c", "2", value})
	set.Add(Event{"other", "d", "1", value})
	set.Add(Event{"other", "a", "1", value}) // the same id elsewhere
	set.Add(Event{"order", "a", "1", 7})     // and with another value
	j.Wants = set.Has
	j.Position = checkpoint.Position{SystemID: 1, Timeline: 2, CommitLSN: 0x30, Ordinal: 7}
	k := &kafka{}
	sent, err := j.Run(t.Context(), table{{"a", "order", "1"}, {"b", "order", "1"}, {"c", "order", "2"}, {"d", "other", "1"}}, k)
	if err != nil || sent != (Sent{Records: 3}) {
		t.Fatal(sent, err)
	}
	check(t, k,
		"order b position=1:1:2:0000000000000030:7 recovered=run",
		"order c position=1:1:2:0000000000000030:8 recovered=run",
		"other d position=1:1:2:0000000000000030:9 recovered=run")
}

// TestWithoutPosition: records outside the order have no position, and may go to a topic of their own.
func TestWithoutPosition(t *testing.T) {
	j := job(t, relay.StopAtPoison)
	j.Topic = "again"
	k := &kafka{}
	if _, err := j.Run(t.Context(), table{{"a", "order", "1"}}, k); err != nil {
		t.Fatal(err)
	}
	check(t, k, "again a recovered=run")
}

// TestPoison: the policy decides; with stop the command goes on and reports the row.
func TestPoison(t *testing.T) {
	rows := table{{"a", "order", "1"}, {"b", "order", "-"}, {"c", "big", "1"}, {"d", "order", "1"}}
	refuses := map[string]error{"big": &sender.DeliveryError{Cause: router.TooLarge, Err: errors.New("too large")}}
	for policy, c := range map[relay.PoisonPolicy]struct {
		sent Sent
		want []string
	}{
		relay.StopAtPoison: {Sent{Records: 2, Poisoned: 2}, []string{"order a recovered=run", "order d recovered=run"}},
		relay.SkipPoison:   {Sent{Records: 2, Skipped: 2}, []string{"order a recovered=run", "order d recovered=run"}},
		relay.DeadLetter: {Sent{Records: 4, DeadLettered: 2}, []string{
			"order a recovered=run", "dead b recovered=run error=null_key topic=order slot=s",
			"dead c recovered=run error=too_large topic=big slot=s", "order d recovered=run",
		}},
	} {
		t.Run(string(policy), func(t *testing.T) {
			j := job(t, policy)
			var poisoned []string
			j.Poisoned = func(p *router.Poison) error {
				poisoned = append(poisoned, fmt.Sprint(p.ID, " ", p.Cause))
				return nil
			}
			k := &kafka{refuses: refuses}
			sent, err := j.Run(t.Context(), rows, k)
			if err != nil || sent != c.sent {
				t.Fatalf("%+v %v, want %+v", sent, err, c.sent)
			}
			check(t, k, c.want...)
			if policy == relay.StopAtPoison && fmt.Sprint(poisoned) != "[b null_key c too_large]" {
				t.Errorf("reported: %v", poisoned)
			}
		})
	}
}

// TestHeldKeys: an event does not overtake open letters of its key, and a poison event holds its key.
func TestHeldKeys(t *testing.T) {
	j := job(t, relay.HoldKey)
	j.Held = &checkpoint.OpenKeys{}
	j.Held.Note("order", []byte("1"), "earlier")
	var poisoned []string
	j.Poisoned = func(p *router.Poison) error {
		poisoned = append(poisoned, fmt.Sprint(p.ID, " ", p.Cause))
		if !strings.Contains(p.Message, "outboxcdc dlq list") {
			t.Error(p.Message)
		}
		return nil
	}
	k := &kafka{refuses: map[string]error{"big": &sender.DeliveryError{Cause: router.TooLarge, Err: errors.New("too large")}}}
	rows := table{
		{"a", "order", "1"}, {"b", "order", "2"}, {"c", "other", "1"}, {"d", "order", "-"}, // null_key holds nothing
		{"e", "big", "1"}, {"f", "order", "2"},
	}
	sent, err := j.Run(t.Context(), rows, k)
	if err != nil || sent != (Sent{Records: 5, DeadLettered: 2, Poisoned: 1}) || fmt.Sprint(poisoned) != "[a held]" {
		t.Fatal(sent, err, poisoned)
	}
	check(t, k, "order b recovered=run", "other c recovered=run", "dead d recovered=run error=null_key topic=order slot=s",
		"dead e recovered=run error=too_large topic=big slot=s held-by=e", "order f recovered=run")
	if k.waits != 2 {
		t.Errorf("it has waited %d times, want 2: before the letter, and at the end", k.waits)
	}

	// A second run knows what it holds itself.
	k.refuses, k.sent = nil, nil
	if sent, err = j.Run(t.Context(), table{{"g", "big", "1"}, {"h", "big", "2"}}, k); err != nil {
		t.Fatal(sent, err)
	}
	check(t, k, "dead g recovered=run error=held topic=big slot=s held-by=e", "big h recovered=run")
}

// TestFailure: an error of the session, or of a topic that may not be used, ends the run.
func TestFailure(t *testing.T) {
	for _, failure := range []error{errors.New("gone"), &sender.DeliveryError{Err: errors.New("not allowed")}} {
		j := job(t, relay.SkipPoison)
		k := &kafka{refuses: map[string]error{"big": failure}}
		sent, err := j.Run(t.Context(), table{{"a", "order", "1"}, {"c", "big", "1"}, {"d", "order", "1"}}, k)
		if !errors.Is(err, failure) || sent != (Sent{Records: 1}) {
			t.Errorf("%+v %v, want %v", sent, err, failure)
		}
	}
}
