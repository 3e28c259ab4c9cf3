package redissink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// sender delivers to a server without a lane: one call is one request.
type sender struct {
	t *testing.T
	*transport
	server *redistest.Server
}

func newSender(t *testing.T, server *redistest.Server, change ...func(*Config)) *sender {
	t.Helper()
	r := testReceiver(t, "redis://"+server.Addr, append([]func(*Config){func(c *Config) { c.Timeout = time.Minute }}, change...)...)
	tr, err := r.Reach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return &sender{t, tr, server}
}

// event is an event of the stream: "<id>@<commit LSN>-<ordinal>".
func event(text string) *router.Record {
	var id string
	var lsn uint64
	var ordinal uint32
	at := strings.Index(text, "@")
	id = text[:at]
	if _, err := fmt.Sscanf(text[at:], "@%d-%d", &lsn, &ordinal); err != nil {
		panic(err)
	}
	return recordAt(id, "k", topic, lsn, ordinal)
}

// deliver sends events in one request.
func (s *sender) deliver(events ...string) (int, *lane.Failure) {
	s.t.Helper()
	var records []*router.Record
	for _, e := range events {
		records = append(records, event(e))
	}
	return s.send(records...)
}

func (s *sender) send(records ...*router.Record) (int, *lane.Failure) {
	var items []*lane.Item
	for i, rec := range records {
		items = append(items, &lane.Item{N: uint64(i), Record: rec})
	}
	return s.transport.deliver(context.Background(), items)
}

// stores fails the test unless all events are acknowledged.
func (s *sender) stores(events ...string) {
	s.t.Helper()
	if n, why := s.deliver(events...); n != len(events) || why != nil {
		s.t.Fatalf("%v: %d stored, %v", events, n, why)
	}
}

// has compares the stream with entries "<event id>@<entry id>".
func (s *sender) has(want ...string) {
	s.t.Helper()
	entries, err := s.server.Admin.XRange(context.Background(), topic, "-", "+").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprint(e.Values[fieldID], "@", e.ID))
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("the stream has\n%v, not\n%v", got, want)
	}
}

func (s *sender) repeats() (found, other int) {
	c := s.receiver.repeats
	return int(testutil.ToFloat64(c.WithLabelValues("yes"))), int(testutil.ToFloat64(c.WithLabelValues("no")))
}

const last = "18446744073709551615"

