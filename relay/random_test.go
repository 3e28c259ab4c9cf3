package relay

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
)

// TestRandomFaults runs random scripts of commits, of acknowledgements in any order that a sink may give them in, and of
// faults in both forms. What must hold at each status update the fake Postgres checks, what must not be sent again the
// fake Kafka; at the end everything has been delivered, first deliveries in order, and the slot has followed.
// OUTBOXCDC_TEST_SEED repeats a run.
func TestRandomFaults(t *testing.T) {
	first, runs := rand.Uint64(), uint64(200)
	if text := os.Getenv("OUTBOXCDC_TEST_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("OUTBOXCDC_TEST_SEED: %v", err)
		}
		first, runs = seed, 1
	}
	reached := map[string]int{}
	for seed := first; seed-first < runs; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomFaults(t, seed, reached) }) {
			t.Logf("OUTBOXCDC_TEST_SEED=%d repeats it, as far as the relay's own jitter lets it", seed)
			return
		}
	}
	// A run that meets none of these proves nothing.
	for _, what := range nasty {
		if reached[what] == 0 && runs > 1 {
			t.Errorf("never reached: %s", what)
		}
	}
}

// nasty is what the runs must meet between them, as the relay words it, and a counter.
var nasty = []string{
	"state=parked", "state=waiting_for_slot", "state=waiting_for_topic", "state=backpressured", "state=reconnecting", "state=draining",
	"sending record by record", "drain incomplete", "nothing more is confirmed", "could not be told", "has not answered within", skips,
}

const skips = "events skipped because they are in Kafka"

// random is one run.
type random struct {
	*bench
	*rand.Rand
	cfg  Config
	all  []string // committed, as specs
	open bool     // a transaction is half sent
	sick []func() // ends of conditions that last
}

type op struct {
	name string
	do   func()
}

func randomFaults(t *testing.T, seed uint64, reached map[string]int) {
	r := &random{Rand: rand.New(rand.NewPCG(seed, 1)), cfg: testConfig()}
	r.cfg.MaxEvents = 1 + r.IntN(30)
	r.cfg.ParkAfter = time.Duration(10+r.IntN(30)) * time.Second
	r.cfg.ShutdownTimeout = time.Duration(1+r.IntN(10)) * time.Second
	bubble(t, r.cfg, func(b *bench) {
		r.bench = b
		defer r.tell()
		b.kafka.hold()
		b.start()
		ops := []op{
			{"transaction", r.transaction},
			{"acknowledge", r.acknowledge},
			{"Kafka fails", func() { r.ifKafka(func() { b.kafka.fail(errKafka, r.IntN(2) == 0) }) }},
			{"acknowledgements are lost", func() { r.ifKafka(b.kafka.keep) }},
			{"refuse", func() { r.ifKafka(r.refuse) }},
			{"cut", b.pg.cut},
			{"crash", b.pg.crash},
			{"save the slot", func() { b.pg.edit(func() { b.pg.saved = b.pg.confirmed }) }},
			{"the next stream breaks", func() { b.pg.edit(func() { b.pg.breaks = r.IntN(30) }) }},
			{"the next stream breaks at once", func() { b.pg.edit(func() { b.pg.stillborn = r.IntN(2) }) }},
			{"silence", r.silence},
			{"foreign", r.foreign},
			{"condition", r.condition},
			{"restart", r.restart},
			{"pause", func() { b.sleep(time.Duration(r.IntN(60)) * time.Second) }},
		}
		// Each seed has preferences of its own: a fault that is rare among others must also come often.
		var choice []op
		for i, op := range ops {
			n := r.IntN(4)
			if i < 2 { // these come in every run
				n += 5
			}
			for range n {
				choice = append(choice, op)
			}
		}
		slow := int64(1 + r.IntN(3000))
		for range 100 {
			i := r.IntN(len(choice))
			r.note("%s", choice[i].name)
			choice[i].do()
			b.sleep(time.Duration(r.Int64N(slow)) * time.Millisecond)
			if !b.running() {
				b.Fatalf("Run ended: %v", b.result(time.Second))
			}
		}
		r.heal()
		for _, what := range nasty {
			reached[what] += b.log.count(what)
		}
		reached[skips] += int(b.metric("events_skipped_total"))
		b.kafka.judge(r.all)
		if got, want := b.pg.slotAt(), b.pg.end; got != want {
			b.Errorf("the slot is at %s in the end, want %s; state %s: %s", got, want, b.state(), b.relay.Status().Reason)
		}
	})
}

// tell shows what happened, if it should not have.
func (r *random) tell() {
	if !r.Failed() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.pg.wal {
		r.Logf("transaction %s to %s, open %v: %v", t.Commit, t.End, t.open, t.ids)
	}
	for i, st := range r.pg.streams {
		r.Logf("stream %d from %s: read to %s, told %s", i, st.start, st.received, st.position())
	}
	for _, s := range r.kafka.sinks {
		r.Logf("sink %d: acknowledged %v", s.session, slices.Sorted(maps.Keys(s.acked)))
	}
	r.Logf("known %v, memory %+v", r.kafka.known, r.relay.mem)
	r.Log("what the relay said and what was done to it:\n" + r.bench.log.String())
}

