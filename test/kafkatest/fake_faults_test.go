package kafkatest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Each fault does what its field says, to the producer and to the log, as often as it says; after Heal none does.
func TestFaults(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := FakeForTest(t, FakeOptions{})
	// One attempt for each record shows what happened to that attempt.
	p := producer(t, f, kgo.DisableIdempotentWrite(), kgo.RecordRetries(0), kgo.MaxProduceRequestsInflightPerBroker(1), kgo.ProducerLinger(0))
	send := func(topic string) error {
		return p.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr()
	}
	code := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	again := code(kgo.ErrRecordRetries) // the only error of a producer that gave up retrying
	cut := func(err error) bool {
		return err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*kerr.Error))
	}
	hits := 0
	for _, test := range []struct {
		name   string
		fault  Fault
		fails  func(error) bool // nil: it does not
		stored bool
	}{
		{"refused", Fault{Answer: kerr.NotEnoughReplicas.Code}, code(kerr.NotEnoughReplicas), false},
		{"appended", Fault{Answer: kerr.NotEnoughReplicasAfterAppend.Code}, again, true},
		{"timed.out", Fault{Answer: kerr.RequestTimedOut.Code}, again, true},
		{"unknown", Fault{Answer: kerr.UnknownServerError.Code}, code(kerr.UnknownServerError), false}, // its code is -1
		{"request.lost", Fault{LoseRequests: true}, cut, false},
		{"answer.lost", Fault{LoseAnswers: true}, cut, true},
		{"late", Fault{Delay: 300 * time.Millisecond}, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, topic := range []string{test.name, test.name + ".other"} {
				must(t, CreateTopic(ctx, f.Brokers(), topic, 1, nil))
				must(t, send(topic))
			}
			want := 1
			check := func(when string) {
				t.Helper()
				got, err := ReadAll(ctx, f.Brokers(), test.name)
				must(t, err)
				n, err := f.Hits(ctx)
				must(t, err)
				if len(got) != want || n != hits {
					t.Errorf("%s: %d records and %d hits, want %d and %d", when, len(got), n, want, hits)
				}
			}
			twice := test.fault
			twice.Count = 2
			must(t, f.Inject(ctx, twice))
			for range 2 {
				begin := time.Now()
				err := send(test.name)
				if test.fails == nil && err != nil || test.fails != nil && !test.fails(err) {
					t.Errorf("the producer got %v", err)
				}
				if took := time.Since(begin); took < test.fault.Delay {
					t.Errorf("the answer came after %v", took)
				}
				hits++
				if test.stored {
					want++
				}
			}
			check("twice")
			must(t, send(test.name))
			want++
			check("after two")

			one := test.fault
			one.Topic = test.name
			must(t, f.Inject(ctx, one))
			if test.fault.Answer != 0 {
				must(t, send(test.name+".other"))
				check("another topic")
			}
			must(t, f.Heal(ctx))
			must(t, send(test.name))
			want++
			check("healed")
		})
	}
}

// A share of the answers fails, the same ones with the same seed; requests other than Produce can fail too.
func TestFaultsAtRandom(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := FakeForTest(t, FakeOptions{})
	client, err := newClient(f.Brokers())
	must(t, err)
	defer client.Close()
	one := func() (bool, error) {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.ProducerID, req.ProducerEpoch = -1, -1
		res, err := client.Broker(0).Request(ctx, req) // without retries
		if err != nil {
			return false, err
		}
		return res.(*kmsg.InitProducerIDResponse).ErrorCode == kerr.ClusterAuthorizationFailed.Code, nil
	}
	var seen []string
	for range 2 {
		must(t, f.Inject(ctx, Fault{Requests: []kmsg.Key{kmsg.InitProducerID}, Share: 0.5, Seed: 7, Answer: kerr.ClusterAuthorizationFailed.Code}))
		var text strings.Builder
		for range 40 {
			refused, err := one()
			must(t, err)
			text.WriteByte("01"[map[bool]int{true: 1}[refused]])
		}
		seen = append(seen, text.String())
		must(t, f.Heal(ctx))
	}
	if n := strings.Count(seen[0], "1"); seen[0] != seen[1] || n < 8 || n > 32 {
		t.Errorf("with one seed %s and %s", seen[0], seen[1])
	}
	for _, bad := range []Fault{{}, {Answer: 30_000}, {MoveLeaders: time.Second, Topic: "none"}} {
		if err := f.Inject(ctx, bad); err == nil {
			t.Errorf("fault %+v was accepted", bad)
		}
	}
}

// With several brokers leaders move, and a producer that looks for them still delivers everything once.
func TestLeadersMove(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := FakeForTest(t, FakeOptions{Brokers: 3})
	if n := len(f.Brokers()); n != 3 {
		t.Fatalf("%d brokers", n)
	}
	must(t, CreateTopic(ctx, f.Brokers(), "moved", 2, nil))
	must(t, f.Inject(ctx, Fault{Topic: "moved", MoveLeaders: 20 * time.Millisecond, Seed: 1}))
	p := producer(t, f, kgo.RecordRetries(1000))
	const n = 100
	for i := range n {
		produce(t, ctx, p, &kgo.Record{Topic: "moved", Partition: int32(i % 2), Value: []byte("v")})
	}
	must(t, child.Await(ctx, func() error {
		if hits, err := f.Hits(ctx); err != nil || hits < 10 {
			return errors.Join(err, errors.New("the leaders do not move"))
		}
		return nil
	}))
	must(t, f.Heal(ctx))
	got, err := ReadAll(ctx, f.Brokers(), "moved")
	must(t, err)
	if len(got) != n {
		t.Errorf("%d records, want %d", len(got), n)
	}
}