// TestRepeats: an event is acknowledged without being stored only if its own entry is there. An event that the stream
// does not have is stored, wherever the stream ends.
func TestRepeats(t *testing.T) {
	server := redistest.Start(t)
	for name, test := range map[string]func(*sender){
		"again": func(s *sender) {
			s.stores("a@10-0", "b@10-1", "c@20-0")
			s.stores("a@10-0", "b@10-1", "c@20-0", "d@20-1")
			s.has("a@10-0", "b@10-1", "c@20-0", "d@20-1")
			if found, other := s.repeats(); found != 3 || other != 0 {
				s.t.Errorf("%d and %d repeats", found, other)
			}
		},
		"another event at the position": func(s *sender) { // the database was restored, and its log was written again
			s.stores("a@10-0", "b@20-0")
			s.stores("x@10-0", "y@20-0", "z@30-0")
			s.has("a@10-0", "b@20-0", "x@20-1", "y@20-2", "z@30-0")
			if found, other := s.repeats(); found != 0 || other != 2 {
				s.t.Errorf("%d and %d repeats", found, other)
			}
		},
		"another database": func(s *sender) { // whose log is younger
			s.stores("a@100-0")
			s.stores("x@10-0", "y@10-1")
			s.stores("b@110-0")
			s.stores("y@10-1", "z@20-0")
			s.has("a@100-0", "x@100-1", "y@100-2", "b@110-0", "y@110-1", "z@110-2") // at least once
		},
		"the next id is that of another event": func(s *sender) {
			s.stores("a@100-0", "x@10-0")
			s.stores("b@100-1", "c@100-2")
			s.has("a@100-0", "x@100-1", "b@100-2", "c@100-3")
		},
		"deleted entry": func(s *sender) {
			s.stores("a@10-0", "b@20-0", "c@30-0")
			s.server.Do("XDEL", topic, "20-0")
			s.stores("a@10-0", "b@20-0", "c@30-0")
			s.has("a@10-0", "c@30-0", "b@30-1")
		},
		"the last entry is deleted": func(s *sender) {
			s.stores("a@10-0", "b@20-0")
			s.server.Do("XDEL", topic, "20-0")
			s.stores("b@20-0", "c@30-0")
			s.has("a@10-0", "b@20-1", "c@30-0")
		},
		"trimmed entries": func(s *sender) {
			s.stores("a@10-0", "b@20-0", "c@30-0")
			s.server.Do("XTRIM", topic, "MAXLEN", "1")
			s.stores("a@10-0", "b@20-0", "c@30-0")
			s.has("c@30-0", "a@30-1", "b@30-2")
		},
		"everything is trimmed": func(s *sender) {
			s.stores("a@10-0", "b@20-0")
			s.server.Do("XTRIM", topic, "MAXLEN", "0")
			s.stores("b@20-0", "c@30-0")
			s.has("b@20-1", "c@30-0")
		},
		"the stream is deleted": func(s *sender) {
			s.stores("a@10-0", "b@20-0")
			s.server.Do("DEL", topic)
			s.stores("b@20-0", "c@30-0")
			s.has("b@20-0", "c@30-0")
		},
		"an entry of another program": func(s *sender) {
			s.server.Do("XADD", topic, "10-0", "f", "v")
			s.server.Do("XADD", topic, "20-0", fieldID, "b", "f", "v")
			s.stores("a@10-0", "b@20-0")
			s.has("<nil>@10-0", "b@20-0", "a@20-1", "b@20-2")
		},
		"the number of an entry has 64 bits": func(s *sender) {
			s.server.Do("XADD", topic, "10-9007199254740999", "f", "v")
			s.stores("a@10-0", "b@10-1")
			s.has("<nil>@10-9007199254740999", "a@10-9007199254741000", "b@10-9007199254741001")
		},
		"the number of an entry overflows": func(s *sender) {
			s.server.Do("XADD", topic, "1999-"+last, "f", "v")
			s.stores("a@10-0", "b@10-1")
			s.has("<nil>@1999-"+last, "a@2000-0", "b@2000-1")
		},
		"no further id": func(s *sender) { // an error stops the script, and what is before it is acknowledged
			s.server.Do("XADD", topic, last+"-18446744073709551614", "f", "v")
			if n, why := s.deliver("a@10-0", "b@20-0", "c@30-0"); n != 1 || why == nil || why.Meaning != lane.Again {
				s.t.Errorf("%d stored, %v", n, why)
			}
			s.has("<nil>@"+last+"-18446744073709551614", "a@"+last+"-"+last)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server.Do("DEL", topic)
			test(newSender(t, server))
		})
	}
}

// TestSameEvent: an entry is the event if id, key and value are the same, from the same system of Postgres. A failover
// of Postgres changes the timeline of an event that is sent again.
func TestSameEvent(t *testing.T) {
	s := newSender(t, redistest.Start(t))
	for name, test := range map[string]struct {
		change func(*router.Record)
		stored int64
	}{
		"same":          {func(*router.Record) {}, 1},
		"timeline":      {func(r *router.Record) { r.Headers[2].Value = []byte("2:7518:5:shop:2:2:000000000000000a:0") }, 1},
		"other header":  {func(r *router.Record) { r.Headers[1].Value = []byte("order.changed") }, 1},
		"id":            {func(r *router.Record) { r.ID = []byte("b") }, 2},
		"key":           {func(r *router.Record) { r.Key = []byte("l") }, 2},
		"no key":        {func(r *router.Record) { r.Key = nil }, 2},
		"value":         {func(r *router.Record) { r.Value = []byte("w") }, 2},
		"tombstone":     {func(r *router.Record) { r.Value = nil }, 2},
		"other system":  {func(r *router.Record) { r.Headers[2].Value = []byte("2:7519:5:shop:1:1:000000000000000a:0") }, 2},
		"old positions": {func(r *router.Record) { r.Headers[2].Value = []byte("1:7518:1:000000000000000a:0") }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s.server.Do("DEL", topic)
			s.stores("a@10-0")
			rec := event("a@10-0")
			test.change(rec)
			if n, why := s.send(rec); n != 1 || why != nil {
				t.Fatal(n, why)
			}
			if got := s.server.Do("XLEN", topic); got != test.stored {
				t.Errorf("%v entries", got)
			}
		})
	}
}

