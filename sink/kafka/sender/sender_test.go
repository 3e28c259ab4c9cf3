package sender

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// hold keeps all produce requests unanswered until release is called.
func (f *fake) hold(t testing.TB) (release func()) {
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		f.held.Add(1)
		<-gate
		return nil, nil, false
	})
	return release
}

// blocked checks that Send waits for room.
func blocked(t *testing.T, s *Sender, rec *router.Record) {
	t.Helper()
	began := time.Now()
	err := s.Send(within(t, 50*time.Millisecond), rec)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait for acks") {
		t.Errorf("the window is full: %v", err)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("Send returned %s after its context had ended", d)
	}
}

// open sends the first record of a sender and waits for it, so that the topic is known.
func open(t *testing.T, s *Sender, topic string) {
	t.Helper()
	send(t, s, topic, 1)
	must(t, s.Wait(t.Context()))
}

func TestWindow(t *testing.T) {
	for name, tc := range map[string]struct {
		options Options
		fits    int // records of 1000 bytes
	}{
		"records": {Options{Records: 10}, 10},
		"bytes":   {Options{Bytes: 4999}, 4},
		"one":     {Options{Records: 1}, 1},
		"small":   {Options{Bytes: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, kfake.SeedTopics(3, "orders"))
			s := newSender(t, f, tc.options)
			open(t, s, "orders")
			release := f.hold(t)
			thousand := func(n int) *router.Record {
				return record("orders", fmt.Sprintf("key-%04d", n), fmt.Sprintf("%08d", n)+big(984))
			}
			for n := range tc.fits {
				if err := s.Send(within(t, 5*time.Second), thousand(n+2)); err != nil {
					t.Fatalf("record %d of %d: %v", n, tc.fits, err)
				}
			}
			blocked(t, s, thousand(tc.fits+2))
			release()
			must(t, s.Send(within(t, 5*time.Second), thousand(tc.fits+2)))
			must(t, s.Wait(within(t, time.Minute)))
			if got := f.read(t, "orders"); len(got) != tc.fits+2 || s.Acked() != int64(tc.fits)+2 {
				t.Errorf("the topic has %d records, %d are acknowledged, want %d", len(got), s.Acked(), tc.fits+2)
			}
			if s.flight.bytes != 0 {
				t.Errorf("%d bytes in flight", s.flight.bytes)
			}
		})
	}
}

// TestRoom: once the window is full, a quarter of it has to become free.
func TestRoom(t *testing.T) {
	o := Options{Records: 100, Bytes: 1000}
	for _, tc := range []struct {
		records int
		bytes   int64
		full    bool
		want    bool
	}{
		{99, 900, false, true},
		{100, 900, false, false},
		{99, 990, false, true},
		{99, 991, false, false},
		{76, 0, true, false},
		{75, 750, true, true},
		{75, 751, true, false},
		{0, 0, true, true},
	} {
		if got := o.room(10)(tc.records, tc.bytes, tc.full); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// TestLinger: a record leaves although nothing is sent after it and nothing waits for it.
func TestLinger(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{})
	for n := range 20 {
		send(t, s, "orders", n+1)
		eventually(t, "the ack", func() bool { return s.Acked() == int64(n)+1 })
	}
}

// TestOrderUnderFaults: what a session outlives loses nothing, stores nothing twice, and changes no order.
func TestOrderUnderFaults(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "orders"))
	s := newSender(t, f, Options{Records: 500})
	var mu sync.Mutex
	rng, faults := rand.New(rand.NewPCG(1, 2)), 0
	draw := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(n) > 0 {
			return false
		}
		faults++
		return true
	}
	for _, err := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut} {
		for part := range int32(6) {
			f.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{part}, Err: err, Count: -1,
				When: func(kmsg.Request) bool { return draw(60) },
			})
		}
	}
	f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		switch {
		case draw(25):
			return nil, errors.New("the connection is closed before the request is handled"), true
		case draw(25):
			f.loseAnswers.Store(1)
		case draw(25):
			_ = f.MoveTopicPartition("orders", rand.Int32N(6), rand.Int32N(3))
		}
		return nil, nil, false
	})
	const total = 20_000
	for n := range total {
		send(t, s, "orders", n+1)
	}
	must(t, s.Wait(within(t, time.Minute)))
	if faults < 20 || s.Acked() != total {
		t.Errorf("%d faults, %d acks", faults, s.Acked())
	}
	f.loseAnswers.Store(0)
	checkOrder(t, f.read(t, "orders"), total)
}

