package integration

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// instance is a daemon with a network of its own.
type instance struct {
	r         *relay
	pg, kafka *faultproxy.Proxy
}

// F09, F14, F15: of two daemons the active one is cut off from Postgres, Kafka or both, with more than a window to
// send; the other takes over, or the cut ends before. Then the network is back, and outstanding records are sent, or
// not.
func TestOneWriterNetworkCuts(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	// In lanes of their own: most of the time is spent waiting.
	lanes, cuts, longest := fullOrShort(8, 1), fullOrShort(25, 2), fullOrShort(time.Minute, 6*time.Second)
	var proxies []*faultproxy.Proxy
	var ports []int
	for range 2 * lanes {
		p, err := faultproxy.Start("")
		must(t, err)
		t.Cleanup(func() { must(t, p.Close()) })
		proxies, ports = append(proxies, p), append(ports, p.Port())
	}
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Proxied: ports})
	for i, p := range proxies {
		p.Target(k.ProxiedBackend(i))
	}
	for lane := range lanes {
		t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{kafka: k, partitions: 3})
			o.proves("F09 F14 F15", "the active one of two deduplicating daemons cut off from Postgres, Kafka or both, 1 s to %v, %d times, more than a window to send", longest, cuts)
			o.sample()
			o.oneWriter(cuts, longest, [2]*faultproxy.Proxy{proxies[2*lane], proxies[2*lane+1]})
		})
	}
}

func (o *outbox) oneWriter(cuts int, longest time.Duration, networks [2]*faultproxy.Proxy) {
	const window = 1000
	rnd := newRand(o.t)
	// Kafka has a quarter of fence_wait to store records already sent, which has to be enough on a busy machine.
	env := append(o.deduplicating(20*time.Second), senderTimeout(5*time.Second), fmt.Sprintf("OUTBOXCDC_TUNING_MAX_IN_FLIGHT_RECORDS=%d", window))
	var all [2]instance
	for i, p := range networks {
		pg, url := o.proxied()
		all[i] = instance{o.start(append(env, url, "OUTBOXCDC_KAFKA_BROKERS="+p.Addr())...), pg, p}
	}
	next := map[string]int{}
	insert := func(rows int) {
		key := fmt.Sprint("k", rnd.IntN(20))
		o.insert("order", key, next[key]+1, rows)
		next[key] += rows
	}
	insert(1)
	for range cuts {
		active := o.activeInstance(all)
		cut := active.cut(rnd)
		for range 3 {
			insert(window / 2)
		}
		time.Sleep(randomDuration(rnd, time.Second, longest)) // the duration of the cut is the fault
		for _, p := range cut {
			must(o.t, p.Set(faultproxy.Faults{}))
		}
		if rnd.IntN(3) == 0 { // the next cut meets a session that has just begun
			continue
		}
		o.awaitArrived(patience)
	}
	o.activeInstance(all)
	o.awaitArrived(patience)
	o.repeatsAtMost(o.verify(patience), 0, "one session sends at a time")
}

// activeInstance returns the instance that has the slot.
func (o *outbox) activeInstance(all [2]instance) (out instance) {
	o.t.Helper()
	await(o.t, patience, "one of the two to have the slot", func() error {
		for _, i := range all {
			if st, err := i.r.status(); err == nil && (st.State == "streaming" || st.State == "backpressured") {
				out = i
				return nil
			}
		}
		return errors.New("neither streams")
	})
	return out
}

// cut cuts an instance off from the network, in one of several ways, and returns the proxies to restore.
func (i instance) cut(rnd *rand.Rand) (cut []*faultproxy.Proxy) {
	switch rnd.IntN(4) {
	case 0:
		cut = []*faultproxy.Proxy{i.pg}
	case 1:
		cut = []*faultproxy.Proxy{i.kafka}
	case 2:
		cut = []*faultproxy.Proxy{i.kafka, i.pg}
	default: // connections end, and new ones lead nowhere
		cut = []*faultproxy.Proxy{i.kafka, i.pg}
		for _, p := range cut {
			p.CutAll(true)
		}
	}
	for _, p := range cut {
		_ = p.Set(faultproxy.BlackHole()) // fails only when the proxy is closed
	}
	return cut
}

// randomDuration draws a duration, with each order of magnitude equally likely.
func randomDuration(rnd *rand.Rand, least, most time.Duration) time.Duration {
	return time.Duration(float64(least) * math.Pow(float64(most)/float64(least), rnd.Float64()))
}
