package awssink

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// sqsOf is a server in this process that notes requests, and stores all but refused bodies.
type sqsOf struct {
	t      *testing.T
	mu     sync.Mutex
	groups [][]string // of each request
	gate   chan struct{}
	refuse string
}

func (s *sqsOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Entries []struct{ ID, MessageBody, MessageGroupID string } // encoding/json takes any case
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		s.t.Error(err)
	}
	var groups, stored []string
	refused := false
	for _, e := range in.Entries {
		groups = append(groups, e.MessageGroupID)
		stored = append(stored, fmt.Sprintf(`{"Id": %q, "MessageId": "m"}`, e.ID))
		refused = refused || s.refuse != "" && strings.HasSuffix(e.MessageBody, s.refuse)
	}
	s.mu.Lock()
	s.groups = append(s.groups, groups)
	s.mu.Unlock()
	<-s.gate
	if refused {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"__type": "InvalidParameterValue"}`)
		return
	}
	_, _ = fmt.Fprintf(w, `{"Successful": [%s]}`, strings.Join(stored, ","))
}

func (s *sqsOf) await(n int) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got := len(s.groups)
		s.mu.Unlock()
		if got == n {
			return
		}
		if got > n || time.Now().After(end) {
			s.t.Fatalf("%d requests, not %d", got, n)
		}
	}
}

// awaitWaiting waits until the transport has gathered n messages.
func awaitWaiting(t *testing.T, tr *transport, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		tr.mu.Lock()
		got := len(tr.queues[topic].waiting)
		tr.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d messages wait, not %d", got, n)
		}
	}
}

// TestBatches: a message that is alone is sent at once; what is gathered while a request is open goes into requests of
// ten, and of the size that the service takes. If a request is refused as a whole, only the message that is the reason
// is refused.
func TestBatches(t *testing.T) {
	server := &sqsOf{t: t, gate: make(chan struct{}), refuse: "e-4"}
	release := sync.OnceFunc(func() { close(server.gate) })
	defer release()
	tr := newSender(t, account(t, server.ServeHTTP), func(c *Config) { c.Timeout = time.Minute })
	failures := make(chan string, 100)
	var senders sync.WaitGroup
	send := func(i int) {
		rec := recordAt(fmt.Sprintf("e-%d", i), fmt.Sprintf("k-%d", i), topic, uint64(i))
		if i == 20 || i == 21 { // together they are too large for a request
			rec.Value = []byte(strings.Repeat("x", 200<<10))
		}
		senders.Go(func() {
			if why := tr.deliver(t.Context(), rec); why != nil {
				failures <- fmt.Sprint(i, why.Meaning)
			}
		})
	}
	send(0)
	server.await(1)
	for i := 1; i <= 9; i++ {
		send(i)
		awaitWaiting(t, tr, i) // and no second request is sent
	}
	send(10)
	server.await(2)
	for i := 11; i <= 18; i++ {
		send(i)
		awaitWaiting(t, tr, i-10)
	}
	for i := 20; i <= 21; i++ {
		send(i)
	}
	server.await(3) // eight and one of the large ones
	awaitWaiting(t, tr, 1)
	release()
	senders.Wait()
	close(failures)
	var all []string
	for f := range failures {
		all = append(all, f)
	}
	if !slices.Equal(all, []string{fmt.Sprint(4, lane.Refused)}) {
		t.Errorf("failed: %v", all)
	}
	var sizes []int
	for _, groups := range server.groups {
		sizes = append(sizes, len(groups))
		slices.Sort(groups)
		if len(slices.Compact(groups)) != len(groups) {
			t.Errorf("a request has two messages of one group: %v", groups)
		}
	}
	slices.Sort(sizes)
	want := []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 10} // the first, the second large one, and ten, one by one after the refusal
	if !slices.Equal(sizes, want) {
		t.Errorf("requests of %v messages, want %v", sizes, want)
	}
}

// TestCutSendsNothing: a message that waits when the session is cut is not sent.
func TestCutSendsNothing(t *testing.T) {
	server := &sqsOf{t: t, gate: make(chan struct{})}
	tr := newSender(t, account(t, server.ServeHTTP), func(c *Config) { c.Timeout = time.Minute })
	ctx, cancel := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	senders.Go(func() {
		if why := tr.deliver(ctx, recordAt("a", "a", topic, 1)); why == nil {
			t.Error("it is acknowledged")
		}
	})
	server.await(1)
	senders.Go(func() {
		if why := tr.deliver(ctx, recordAt("b", "b", topic, 2)); why == nil {
			t.Error("it is acknowledged")
		}
	})
	awaitWaiting(t, tr, 1)
	cancel()
	senders.Wait()
	tr.Close()
	server.await(1)
	close(server.gate)
}