func TestMissingTopic(t *testing.T) {
	const wait = 300 * time.Millisecond
	missing := func(t *testing.T, s *Sender, topic string, least, most time.Duration) {
		t.Helper()
		began := time.Now()
		err := s.Send(t.Context(), record(topic, "k", "v"))
		e, ok := errors.AsType[*DeliveryError](err)
		if !ok || e.Cause != router.MissingTopic || !strings.Contains(err.Error(), topic) {
			t.Errorf("%v", err)
		}
		if d := time.Since(began); d < least || d > most {
			t.Errorf("Send waited for %s", d)
		}
	}
	t.Run("no wait", func(t *testing.T) {
		s := newSender(t, newFake(t), Options{})
		missing(t, s, "orders", 0, 5*time.Second)
	})
	t.Run("limited", func(t *testing.T) {
		f := newFake(t, kfake.SeedTopics(1, "invoices"))
		s := newSender(t, f, Options{MissingTopic: wait})
		missing(t, s, "orders", wait, 5*time.Second)
		missing(t, s, "orders", 0, wait) // it has been missing for longer
		missing(t, s, "payments", wait, 5*time.Second)
		send(t, s, "invoices", 1)
		f.createTopic(t, "orders", 1, nil)
		eventually(t, "the topic", func() bool { return s.Send(t.Context(), record("orders", "k", "00000001")) == nil })
		if err := s.Wait(within(t, time.Minute)); err != nil || s.Acked() != 2 {
			t.Errorf("%v, %d acks", err, s.Acked())
		}
		checkOrder(t, f.read(t, "orders"), 1)
	})
	t.Run("forever", func(t *testing.T) {
		f := newFake(t)
		s := newSender(t, f, Options{MissingTopic: Forever})
		s.lookUp = time.Second // Kafka does answer
		time.AfterFunc(3*s.lookUp, func() { f.createTopic(t, "orders", 3, nil) })
		send(t, s, "orders", 1)
		if err := s.Wait(within(t, time.Minute)); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("interrupted")) })
		began := time.Now()
		if err := s.Send(ctx, record("payments", "k", "v")); err == nil || !strings.Contains(err.Error(), "interrupted") || time.Since(began) > 20*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestMissingTopicAgain: the wait for a topic that is deleted begins again.
func TestMissingTopicAgain(t *testing.T) {
	const wait = 300 * time.Millisecond
	f := newFake(t)
	cfg := testConfig(f.ListenAddrs())
	cfg.Refresh = 100 * time.Millisecond
	s := New(newCluster(t, cfg), Options{MissingTopic: wait})
	t.Cleanup(s.Close)
	rec := record("orders", "k", "v")
	if err := s.Check(t.Context(), rec); err == nil {
		t.Error("the topic does not exist")
	}
	f.createTopic(t, "orders", 1, nil)
	eventually(t, "the topic", func() bool { return s.Check(t.Context(), rec) == nil })
	must(t, kafkatest.DeleteTopic(t.Context(), f.ListenAddrs(), "orders"))
	var began time.Time
	eventually(t, "its end", func() bool { began = time.Now(); return s.Check(t.Context(), rec) != nil })
	if d := time.Since(began); d < wait {
		t.Errorf("Check waited for %s", d)
	}
}

