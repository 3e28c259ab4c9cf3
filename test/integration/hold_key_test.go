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

// Poison events hold their keys while the daemon is killed again and again, letters are retried, and the limit of the
// topic is raised and lowered. Each event is in its topic in the end, and no event comes for the first time after a
// later one of its key.
func TestHoldKey(t *testing.T) {
	for _, deduplicated := range []bool{false, true} {
		t.Run(fmt.Sprintf("deduplicated=%v", deduplicated), func(t *testing.T) {
			t.Parallel()
			holdKey(t, deduplicated)
		})
	}
}

func holdKey(t *testing.T, deduplicated bool) {
	o := newPoisonOutbox(t, options{missing: []string{"dead"}})
	o.makeTopic("dead", 3, nil)
	o.makeTopic("narrow", 3, map[string]string{"max.message.bytes": "100000"})
	env := []string{"OUTBOXCDC_POISON_POLICY=hold_key", "OUTBOXCDC_POISON_TOPIC=" + o.topic("dead")}
	if deduplicated {
		env = append(env, o.deduplicating(time.Second)...)
	} else {
		env = append(env, atLeastOnce)
	}
	const keys = 20
	var mu sync.Mutex
	written := map[string][]string{} // ids by key
	insert := func(large bool) {
		key := fmt.Sprint("k", rand.IntN(keys))
		payload := "'{}'"
		if large {
			payload = tooLarge.values[strings.Index(tooLarge.values, "(SELECT"):]
		}
		var id string
		o.tx(func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('narrow', $1, 'e', `+payload+`) RETURNING id::text`, key).Scan(&id)
		})
		mu.Lock()
		written[key] = append(written[key], id)
		mu.Unlock()
	}
	limit := func(bytes string) {
		must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("narrow"), map[string]string{"max.message.bytes": bytes}))
	}
	retry := func() string {
		out, notes, exit := o.runBinary(env, "dlq", "retry", "--all")
		t.Logf("retry: exit %d, %s", exit, strings.TrimSpace(notes))
		return out
	}
	end := time.Now().Add(25 * time.Second)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; time.Now().Before(end); n++ {
			insert(n%40 == 7)
			time.Sleep(5 * time.Millisecond)
		}
	})
	wg.Go(func() {
		for n := 0; time.Now().Before(end); n++ {
			if n%2 == 1 {
				limit("1000000")
			}
			retry()
			if n%2 == 1 {
				limit("100000")
			}
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
		}
	})
	kills := 0
	for time.Now().Before(end) {
		r := o.startStreaming(env...)
		time.Sleep(time.Duration(500+rand.IntN(3000)) * time.Millisecond)
		r.kill9()
		kills++
	}
	wg.Wait()
	limit("1000000")
	o.startStreaming(env...)
	held := func() int {
		out, _, _ := o.runBinary(env, "dlq", "list")
		return strings.Count(out, "\n")
	}
	var first map[string][]string
	repeated, total := 0, 0
	await(t, patience, "every event to be in its topic", func() error {
		if n := held(); n > 0 {
			retry()
		}
		all, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), o.topic("narrow"))
		if err != nil {
			return err
		}
		first, repeated, total = map[string][]string{}, 0, 0
		for _, r := range all {
			id := ""
			for _, h := range r.Headers {
				if h.Key == "id" {
					id = string(h.Value)
				}
			}
			total++
			if slices.Contains(first[string(r.Key)], id) {
				repeated++
				continue
			}
			first[string(r.Key)] = append(first[string(r.Key)], id)
		}
		n, m := 0, 0
		for key := range written {
			n, m = n+len(written[key]), m+len(first[key])
		}
		if m < n {
			return fmt.Errorf("%d of %d events are there, %d letters are open", m, n, held())
		}
		return nil
	})
	for key, want := range written {
		if !slices.Equal(first[key], want) {
			t.Errorf("key %s: %d events in another order than they were written", key, len(want))
		}
	}
	t.Logf("%d kills, %d records, %d repeated", kills, total, repeated)
}
