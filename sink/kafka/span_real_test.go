package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// spans holds against Apache Kafka what ReadSpan relies on.
func (r *realEnds) spans(ctx context.Context, t *testing.T, authority *testcert.Authority) {
	keep := map[string]string{"retention.ms": "-1"}
	c := newClient(t, r.cfg)

	t.Run("time", func(t *testing.T) {
		r.create(ctx, t, "span-time", 3, map[string]string{"retention.ms": "-1", "segment.bytes": "1048576"})
		put(t, r.k.Brokers(), 4, append(numbered("span-time", 0, 200, 40_000), numbered("span-time", 1, 3, 100)...)...)
		check := func(since time.Time, first, from int64) {
			t.Helper()
			s := spansOf(t, c, since, "span-time")
			if s[0].First != first || s[0].From != from || s[0].End != 200 || s[2].End != 0 {
				t.Errorf("since %v: %+v, want first %d and from %d", since, s, first, from)
			}
		}
		check(time.Time{}, 0, 0)
		check(spanTime(-1), 0, 0)
		check(spanTime(57), 0, 57)
		check(spanTime(57).Add(time.Millisecond), 0, 58)
		check(spanTime(200), 0, 200)
		deleteRecords(t, r.k.Brokers(), "span-time", 0, 111) // Kafka deletes segments later
		for i := range 200 {
			check(spanTime(i), 111, max(111, int64(i)))
		}
		s := spansOf(t, c, time.Time{}, "span-time")
		if !s[0].Oldest.Equal(spanTime(111)) || !s[2].Oldest.IsZero() {
			t.Errorf("the oldest record is of %v, want %v", s[0].Oldest, spanTime(111))
		}
		wantOffsets(t, offsetsOf(t, c, &s[0]), 111, 200)
		wantOffsets(t, offsetsOf(t, c, &s[1]), 0, 3)
	})

	t.Run("append time", func(t *testing.T) {
		r.create(ctx, t, "span-append", 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
		put(t, r.k.Brokers(), 2, numbered("span-append", 0, 4, 10)...)
		s := spansOf(t, c, time.Now().Add(-time.Minute), "span-append")[0]
		n := 0
		err := c.ReadSpan(ctx, &s, func(rec *Record) error {
			n++
			if d := time.Since(rec.Time).Abs(); d > time.Minute {
				t.Errorf("offset %d is of %v", rec.Offset, rec.Time)
			}
			return nil
		})
		if err != nil || n != 4 {
			t.Errorf("%d records, %v", n, err)
		}
	})

	t.Run("transactions", func(t *testing.T) {
		r.create(ctx, t, "span-transactions", 1, nil)
		transactions(t, r.k.Brokers(), "span-transactions")
		s := spansOf(t, c, time.Time{}, "span-transactions")[0]
		wantTransactions(t, c, &s)
	})

	t.Run("deleted meanwhile", func(t *testing.T) {
		r.create(ctx, t, "span-deleted", 1, keep)
		put(t, r.k.Brokers(), 1, numbered("span-deleted", 0, 40, 300_000)...)
		s := spansOf(t, c, time.Time{}, "span-deleted")[0]
		var got []int64
		must(t, c.ReadSpan(ctx, &s, func(rec *Record) error {
			if got = append(got, rec.Offset); len(got) == 1 {
				deleteRecords(t, r.k.Brokers(), "span-deleted", 0, 30)
			}
			return nil
		}))
		if k := int64(len(got)) - 10; s.First != 30 || s.Deleted != 30-k || k > 10 {
			t.Errorf("%d records came before the deletion; %+v", k, s)
		}
	})

	// Tombstones are deleted, too, so no record is left before the end of the span. The log keeps an empty batch of each
	// producer.
	t.Run("compacted", func(t *testing.T) {
		const topic = "span-compacted"
		r.create(ctx, t, topic, 1, map[string]string{
			"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100",
		})
		produce := func(value []byte, n int) {
			for i := range n {
				put(t, r.k.Brokers(), 1, &kgo.Record{Topic: topic, Key: fmt.Append(nil, i), Value: value})
			}
		}
		produce([]byte("v"), 20)
		produce(nil, 19)
		end := spansOf(t, c, time.Time{}, topic)[0].End
		var got []int64
		eventually(t, "the log to be compacted", func() bool {
			time.Sleep(200 * time.Millisecond)
			put(t, r.k.Brokers(), 1, &kgo.Record{Topic: topic, Key: []byte("0"), Value: nil}) // only older segments are compacted
			s := spansOf(t, c, time.Time{}, topic)[0]
			s.End, got = end, nil
			if err := c.ReadSpan(ctx, &s, func(rec *Record) error { got = append(got, rec.Offset); return nil }); err != nil || s.From != end {
				t.Fatalf("%v %+v", err, s)
			}
			return len(got) <= 1
		})
		if !slices.Equal(got, []int64{19}) {
			t.Errorf("read %v", got)
		}
		if known, err := c.Retention(ctx, []string{topic, "span-time"}); err != nil || !known[topic].Compact || known["span-time"].Compact || len(known) != 2 {
			t.Errorf("compacted: %v, %v", known, err)
		}
	})

	t.Run("permissions", func(t *testing.T) {
		r.create(ctx, t, "span-writable", 1, nil)
		must(t, kafkatest.Allow(ctx, r.k.Brokers(), "writer", "span-writable"))
		cfg := r.cfg
		cfg.Brokers = r.k.SASLBrokers()
		cfg.Security = func() (brokerauth.Config, error) {
			return brokerauth.Config{TLS: trust(authority), SASL: &brokerauth.SASL{Mechanism: "PLAIN", User: "writer", Password: "secret"}}, nil
		}
		c := newClient(t, cfg)
		for _, topic := range []string{"span-writable", "span-time"} {
			_, _, err := c.Spans(ctx, []string{topic}, time.Time{})
			if f, ok := errors.AsType[*failure](err); !ok || !f.PermissionDenied() || !strings.Contains(err.Error(), "remedy: grant the user Read and Describe on topic "+topic) {
				t.Errorf("spans: %v", err)
			}
			err = c.ReadSpan(ctx, &Span{Topic: topic, End: 1}, func(*Record) error { return nil })
			if err == nil || !strings.Contains(err.Error(), "remedy: grant the user Read and Describe on topic "+topic) {
				t.Errorf("read: %v", err)
			}
			if known, err := c.Retention(ctx, []string{topic}); err != nil || len(known) > 0 {
				t.Errorf("compacted: %v, %v", known, err)
			}
		}
		t.Log(c.ReadSpan(ctx, &Span{Topic: "span-time", End: 1}, func(*Record) error { return nil }))
	})

	t.Run("killed", func(t *testing.T) {
		r.create(ctx, t, "span-killed", 1, keep)
		put(t, r.k.Brokers(), 1, numbered("span-killed", 0, 30, 300_000)...)
		s := spansOf(t, c, time.Time{}, "span-killed")[0]
		var got []int64
		must(t, c.ReadSpan(ctx, &s, func(rec *Record) error {
			if got = append(got, rec.Offset); len(got) == 5 {
				if err := r.k.Kill(); err != nil {
					t.Error(err)
				}
				go func() { _ = r.k.StartAgain(ctx) }()
			}
			return nil
		}))
		wantOffsets(t, got, 0, 30)
	})
}