// TestDeniedTopic: a topic that Kafka denies access to may not exist, so it is waited for if missing topics are, but
// not forever.
func TestDeniedTopic(t *testing.T) {
	for name, wait := range map[string]time.Duration{"no wait": 0, "limited": 200 * time.Millisecond, "forever": Forever} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
				f.KeepControl()
				req := r.(*kmsg.MetadataRequest)
				if len(req.Topics) == 0 {
					return nil, nil, false
				}
				res := req.ResponseKind().(*kmsg.MetadataResponse)
				host, port, _ := net.SplitHostPort(f.ListenAddrs()[0])
				b := kmsg.NewMetadataResponseBroker()
				b.Host = host
				_, _ = fmt.Sscan(port, &b.Port)
				res.Brokers = append(res.Brokers, b)
				rt := kmsg.NewMetadataResponseTopic()
				rt.Topic, rt.ErrorCode = req.Topics[0].Topic, kerr.TopicAuthorizationFailed.Code
				res.Topics = append(res.Topics, rt)
				return res, nil, true
			})
			s := newSender(t, f, Options{MissingTopic: wait})
			began := time.Now()
			err := s.Send(within(t, 5*time.Second), record("orders", "k", "v"))
			e, ok := errors.AsType[*DeliveryError](err)
			var cause router.Cause
			if name == "limited" {
				cause = router.MissingTopic
			}
			if !ok || e.Cause != cause || !errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
				t.Errorf("%v", err)
			}
			if d := time.Since(began); name == "limited" && d < wait {
				t.Errorf("Send waited for %s", d)
			}
		})
	}
}

// TestLookUpUnanswered: Send does not wait forever for a Kafka that does not answer.
func TestLookUpUnanswered(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	s := newSender(t, f, Options{MissingTopic: Forever})
	s.lookUp = 300 * time.Millisecond
	open(t, s, "orders")
	const missing = 400 * time.Millisecond
	time.AfterFunc(missing, f.Close)
	began := time.Now()
	err := s.Send(within(t, 10*time.Second), record("payments", "k", "v"))
	if d := time.Since(began); d < missing+s.lookUp {
		t.Errorf("Send waited for %s", d)
	}
	if err == nil || errors.As(err, new(*DeliveryError)) || !strings.Contains(err.Error(), "no usable answer") {
		t.Errorf("%v", err)
	}
}

// TestTooLarge: a record that Kafka cannot take is an error of its own. A large one that it can take keeps its place.
func TestTooLarge(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "orders", 1, map[string]string{"max.message.bytes": "2000000"})
	s := newSender(t, f, Options{})
	var want []string
	for n := range 30 {
		value := fmt.Sprintf("%02d", n)
		switch n % 10 {
		case 3:
			value += big(1_500_000)
		case 6:
			value += big(2_500_000)
		}
		err := s.Send(t.Context(), record("orders", "k", value))
		switch e, ok := errors.AsType[*DeliveryError](err); {
		case n%10 != 6 && err != nil:
			t.Fatal(err)
		case n%10 != 6:
			want = append(want, value[:2])
		case !ok || e.Cause != router.TooLarge:
			t.Errorf("too large: %v", err)
		}
	}
	must(t, s.Wait(within(t, 10*time.Second)))
	var got []string
	for _, r := range f.read(t, "orders") {
		got = append(got, string(r.Value[:2]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the topic has %v, want %v", got, want)
	}
}

// TestRefusedAlone: Kafka refuses a record that is alone in flight. The next one is delivered.
func TestRefusedAlone(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "orders", 1, map[string]string{"max.message.bytes": "2000000"})
	s := newSender(t, f, Options{})
	refusals := 0
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if len(r.Topics[0].Partitions[0].Records) < 1_000_000 {
			return nil, nil, false
		}
		refusals++
		return refuse(r, kerr.MessageTooLarge.Code), nil, true
	})
	send(t, s, "orders", 1)
	err := s.Send(t.Context(), record("orders", "k", big(1_500_000)))
	if e, ok := errors.AsType[*DeliveryError](err); !ok || e.Cause != router.Rejected || refusals != 1 {
		t.Errorf("%v", err)
	}
	send(t, s, "orders", 2)
	if err := s.Wait(within(t, time.Minute)); err != nil || s.Acked() != 2 {
		t.Errorf("%v, %d acks", err, s.Acked())
	}
	checkOrder(t, f.read(t, "orders"), 2)
}