// TestTwoSenders: two senders of the same events, each of which begins again at random earlier ones, in batches of
// random sizes, store each event once, in order: a request that arrives late does no harm.
func TestTwoSenders(t *testing.T) {
	server := redistest.Start(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const events = 600
	var all []string
	for i := range events {
		all = append(all, fmt.Sprintf("e%d@%d-%d", i, 1000+i/7, i%7))
	}
	var running sync.WaitGroup
	for n := range uint64(2) {
		s, rnd := newSender(t, server), rand.New(rand.NewPCG(seed, n))
		running.Go(func() {
			for at, jumps := 0, 20; at < events; {
				batch := all[at:min(events, at+1+rnd.IntN(30))]
				if n, why := s.deliver(batch...); n != len(batch) || why != nil {
					t.Errorf("%d of %d: %v", n, len(batch), why)
					return
				}
				if at += len(batch); jumps > 0 && rnd.IntN(3) == 0 {
					at, jumps = rnd.IntN(at+1), jumps-1
				}
			}
		})
	}
	running.Wait()
	newSender(t, server).has(all...)
}

// TestFields: what an entry has.
func TestFields(t *testing.T) {
	s := newSender(t, redistest.Start(t), func(c *Config) { c.MaxLength = 100 })
	rec := event("a@4294967296-7")
	rec.Headers = append(rec.Headers, router.Header{Name: "key", Value: []byte{0, 0xff}}, router.Header{Name: "null"}, router.Header{Name: "empty", Value: []byte{}})
	tombstone := event("b@4294967297-0")
	tombstone.Key, tombstone.Value = nil, nil
	if n, why := s.send(rec, tombstone); n != 2 || why != nil {
		t.Fatal(n, why)
	}
	got := fmt.Sprintf("%q", s.server.Do("XRANGE", topic, "-", "+"))
	want := `[["4294967296-7" ["id" "a" "key" "k" "value" ` + fmt.Sprintf("%q", rec.Value) + ` "header.type" "order.placed" "header.outboxcdc-position" "2:7518:5:shop:1:1:0000000100000000:7"` +
		` "header.key" "\x00\xff" "header.empty" ""]] ["4294967297-0" ["id" "b" "header.type" "order.placed" "header.outboxcdc-position" "2:7518:5:shop:1:1:0000000100000001:0"]]]`
	if got != want {
		t.Errorf("the stream has\n%s, not\n%s", got, want)
	}
	for i := range 2000 {
		s.stores(fmt.Sprintf("e%d@%d-0", i, 5000000000+i))
	}
	if n := s.server.Do("XLEN", topic).(int64); n < 100 || n > 500 {
		t.Errorf("%d entries with max_length 100", n)
	}
}

// TestNoPosition: an event without a position has no id for its entry.
func TestNoPosition(t *testing.T) {
	s := newSender(t, redistest.Start(t))
	rec := event("a@10-0")
	rec.Headers = rec.Headers[:2]
	if n, why := s.send(rec); n != 0 || why == nil || why.Meaning != lane.Refused || !strings.Contains(why.Error(), "route.position_header") {
		t.Errorf("%d, %v", n, why)
	}
}

// TestLimits: the largest event that Check accepts is stored, and a larger one would not be.
func TestLimits(t *testing.T) {
	server := redistest.Start(t, "proto-max-bulk-len 1mb")
	s := newSender(t, server)
	many := func(n int) *router.Record {
		rec := event(fmt.Sprintf("m%d@10-%d", n, n))
		for i := range n - len(rec.Headers) {
			rec.Headers = append(rec.Headers, router.Header{Name: fmt.Sprint(i), Value: []byte{}})
		}
		return rec
	}
	large := func(n int) *router.Record {
		rec := event(fmt.Sprintf("l%d@20-%d", n, n))
		rec.Value = make([]byte, n)
		return rec
	}
	for _, rec := range []*router.Record{many(maxHeaders), large(1 << 20)} {
		if poison := s.Check(rec); poison != nil {
			t.Error(poison)
		}
		if n, why := s.send(rec); n != 1 || why != nil {
			t.Error(n, why)
		}
	}
	if poison := s.Check(many(maxHeaders + 1)); poison == nil || poison.Cause != router.Rejected {
		t.Error(poison)
	}
	if poison := s.Check(large(1<<20 + 1)); poison == nil || poison.Cause != router.TooLarge {
		t.Error(poison)
	}
	if n, why := s.send(large(1<<20 + 1)); n != 0 || why == nil {
		t.Error("the server takes what Check refuses")
	}
	// A batch of the largest number of headers fits into a request.
	var records []*router.Record
	for i := range maxBatch {
		rec := many(maxHeaders)
		rec.ID, rec.Headers[2].Value = fmt.Append(nil, i), fmt.Appendf(nil, "2:7518:5:shop:1:1:%016x:0", 100+i)
		records = append(records, rec)
	}
	if n, why := s.send(records...); n != maxBatch || why != nil {
		t.Error(n, why)
	}
}

// TestReplicas: an event is acknowledged when the replicas have it, and a repeat too: it makes a write that changes
// nothing, because without one Redis 7.2 does not wait.
func TestReplicas(t *testing.T) {
	primary, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := strings.Cut(primary.Addr, ":")
	replica.Do("REPLICAOF", host, port)
	s := newSender(t, primary, func(c *Config) { c.WaitReplicas = 1 })
	slow := newSender(t, primary, func(c *Config) { c.WaitReplicas, c.Timeout = 1, 2*time.Second })
	for end := time.Now().Add(time.Minute); ; {
		if n, why := s.deliver("a@10-0"); n == 1 && why == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(n, why)
		}
	}
	if replica.Do("XLEN", topic) != int64(1) {
		t.Error("acknowledged, and the replica does not have it")
	}
	replica.Freeze()
	other := newSender(t, primary, func(c *Config) { c.WaitReplicas, c.Timeout = 1, 2*time.Second })
	for _, slow := range []*sender{slow, slow, other} { // then it is a repeat, which writes nothing, also over a new connection
		if n, why := slow.deliver("b@20-0"); n != 0 || why == nil || why.Code != codeReplicas || why.Meaning != lane.Again {
			t.Errorf("without the replica: %d, %v", n, why)
		}
		if slow.client.take() != nil {
			t.Error("the connection is used again, although another server may be the primary now")
		}
	}
	replica.Thaw()
	for end := time.Now().Add(time.Minute); ; {
		if n, why := s.deliver("b@20-0"); n == 1 && why == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(n, why)
		}
	}
	s.has("a@10-0", "b@20-0")
	if replica.Do("XLEN", topic) != int64(2) {
		t.Error("acknowledged, and the replica does not have it")
	}
	primary.Do("XGROUP", "CREATE", topic, "g", "0")
	state := func() (stream string) {
		return fmt.Sprint(primary.Do("XINFO", "STREAM", topic), primary.Do("XINFO", "GROUPS", topic))
	}
	before, writes := state(), changes(primary)
	s.stores("a@10-0", "b@20-0")
	if changes(primary) == writes {
		t.Error("repeats write nothing, so WAIT does not wait for them")
	}
	if after := state(); after != before {
		t.Errorf("repeats have changed the stream from\n%s to\n%s", before, after)
	}
}

// changes returns the number of writes that the server has made.
func changes(server *redistest.Server) (n int) {
	_, text, _ := strings.Cut(server.Do("INFO", "persistence").(string), "rdb_changes_since_last_save:")
	_, _ = fmt.Sscan(text, &n)
	return n
}