// note adds what was done to what the relay said.
func (r *random) note(format string, args ...any) {
	fmt.Fprintf(r.bench.log, "%s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// transaction is one, or a piece of one.
func (r *random) transaction() {
	rows := make([]string, r.IntN(2+r.IntN(8)))
	for i := range rows {
		rows[i] = fmt.Sprintf("e%d@%c", len(r.all)+i, 't'+r.IntN(3))
	}
	r.all = append(r.all, rows...)
	if r.open {
		r.pg.more(rows...)
	} else {
		r.pg.begin(rows...)
	}
	if r.open = r.IntN(3) == 0; !r.open {
		r.pg.finish()
	}
}

func (r *random) ifKafka(f func()) {
	if r.kafka.running() {
		f()
	}
}

// acknowledge gives one partition's next few.
func (r *random) acknowledge() {
	r.ifKafka(func() {
		if flying := r.kafka.flying(); len(flying) > 0 {
			r.kafka.ack(r.kafka.upTo(flying[r.IntN(len(flying))])...)
		}
	})
}

// refuse fails a batch of two or more for what it is, which alone its records are not refused for.
func (r *random) refuse() {
	r.mu.Lock()
	var numbers []uint64
	for _, f := range r.kafka.live().flying {
		numbers = append(numbers, f.n)
	}
	r.mu.Unlock()
	if len(numbers) > 1 {
		r.kafka.fail(&refusal{numbers}, lost)
	}
}

// silence makes the server say nothing any more, when everything is acknowledged: else that is waited for first.
func (r *random) silence() {
	if r.open || !r.kafka.running() {
		return
	}
	r.kafka.ack()
	r.kafka.edit(func() {
		if st := r.pg.live(); st != nil {
			st.mute = true
		}
	})
	r.sleep(25 * time.Second)
}

func (r *random) foreign() {
	if !r.open {
		r.pg.foreign()
	}
}

// condition begins one that lasts, or ends one.
func (r *random) condition() {
	if len(r.sick) > 0 && r.IntN(2) == 0 {
		r.kafka.edit(r.sick[0])
		r.sick = r.sick[1:]
		return
	}
	b := r.bench
	all := []struct{ begin, end func() }{
		{func() { b.pg.down = true }, func() { b.pg.down = false }},
		{func() { b.pg.held = b.pg.live() == nil }, func() { b.pg.held = false }},
		{func() { b.pg.checkErr = func(int) error { return errGone } }, func() { b.pg.checkErr = nil }},
		{func() { b.pg.checkErr = func(int) error { return replication.ErrUndecided } }, func() { b.pg.checkErr = nil }},
		{func() { b.pg.checkErr = func(int) error { time.Sleep(4 * time.Second); return nil } }, func() { b.pg.checkErr = nil }},
		{func() { b.kafka.openErr = func(int) error { return errKafka } }, func() { b.kafka.openErr = nil }},
		{func() { b.kafka.probeErr = errKafka }, func() { b.kafka.probeErr = nil }},
		{func() { delete(b.kafka.topics, "v") }, func() { b.kafka.topics["v"] = true }}, // with no Wake: asked for again
	}
	c := all[r.IntN(len(all))]
	r.kafka.edit(c.begin)
	r.sick = append(r.sick, c.end)
}

// restart ends the process, in one of the two ways, and starts another. One that ended well has confirmed every
// transaction of which everything was acknowledged.
func (r *random) restart() {
	clean := r.IntN(2) == 0
	if !clean {
		r.kafka.edit(func() { r.pg.down = true }) // what a kill -9 looks like from outside: nothing is said any more
		r.pg.cut()
	}
	err := r.quit()
	r.note("Run returned %v", err)
	var s *Stopped
	switch {
	case err != nil && (!errors.As(err, &s) || s.Class != Fault):
		r.Fatalf("told to stop, Run returned %v", err)
	case err == nil:
		r.confirmedAll()
	}
	r.kafka.edit(func() {
		r.kafka.known = nil
		r.pg.down = false
	})
	r.process(r.cfg)
	r.start()
}

// confirmedAll checks that the last transaction that this process knows to be wholly in Kafka lies in front of what the
// slot was told. (The slot itself may have forgotten since.)
func (r *random) confirmedAll() {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var said pglogrepl.LSN
	for _, st := range r.pg.streams {
		said = max(said, st.position())
	}
	if done := r.relay.mem.progress.Done; !done.IsZero() && done.CommitLSN >= said {
		r.Errorf("a clean end, with the transaction at %s acknowledged and the slot told %s", done.CommitLSN, said)
	}
}

// heal ends all that ails and gives it time.
func (r *random) heal() {
	if r.open {
		r.pg.finish()
	}
	r.kafka.edit(func() {
		for _, end := range r.sick {
			end()
		}
		r.pg.breaks, r.pg.stillborn = 0, 0
		r.kafka.auto = time.Millisecond
	})
	r.pg.cut() // what is in flight has no timer
	r.sleep(5 * time.Minute)
}

// judge compares the log with what was committed: nothing missing, nothing that was not committed, first deliveries in
// order per topic, and each repeat the same record.
func (k *cluster) judge(want []string) {
	k.b.Helper()
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	next := map[string][]string{}
	for _, spec := range want {
		id, topic, _ := strings.Cut(spec, "@")
		next[topic] = append(next[topic], id)
	}
	seen := map[string]record{}
	for _, r := range k.log {
		if old, again := seen[r.id]; again {
			if old.position != r.position || old.topic != r.topic {
				k.b.Errorf("event %s was delivered as %+v and then as %+v", r.id, old, r)
			}
			continue
		}
		seen[r.id] = r
		if len(next[r.topic]) == 0 || next[r.topic][0] != r.id {
			k.b.Fatalf("event %s is delivered to %s, where %v were next", r.id, r.topic, next[r.topic])
		}
		next[r.topic] = next[r.topic][1:]
	}
	for topic, left := range next {
		if len(left) > 0 {
			k.b.Errorf("never delivered to %s: %v", topic, left)
		}
	}
}