// TestRefusedBatch: the error names the records of a batch that Kafka refuses, and nothing of their partition follows
// them.
func TestRefusedBatch(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	s := newSender(t, f, Options{})
	open(t, s, "orders")
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		return refuse(r, kerr.InvalidTimestamp.Code), nil, true
	})
	var err error
	for n := 2; err == nil && n < 14; n++ { // they fit into one linger
		rec := record("orders", "k", fmt.Sprintf("%08d", n))
		err = s.Send(t.Context(), rec)
		clear(rec.ID)
	}
	if err == nil {
		err = s.Wait(within(t, time.Minute))
	}
	e, ok := errors.AsType[*SessionError](err)
	if !ok || len(e.Refused) == 0 || e.Refused[0] != (RefusedRecord{"orders", "id-00000002"}) || e.Acked != 1 || e.Unacked == 0 || e.Doubtful {
		t.Fatalf("%#v: %v", e, err)
	}
	if !strings.Contains(err.Error(), "topic orders") || !strings.Contains(err.Error(), `"id-00000002"`) || !errors.Is(err, sarama.ErrInvalidTimestamp) {
		t.Error(err)
	}
	checkOrder(t, f.read(t, "orders"), 1)
}

func TestSessionErrorText(t *testing.T) {
	e := &SessionError{Acked: 7, Unacked: 12, Err: errors.New("deliver event 8: no")}
	for n := range 12 {
		e.Refused = append(e.Refused, RefusedRecord{"orders", fmt.Sprint(n)})
	}
	for _, tc := range []struct {
		refused  int
		doubtful bool
		want     string
	}{
		{0, true, `deliver event 8: no; 7 records are acknowledged, 12 are not, and some of these may be in Kafka`},
		{1, false, `deliver event 8: no; Kafka refused the record of topic orders with event id "0"; 7 records are acknowledged, 12 are not`},
		{12, false, `deliver event 8: no; Kafka refused at least one of 12 records of topic orders, with event ids "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" ` +
			`and 2 more; 7 records are acknowledged, 12 are not`},
	} {
		got := *e
		got.Refused, got.Doubtful = e.Refused[:tc.refused], tc.doubtful
		if got.Error() != tc.want {
			t.Errorf("%s\nwant %s", &got, tc.want)
		}
	}
}

// TestSessionFailure: when the session fails, the error has final numbers, nothing is sent any more, and what is in
// the topic has no hole. Another sender delivers the rest.
func TestSessionFailure(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			f := newFake(t, kfake.SeedTopics(3, "orders"))
			cfg := testConfig(f.ListenAddrs())
			cfg.Retries = 0
			c := newCluster(t, cfg)
			s := New(c, Options{Records: 200})
			t.Cleanup(s.Close)
			requests := 0
			f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				switch requests++; {
				case requests < 4:
				case stored:
					f.loseAnswers.Store(1)
				default:
					return refuse(r, kerr.InvalidProducerEpoch.Code), nil, true
				}
				return nil, nil, false
			})
			var err error
			sent := 0
			for err == nil {
				if err = s.Send(t.Context(), record("orders", fmt.Sprintf("key-%d", (sent+1)%97), fmt.Sprintf("%08d", sent+1))); err == nil {
					sent++
				}
			}
			e, ok := errors.AsType[*SessionError](err)
			if !ok || e.Acked != s.Acked() || e.Acked+e.Unacked != int64(sent) || e.Doubtful != stored || e.Unacked == 0 || e.Acked == 0 {
				t.Fatalf("after %d records: %#v: %v", sent, e, err)
			}
			for _, again := range []error{
				s.Send(t.Context(), record("orders", "k", "x")), s.Deliver(t.Context(), record("orders", "k", "x")),
				s.Check(t.Context(), record("orders", "k", "x")), s.Wait(t.Context()),
			} {
				if !errors.Is(again, err) {
					t.Errorf("the call after it: %v", again)
				}
			}
			f.produces(func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) { return nil, nil, false })
			f.loseAnswers.Store(0)
			got := f.read(t, "orders")
			if n := int64(len(got)); n < e.Acked || !stored && n != e.Acked {
				t.Errorf("%d records in the topic, %d are acknowledged", n, e.Acked)
			}
			checkPrefix(t, got, 3)

			has := map[string]bool{}
			for _, r := range got {
				has[string(r.Value)] = true
			}
			requests = -1 << 30
			next := New(c, Options{})
			t.Cleanup(next.Close)
			for n := range sent + 100 {
				if !has[fmt.Sprintf("%08d", n+1)] {
					send(t, next, "orders", n+1)
				}
			}
			must(t, next.Wait(within(t, 5*time.Second)))
			checkOrder(t, f.read(t, "orders"), sent+100)
		})
	}
}

