package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Poison events hold their keys while the daemon is killed again and again, letters are retried and dropped, and the
// limit of the topic is raised and lowered. Each event that was not dropped is in its topic in the end, and none comes
// for the first time after a later one of its key. With deduplicated delivery none comes twice. `make prove` kills the
// daemon 100 times, at 5,000 events a second of 100,000 keys, 1,000 of which have poison.
func TestHoldKey(t *testing.T) {
	for _, deduplicated := range []bool{false, true} {
		t.Run(fmt.Sprintf("deduplicated=%v", deduplicated), func(t *testing.T) {
			t.Parallel()
			h := newHoldTest(t, deduplicated)
			h.run()
			h.judge()
		})
	}
}

// holdTest is an outbox some of whose keys have poison events.
type holdTest struct {
	*poisonOutbox
	env          []string
	deduplicated bool
	kills        int
	keys, poison int // number of keys, and of those that have poison
	rows         int // of a transaction without poison
	over         context.CancelFunc
	ctx          context.Context

	mu      sync.Mutex
	written map[string][]string // ids by key
	dropped map[string]bool     // ids
}

func newHoldTest(t *testing.T, deduplicated bool) *holdTest {
	h := &holdTest{
		poisonOutbox: newPoisonOutbox(t, options{missing: []string{"dead"}}), deduplicated: deduplicated,
		written: map[string][]string{}, dropped: map[string]bool{}, keys: 40, poison: 20, rows: 1,
	}
	if isProving() {
		h.keys, h.poison, h.rows = 100_000, 1000, 25
	}
	h.makeTopic("dead", 3, nil)
	h.makeTopic("narrow", 3, map[string]string{"max.message.bytes": "100000"})
	h.env = []string{"OUTBOXCDC_POISON_POLICY=hold_key", "OUTBOXCDC_POISON_TOPIC=" + h.topic("dead")}
	if deduplicated {
		h.env = append(h.env, h.deduplicating(time.Second)...)
	} else {
		h.env = append(h.env, atLeastOnce)
	}
	h.ctx, h.over = context.WithCancel(testContext(t))
	return h
}

// run kills the daemon until there are enough kills.
func (h *holdTest) run() {
	var others sync.WaitGroup
	others.Go(func() { h.repeat(5*time.Millisecond, func(n int) { h.insert(n%40 == 7) }) })
	others.Go(func() { h.repeat(500*time.Millisecond, h.handle) })
	enough := 8
	if isProving() {
		enough = 100
	}
	h.proves("F127", "poison events hold their keys; kill -9 of the daemon %d times, letters retried and dropped beside it", enough)
	for ; h.kills < enough; h.kills++ {
		r := h.startStreaming(h.env...)
		time.Sleep(time.Duration(500+rand.IntN(2500)) * time.Millisecond) // anywhere in what it does
		r.kill9()
	}
	h.over()
	others.Wait()
	h.limit("1000000")
	h.startStreaming(h.env...)
}

// repeat calls f again and again until the run is over.
func (h *holdTest) repeat(every time.Duration, f func(n int)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
			f(n)
		}
	}
}

func (h *holdTest) insert(large bool) {
	keys, payload := make([]string, h.rows), "'{}'"
	for i := range keys {
		keys[i] = fmt.Sprint("k", rand.IntN(h.keys))
	}
	if large {
		keys, payload = []string{fmt.Sprint("k", rand.IntN(h.poison))}, tooLarge.values[strings.Index(tooLarge.values, "(SELECT"):]
	}
	var ids []string
	h.tx(func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 'narrow', key, 'e', `+payload+` FROM unnest($1::text[]) WITH ORDINALITY AS k (key, n) ORDER BY n RETURNING id::text`, keys)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, key := range keys {
		h.written[key] = append(h.written[key], ids[i])
	}
}

func (h *holdTest) limit(bytes string) {
	must(h.t, kafkatest.SetTopicConfig(testContext(h.t), h.kafka.Brokers(), h.topic("narrow"), map[string]string{"max.message.bytes": bytes}))
}

// handle retries the letters, with the limit raised every other time, or drops the letters of one event.
func (h *holdTest) handle(n int) {
	switch n % 5 {
	case 1, 3:
		h.limit("1000000")
		h.retry()
		h.limit("100000")
	case 4:
		list, _, _ := h.runBinary(h.env, "dlq", "list")
		_, id, found := strings.Cut(list, " id=")
		if id, _, _ = strings.Cut(id, " "); !found {
			return
		}
		if out, _, _ := h.runBinary(h.env, "dlq", "drop", "--id", id); strings.Contains(out, "id="+id) {
			h.mu.Lock()
			h.dropped[id] = true
			h.mu.Unlock()
		}
	default:
		h.retry()
	}
}

func (h *holdTest) retry() {
	_, notes, exit := h.runBinary(h.env, "dlq", "retry", "--all")
	h.t.Logf("retry: exit %d, %s", exit, strings.TrimSpace(notes))
}

// judge waits until every event is in its topic, and compares their order.
func (h *holdTest) judge() {
	var first map[string][]string
	repeated, total := 0, 0
	await(h.t, patience, "every event to be in its topic", func() error {
		if out, _, _ := h.runBinary(h.env, "dlq", "list"); out != "" {
			h.retry()
		}
		all, err := kafkatest.ReadAll(testContext(h.t), h.kafka.Brokers(), h.topic("narrow"))
		if err != nil {
			return err
		}
		first, repeated, total = map[string][]string{}, 0, len(all)
		seen := map[string]bool{}
		for _, r := range all {
			id := ""
			for _, x := range r.Headers {
				if x.Key == "id" {
					id = string(x.Value)
				}
			}
			if seen[id] {
				repeated++
			} else if !h.dropped[id] {
				first[string(r.Key)] = append(first[string(r.Key)], id)
			}
			seen[id] = true
		}
		n, m := 0, 0
		for key := range h.written {
			h.written[key] = slices.DeleteFunc(h.written[key], func(id string) bool { return h.dropped[id] })
			n, m = n+len(h.written[key]), m+len(first[key])
		}
		if m < n {
			return fmt.Errorf("%d of %d events are there", m, n)
		}
		return nil
	})
	for key, want := range h.written {
		if !slices.Equal(first[key], want) {
			h.t.Errorf("key %s: %d events in another order than they were written", key, len(want))
		}
	}
	if h.deduplicated && repeated > 0 {
		h.t.Errorf("%d records are repeated", repeated)
	}
	h.t.Logf("%d kills, %d records, %d repeated, %d dropped", h.kills, total, repeated, len(h.dropped))
}
