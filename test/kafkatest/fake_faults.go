package kafkatest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fault is a fault of a [Fake]: exactly one of the fields below "what". The fields above say when.
type Fault struct {
	Requests   []kmsg.Key // which; nil means Produce
	Topic      string     // "" means all; for Answer and MoveLeaders
	Partitions []int32    // nil means all; for Answer
	Count      int        // how often; 0 means until Heal
	Share      float64    // probability that it happens; 0 means always
	Seed       uint64     // of the random numbers

	// what

	// Answer is the error code of a partition (or, for requests without partitions, of the whole). As at a real broker
	// the request was carried out if it is REQUEST_TIMED_OUT or NOT_ENOUGH_REPLICAS_AFTER_APPEND, and not otherwise.
	Answer int16
	// LoseRequests and LoseAnswers close the connection: before the request is handled, or instead of its answer.
	LoseRequests, LoseAnswers bool
	// Delay postpones an answer.
	Delay time.Duration
	// MoveLeaders is how often a random partition of Topic gets a random leader.
	MoveLeaders time.Duration
}

// Inject makes faults happen until Heal, or until the fake ends. If several apply to the same request, the first one
// happens.
func (f *Fake) Inject(ctx context.Context, faults ...Fault) error {
	raw, err := json.Marshal(faults)
	if err != nil {
		return err
	}
	_, err = f.sendCommand(ctx, "/inject", raw)
	return err
}

// Hits returns how often a fault has happened since the fake was started.
func (f *Fake) Hits(ctx context.Context) (int, error) { return f.sendCommand(ctx, "/hits", nil) }

// Heal ends all faults. Answers already delayed still arrive late.
func (f *Fake) Heal(ctx context.Context) error {
	_, err := f.sendCommand(ctx, "/heal", nil)
	return err
}

// sendCommand sends a command to the child, whose answer is the number of hits.
func (f *Fake) sendCommand(ctx context.Context, path string, body []byte) (hits int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("control kfake: %s: %w", path, err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+loopback(f.control)+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusOK {
		return 0, errors.New(string(bytes.TrimSpace(answer)))
	}
	return strconv.Atoi(string(answer))
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// faults is the child's side: the present faults.
type faults struct {
	brokers int
	cluster *kfake.Cluster

	mu   sync.Mutex
	live []*liveFault
	hits int
}

type liveFault struct {
	Fault
	left int // -1: any number
	rand *rand.Rand
	end  func() // ends the work of kfake, or of a goroutine, for it; nil: nothing
}

func newFaults(brokers int) *faults { return &faults{brokers: brokers} }

// serve answers on the control channel until the process ends.
func (f *faults) serve(control net.Listener, cluster *kfake.Cluster) {
	f.cluster = cluster
	cluster.Control(f.interceptRequest)
	mux := http.NewServeMux()
	mux.HandleFunc("/inject", func(w http.ResponseWriter, r *http.Request) {
		var all []Fault
		err := json.NewDecoder(r.Body).Decode(&all)
		for _, one := range all {
			if err == nil {
				err = f.inject(one)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.count(w)
	})
	mux.HandleFunc("/hits", func(w http.ResponseWriter, _ *http.Request) { f.count(w) })
	mux.HandleFunc("/heal", func(w http.ResponseWriter, _ *http.Request) {
		f.heal()
		f.count(w)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(control) }()
}

func (f *faults) count(w io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, _ = fmt.Fprint(w, f.hits)
}

func (f *faults) inject(fault Fault) error {
	if fault.Requests == nil {
		fault.Requests = []kmsg.Key{kmsg.Produce}
	}
	l := &liveFault{Fault: fault, left: -1, rand: rand.New(rand.NewPCG(fault.Seed, 0))}
	if fault.Count > 0 {
		l.left = fault.Count
	}
	switch {
	case fault.Answer != 0:
		if err := f.answer(l); err != nil {
			return err
		}
	case fault.MoveLeaders > 0:
		if err := f.moveLeaders(l); err != nil {
			return err
		}
	case !fault.LoseRequests && !fault.LoseAnswers && fault.Delay == 0:
		return errors.New("a fault that does nothing")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live = append(f.live, l)
	return nil
}

// answer makes kfake answer with an error.
func (f *faults) answer(l *liveFault) error {
	code := kerr.TypedErrorForCode(l.Answer)
	if code == nil || code.Code != l.Answer {
		return fmt.Errorf("%d is no error code", l.Answer)
	}
	partitions := l.Partitions
	if partitions == nil && !slices.ContainsFunc(l.Requests, func(k kmsg.Key) bool { return k != kmsg.Produce && k != kmsg.Metadata }) {
		// One by one: for a whole topic kfake would draw a single random number at first.
		for p := range int32(1000) {
			partitions = append(partitions, p)
		}
	}
	l.end = f.cluster.Fault(kfake.Fault{
		Keys: l.Requests, Topic: l.Topic, Partitions: partitions, Err: code, Count: -1,
		When: func(kmsg.Request) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.draw(l)
		},
	}).Remove
	return nil
}

// draw draws whether a fault happens. The caller holds the mutex.
func (f *faults) draw(l *liveFault) bool {
	if l.left == 0 || l.Share > 0 && l.rand.Float64() >= l.Share {
		return false
	}
	if l.left > 0 {
		l.left--
	}
	f.hits++
	return true
}

// first returns the first fault of a kind that happens to a request.
func (f *faults) first(key kmsg.Key, kind func(*Fault) bool) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.live {
		if kind(&l.Fault) && slices.Contains(l.Requests, key) && f.draw(l) {
			return l.Fault, true
		}
	}
	return Fault{}, false
}

// interceptRequest is kfake's hook before a request is handled.
func (f *faults) interceptRequest(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:staticcheck,revive // kfake's signature
	f.cluster.KeepControl()
	if _, lost := f.first(kmsg.Key(req.Key()), func(f *Fault) bool { return f.LoseRequests }); lost {
		return nil, errors.New("lost by request of the test"), true
	}
	return nil, nil, false
}

func (f *faults) moveLeaders(l *liveFault) error {
	if len(f.cluster.PartitionInfos(l.Topic)) == 0 {
		return fmt.Errorf("move leaders: no topic %q", l.Topic)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.end = cancel
	go func() {
		tick := time.NewTicker(l.MoveLeaders)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			f.mu.Lock()
			moves := f.draw(l)
			partition, broker := l.rand.Uint32(), l.rand.Int32N(int32(f.brokers))
			f.mu.Unlock()
			if n := len(f.cluster.PartitionInfos(l.Topic)); moves && n > 0 {
				_ = f.cluster.MoveTopicPartition(l.Topic, int32(partition%uint32(n)), broker) // the topic may just have been deleted
			}
		}
	}()
	return nil
}

func (f *faults) heal() {
	f.mu.Lock()
	live := f.live
	f.live = nil
	f.mu.Unlock()
	for _, l := range live {
		if l.end != nil {
			l.end()
		}
	}
}