// checkPrefix checks that each of so many partitions has the first of its records, without a hole.
func checkPrefix(t *testing.T, got []kafkatest.Record, partitions int) {
	t.Helper()
	java := kgo.StickyKeyPartitioner(nil).ForTopic("orders") // as Java's default partitioner
	last := map[int32]int{}
	for _, r := range got {
		n := last[r.Partition] + 1
		for java.Partition(&kgo.Record{Key: fmt.Appendf(nil, "key-%d", n%97)}, partitions) != int(r.Partition) {
			n++
		}
		if string(r.Value) != fmt.Sprintf("%08d", n) {
			t.Fatalf("partition %d has %s, want %08d", r.Partition, r.Value, n)
		}
		last[r.Partition] = n
	}
}

// TestCancel: Send and Wait return at once, and the number of acks is exact after Close.
func TestCancel(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{Records: 10})
	open(t, s, "orders")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Send(ended, record("orders", "k", "x")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	release := f.hold(t)
	for n := range 10 {
		send(t, s, "orders", n+2)
	}
	blocked(t, s, record("orders", "k", "x"))
	began := time.Now()
	if err := s.Wait(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if s.Acked() != 1 {
		t.Errorf("%d acks", s.Acked())
	}
	eventually(t, "the request", func() bool { return f.held.Load() > 0 })
	time.AfterFunc(200*time.Millisecond, release) // while Close waits
	s.Close()
	got := f.read(t, "orders")
	if n := s.Acked(); n != int64(len(got)) || n == 1 {
		t.Errorf("%d acks after Close, and the topic has %d records", n, len(got))
	}
	checkPrefix(t, got, 3)
}

// TestClose: Close waits for answers, but not for long, and ends the sender.
func TestClose(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{})
	open(t, s, "orders")
	f.hold(t)
	send(t, s, "orders", 2)
	eventually(t, "the request", func() bool { return f.held.Load() > 0 })
	began := time.Now()
	s.Close()
	if d := time.Since(began); d < answerTimeout || d > answerTimeout+time.Second {
		t.Errorf("Close took %s", d)
	}
	if s.Acked() != 1 {
		t.Errorf("%d acks", s.Acked())
	}
	for _, err := range []error{s.Send(t.Context(), record("orders", "k", "x")), s.Deliver(t.Context(), record("orders", "k", "x")), s.Wait(t.Context())} {
		if !errors.Is(err, errClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	s.Close()

	unused := newSender(t, f, Options{})
	if err := unused.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	unused.Close()
}

// TestDeliverAfterSend: Deliver waits for what was sent before.
func TestDeliverAfterSend(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{})
	for n := range 100 {
		send(t, s, "orders", n+1)
	}
	if err := s.Deliver(t.Context(), record("orders", "k", fmt.Sprintf("%08d", 101))); err != nil || s.Acked() != 101 {
		t.Errorf("%v, %d acks", err, s.Acked())
	}
	send(t, s, "orders", 102)
	if err := s.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	checkOrder(t, f.read(t, "orders"), 102)
}

// TestDeliverAfterFailure: Deliver does not go on after records of Send were lost.
func TestDeliverAfterFailure(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{})
	open(t, s, "orders")
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		return refuse(r, kerr.InvalidProducerEpoch.Code), nil, true
	})
	send(t, s, "orders", 2)
	first := s.Deliver(t.Context(), record("orders", "k", "x"))
	if e, ok := errors.AsType[*SessionError](first); !ok || e.Unacked != 1 {
		t.Errorf("%v", first)
	}
	if again := s.Deliver(t.Context(), record("orders", "k", "x")); !errors.Is(again, first) {
		t.Errorf("the next one: %v", again)
	}
	checkOrder(t, f.read(t, "orders"), 1)
}

