package awssink

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/sink"
)

// snsOf is a server in this process that stores messages once, by their deduplication ids, and answers some requests in
// another way.
type snsOf struct {
	t     *testing.T
	fault snsFault

	mu     sync.Mutex
	faults int             // left
	busy   map[string]bool // groups with a request that is not answered
	has    map[string]bool // by deduplication id
	order  map[string][]string
}

// snsFault answers a request with several messages: it stores those that it says, and returns the status and the text
// of the answer.
type snsFault func(ids []string, store func(place int)) (status int, text string)

func (s *snsOf) publish(w http.ResponseWriter, form url.Values) {
	var ids, groups []string
	for i := 1; form.Has(snsEntries + strconv.Itoa(i) + ".Id"); i++ {
		entry := snsEntries + strconv.Itoa(i) + "."
		ids, groups = append(ids, form.Get(entry+"MessageDeduplicationId")), append(groups, form.Get(entry+"MessageGroupId"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range groups {
		if s.busy[g] {
			s.t.Errorf("the group %s has two messages in flight", g)
		}
		s.busy[g] = true
	}
	s.mu.Unlock() // requests that came meanwhile see it
	s.mu.Lock()
	store := func(place int) {
		if !s.has[ids[place]] {
			s.has[ids[place]] = true
			s.order[groups[place]] = append(s.order[groups[place]], ids[place])
		}
	}
	status, answer := http.StatusOK, ""
	if len(ids) > 1 && s.faults > 0 {
		s.faults--
		status, answer = s.fault(ids, store)
	} else {
		for i := range ids {
			store(i)
		}
		answer = snsDialect{}.stored(len(ids))
	}
	for _, g := range groups {
		delete(s.busy, g)
	}
	if status == cutAnswer {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)+1))
		status = http.StatusOK
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
}

const cutAnswer = 0 // as a status: the connection ends after the text

func member(place int) string {
	return fmt.Sprintf("<member><Id>%d</Id><MessageId>m</MessageId></member>", place)
}

// TestSNSOrder: whatever an answer about a batch says, an event is acknowledged only when the topic has it, and the
// events of a group are stored in their order.
func TestSNSOrder(t *testing.T) {
	failed := func(code string, sender bool) snsFault { // of the first message; the rest is stored
		return func(ids []string, store func(int)) (int, string) {
			stored := ""
			for i := 1; i < len(ids); i++ {
				store(i)
				stored += member(i)
			}
			return 200, snsResult(fmt.Sprintf("<Successful>%s</Successful><Failed><member><Id>0</Id><Code>%s</Code><SenderFault>%v</SenderFault></member></Failed>", stored, code, sender))
		}
	}
	whole := func(status int, code string) snsFault {
		return func([]string, func(int)) (int, string) {
			return status, snsError(code)
		}
	}
	for name, fault := range map[string]snsFault{
		"a message is throttled":       failed("Throttled", true),
		"a message fails":              failed("InternalError", false),
		"the batch is throttled":       whole(429, "Throttled"),
		"the batch is refused":         whole(400, "InvalidParameter"),
		"the batch is too long":        whole(400, "BatchRequestTooLong"),
		"the batch fails":              whole(500, "InternalError"),
		"no answer and nothing stored": func([]string, func(int)) (int, string) { return cutAnswer, "" },
		"the answer names none":        func([]string, func(int)) (int, string) { return 200, snsResult("<Successful/><Failed/>") },
		"an answer to something else": func(ids []string, _ func(int)) (int, string) {
			return 200, strings.ReplaceAll(snsDialect{}.stored(len(ids)), "PublishBatchResponse", "PublishResponse")
		},
		"the answer names another one": func(ids []string, store func(int)) (int, string) {
			store(0)
			return 200, snsResult("<Successful>" + member(0) + member(len(ids)) + "</Successful>")
		},
		"the answer lacks a stored one": func(ids []string, store func(int)) (int, string) {
			for i := range ids {
				store(i)
			}
			return 200, snsResult("<Successful>" + member(0) + "</Successful>")
		},
		"the answer is cut": func(ids []string, store func(int)) (int, string) { // in the middle, and without what was not stored
			store(0)
			text := snsDialect{}.stored(len(ids))
			return cutAnswer, text[:len(text)-40]
		},
		"the answer is cut and the connection says it is whole": func(ids []string, store func(int)) (int, string) {
			store(0)
			text := snsDialect{}.stored(len(ids))
			return 200, text[:len(text)-40]
		},
	} {
		t.Run(name, func(t *testing.T) { snsOrder(t, fault) })
	}
}

func snsOrder(t *testing.T, fault snsFault) {
	const groups, each = 12, 5
	server := &snsOf{t: t, fault: fault, faults: 20, busy: map[string]bool{}, has: map[string]bool{}, order: map[string][]string{}}
	r := testReceiver(t, snsAccount(t, server.publish), ofSNS, func(c *Config) { c.Timeout = time.Minute })
	want := map[string][]string{}
	ids := map[uint64]string{}
	acked, done := 0, make(chan error, 1)
	end := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	p, err := r.Open(t.Context(), sink.Callbacks{
		Acked: func(events []uint64) {
			server.mu.Lock()
			defer server.mu.Unlock()
			for _, n := range events {
				if !server.has[ids[n]] {
					t.Errorf("event %s is acknowledged and not stored", ids[n])
				}
			}
			if acked += len(events); acked == groups*each {
				end(nil)
			}
		},
		Failed: end, Wake: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.mu.Lock() // answers wait until all is sent
	for n := range uint64(groups * each) {
		rec := recordAt(fmt.Sprintf("e-%d", n), fmt.Sprintf("k-%d", n%groups), topic, n+1)
		ids[n] = rec.EventID()
		want[string(rec.Key)] = append(want[string(rec.Key)], ids[n])
		if err := p.Send(rec, n); err != nil {
			t.Error(err)
		}
	}
	p.Flush()
	server.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for key, all := range want {
		if !slices.Equal(server.order[key], all) {
			t.Errorf("the group %s has %v, want %v", key, server.order[key], all)
		}
	}
	if server.faults == 20 {
		t.Error("there was no fault")
	}
}
