package relay

import (
	"fmt"
	"testing"
	"time"
)

// TestTroubles: an error that repeats at each attempt is one trouble with a count, another error is another trouble,
// and a full window is none.
func TestTroubles(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.kafka.edit(func() { b.kafka.openErr = func(n int) error { return fmt.Errorf("attempt %d: %w", n, errKafka) } })
		b.start()
		b.sleep(5 * time.Minute)
		first := b.relay.Status().Troubles
		if len(first) == 0 || len(first) > 2 {
			t.Fatalf("%d troubles: %+v", len(first), first)
		}
		tr := first[0]
		if tr.State != Reconnecting || tr.Count < 2 || !tr.Last.After(tr.First) || tr.Error == fmt.Sprintf("attempt 1: %v", errKafka) {
			t.Errorf("%+v", tr)
		}
		b.logged(1, "state=reconnecting was=")
		// After 10 s, and then once a minute.
		b.logged(5, "level=WARN msg=\"events are waiting\" state=reconnecting reason=")
		b.kafka.edit(func() { b.kafka.openErr = nil })
		b.sleep(time.Minute)
		b.want(Streaming)
		b.logged(1, "state=streaming was=reconnecting for=5m")
		if n := b.relay.Status().Troubles[0].Count; b.log.count(fmt.Sprintf("repeated=%d reason=", n-1)) != 1 {
			t.Errorf("%d attempts, and no line says so", n)
		}
		b.kafka.hold()
		for range 150 {
			b.pg.commit("b")
		}
		b.sleep(time.Second)
		b.want(Backpressured)
		if got := b.relay.Status().Troubles; len(got) != len(first) {
			t.Errorf("a full window is a trouble: %+v", got)
		}
	})
}

// Only the newest troubles are kept, oldest first, and a list that was returned does not change.
func TestTroublesAreBounded(t *testing.T) {
	var v view
	for i := range 3 * maxTroubles {
		v.noteTrouble(Reconnecting, fmt.Sprint(i), "", time.Unix(int64(i), 0))
	}
	if len(v.troubles) != maxTroubles || v.troubles[0].label != fmt.Sprint(2*maxTroubles) || v.troubles[maxTroubles-1].label != fmt.Sprint(3*maxTroubles-1) {
		t.Errorf("%+v", v.troubles)
	}
	v.noteTrouble(Parked, v.troubles[maxTroubles-1].label, "", time.Unix(99, 0))
	if last := v.troubles[maxTroubles-1]; last.State != Parked || last.Count != 1 {
		t.Errorf("another state with the same reason is another trouble: %+v", last)
	}
}

// TestBothAway: while the daemon waits for Kafka, an error of Postgres is logged once, and again after Postgres was
// available.
func TestBothAway(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		const line = "level=WARN msg=\"waiting for Kafka; Postgres cannot be used either\""
		b.kafka.edit(func() {
			b.kafka.openErr = func(int) error { return kafkaError{err: errKafka} }
			b.kafka.probeErr = errKafka
			b.pg.down = true
		})
		b.start()
		b.sleep(5 * time.Minute)
		b.logged(1, line)
		b.pg.edit(func() { b.pg.down = false })
		b.sleep(2 * time.Minute)
		b.pg.edit(func() { b.pg.down = true })
		b.sleep(2 * time.Minute)
		b.logged(2, line)
		b.pg.edit(func() { b.pg.down = false })
		b.kafka.edit(func() { b.kafka.openErr, b.kafka.probeErr = nil, nil })
		b.sleep(time.Minute)
		b.want(Streaming)
		b.pg.edit(func() { b.pg.down = true }) // a session without Postgres logs that itself
		b.pg.cut()
		b.sleep(time.Minute)
		b.logged(2, line)
		b.pg.edit(func() { b.pg.down = false })
		b.sleep(time.Minute)
	})
}