// TestSendAfterFailure: Send returns the failure of the session although the window has room.
func TestSendAfterFailure(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{})
	open(t, s, "orders")
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		return refuse(r, kerr.InvalidProducerEpoch.Code), nil, true
	})
	send(t, s, "orders", 2)
	eventually(t, "the failure", func() bool { return s.flight.failure() != nil })
	if err := s.Send(t.Context(), record("orders", "k", "x")); !errors.As(err, new(*SessionError)) {
		t.Errorf("%v", err)
	}
}

// TestAcksAfterFailure: the error of a session counts the answers that come after the failure.
func TestAcksAfterFailure(t *testing.T) {
	f := newFake(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "orders"))
	for id := range int32(2) {
		must(t, f.MoveTopicPartition("orders", id, id))
	}
	s := newSender(t, f, Options{})
	on := func(partition int32) {
		rec := record("orders", "k", "v")
		rec.OwnPartition, rec.Partition = true, partition
		must(t, s.Send(t.Context(), rec))
	}
	on(0)
	on(1)
	must(t, s.Wait(t.Context()))
	arrived := make(chan struct{}, 1)
	f.produces(func(r *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if r.Topics[0].Partitions[0].Partition == 0 {
			return refuse(r, kerr.InvalidProducerEpoch.Code), nil, true
		}
		arrived <- struct{}{}
		return nil, nil, false
	})
	f.slow.Store(f.ListenAddrs()[1])
	on(1)
	<-arrived
	on(0)
	e, ok := errors.AsType[*SessionError](s.Wait(t.Context()))
	if !ok || e.Acked != 3 || e.Unacked != 1 || e.Doubtful {
		t.Errorf("%#v", e)
	}
}

// TestDeliverCancelled: a record whose ack did not come in time does not hold up the next one.
func TestDeliverCancelled(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{})
	open(t, s, "orders")
	release := f.hold(t)
	began := time.Now()
	err := s.Deliver(within(t, 50*time.Millisecond), record("orders", "k", "x"))
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*DeliveryError)) || time.Since(began) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if n := s.inFlight(); n != 0 {
		t.Errorf("%d records in flight", n)
	}
	release()
	if err := s.Deliver(within(t, 5*time.Second), record("orders", "k", "x")); err != nil {
		t.Error(err)
	}
}

// TestLargeCancelled: nothing is sent while a large record is in flight, even if Send did not wait for its ack.
func TestLargeCancelled(t *testing.T) {
	f := newFake(t)
	f.createTopic(t, "orders", 1, map[string]string{"max.message.bytes": "2000000"})
	s := newSender(t, f, Options{})
	open(t, s, "orders")
	release := f.hold(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for f.held.Load() == 0 && ctx.Err() == nil { // it is in flight
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if err := s.Send(ctx, record("orders", "k", "00000002"+big(1_500_000))); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	blocked(t, s, record("orders", "k", "x"))
	release()
	send(t, s, "orders", 3)
	if err := s.Wait(within(t, time.Minute)); err != nil || s.Acked() != 3 {
		t.Errorf("%v, %d acks", err, s.Acked())
	}
}
