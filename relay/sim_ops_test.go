package relay

import (
	"slices"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// op is an operation of the script.
type op struct {
	name string
	do   func()
}

// condition is a fault that lasts until end is called, with world.mu held.
type condition struct {
	name       string
	begin, end func()
}

// ops returns all operations, with weights that differ from run to run, so that rare faults are frequent in some runs.
func (w *world) ops() []op {
	all := []op{
		{"write", w.work},
		{"write", w.work},
		{"acknowledge", w.acknowledge},
		{"send", w.send},
		{"keepalive", w.keepalive},
		{"foreign WAL", w.foreign},
		{"Kafka fails", w.kafkaFails},
		{"refuse", w.refuse},
		{"hang", w.hang},
		{"land late", w.landLate},
		{"store", w.storeOnly},
		{"cut", w.cut},
		{"crash", w.crash},
		{"save the slot", w.save},
		{"lose the status", w.loseStatus},
		{"silence", w.silence},
		{"next stream breaks", w.nextBreaks},
		{"notice", w.notice},
		{"table", w.alterTable},
		{"clock", w.jump},
		{"condition", w.condition},
		{"condition", w.condition},
		{"kill", w.kill},
		{"quit", w.quitOne},
		{"second process", w.second},
		{"freeze", w.freeze},
		{"thaw", w.thawOne},
		{"pause", func() { w.rest(w.upTo(time.Minute)) }},
	}
	if w.deduplicates() {
		all = append(all, op{"strangers", w.strangers}, op{"a topic grows", w.grow}, op{"routing", w.reroute}, op{"poison is fixed", w.fix},
			op{"retention", w.retain}, op{"compaction", w.compact})
	}
	if w.holding {
		all = append(all, op{"letters", w.letterOp}, op{"letters", w.letterOp}, op{"letters", w.letterOp}, op{"poison is fixed", w.fix})
		all = slices.DeleteFunc(all, func(o op) bool { return o.name == "routing" }) // a key of another topic is another key
	}
	if w.owner {
		all = append(all, op{"owner", w.ownerActs}, op{"owner", w.ownerActs})
	}
	if w.failovers {
		all = append(all, op{"failover", w.failover}, op{"failover", w.failover}, op{"copy the slot", w.copySlot}, op{"copy the slot", w.copySlot})
	}
	if w.audited {
		all = append(all, op{"audit", w.audit}, op{"audit", w.audit}, op{"lose a record", w.loseRecord})
	}
	var out []op
	for i, o := range all {
		n := w.IntN(4)
		if i < 4 { // part of every run
			n += 4
		}
		for range n {
			out = append(out, o)
		}
	}
	return out
}

// run runs the script.
func (w *world) run() {
	w.start()
	ops, slow := w.ops(), time.Duration(1+w.IntN(2000))*time.Millisecond
	n := 5 + w.IntN(20)
	if w.IntN(10) == 0 {
		n = 40 + w.IntN(100)
	}
	fatalAt := w.IntN(6 * n)
	if w.holding { // what a lost slot has lost is in no topic
		n, fatalAt = 3*n, -1
	}
	for i := range n {
		o := ops[w.IntN(len(ops))]
		if i == fatalAt {
			o = op{"fatal", w.fatal}
		}
		w.do(o)
		w.rest(w.upTo(slow))
		if w.halt() {
			return
		}
	}
	w.heal()
	if !w.halt() {
		w.farewell()
	}
	w.edit(w.judgeOrder)
}

func (w *world) do(o op) {
	w.lastOp = o.name
	w.mu.Lock() // an operation that does nothing takes no lock
	w.tell("%s", o.name)
	w.mu.Unlock()
	o.do()
	synctest.Wait()
}

func (w *world) halt() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken != "" || w.over
}

// edit changes the server or the broker, and waits until nothing more happens.
func (w *world) edit(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	synctest.Wait()
}

// upTo returns a random time, an even number of nanoseconds. The fakes take odd times.
func (w *world) upTo(d time.Duration) time.Duration { return 2 + time.Duration(w.Int64N(int64(d)))&^1 }

// pick returns a random element.
func pick[T any](w *world, from []T) T { return from[w.IntN(len(from))] }

// work writes rows, commits them, or rolls them back. Several transactions are open at a time. A huge one has more
// rows than the window.
func (w *world) work() {
	w.edit(func() {
		pg := w.pg
		if pg.down {
			return
		}
		for range 1 + w.IntN(3) {
			if len(pg.writers) == 0 || len(pg.writers) < 3 && w.IntN(3) == 0 {
				pg.writers = append(pg.writers, &writer{})
			}
			wr := pick(w, pg.writers)
			rows := w.IntN(4)
			if w.IntN(40) == 0 {
				rows = w.cfg.MaxEvents + w.IntN(2*w.cfg.MaxEvents)
			}
			copied := w.IntN(4) == 0
			for range rows {
				if w.IntN(12) == 0 { // a row of another table of the publication, or an update of one of ours
					if len(pg.events)%2 == 0 { // no draw: the seeds that failed once stay what they were
						wr.rows = append(wr.rows, pg.update())
						continue
					}
					wr.rows = append(wr.rows, row{lsn: pg.advance(false, 1), table: pg.other, msg: pg.encode(pg.other, &event{key: "k"})})
					continue
				}
				pg.write(wr, copied, w.somePoison())
			}
			switch w.IntN(8) {
			case 0, 1: // the transaction stays open
			case 2:
				pg.writers = slices.DeleteFunc(pg.writers, func(x *writer) bool { return x == wr })
				pg.advance(false, 3) // the abort record
			case 3: // all at once: each commit LSN is the end LSN of the previous one
				for len(pg.writers) > 0 {
					pg.commit(pg.writers[0])
				}
			default:
				pg.commit(wr)
			}
		}
	})
}

// send lets a slow walsender send some messages, or a server that flushes late flush.
func (w *world) send() {
	w.edit(func() {
		if w.pg.async && w.IntN(2) == 0 {
			w.pg.flush()
		}
		w.pg.pump(1 + w.IntN(12))
	})
}

func (w *world) keepalive() {
	w.edit(func() {
		st := w.pg.holder
		if st == nil {
			return
		}
		at := st.decoded()
		switch {
		case st.at >= 0: // inside a transaction, where no server sends a later position; it must not matter
			if w.IntN(2) == 0 {
				at = w.pg.flushedEnd
			}
		case w.IntN(4) == 0:
			at = st.start
		}
		for range 1 + w.IntN(2) {
			st.keepalive(at, w.IntN(3) == 0)
		}
		st.poke()
	})
}

// foreign writes WAL that is not published.
func (w *world) foreign() {
	w.edit(func() {
		w.pg.advance(false, 1+w.IntN(500))
		if !w.pg.async {
			w.pg.flush()
		}
		if st := w.pg.holder; st != nil && st.at < 0 && w.IntN(2) == 0 {
			st.keepalive(st.decoded(), false)
			st.poke()
		}
	})
}

func (w *world) cut() {
	w.edit(func() {
		keep := -1
		if st := w.pg.holder; st != nil {
			keep = w.IntN(len(st.queue)+2) - 1
		}
		w.pg.cut(keep)
	})
}

func (w *world) crash() {
	w.edit(func() {
		w.pg.crash()
		if len(w.alive()) > 0 && w.alive()[0].acked {
			w.reached[skippedAfterCrash] = w.reached[skippedAfterCrash] || w.pg.done > w.pg.firstAfter(w.pg.confirmed)
		}
	})
}

func (w *world) save() { w.edit(func() { w.pg.saved = w.pg.confirmed }) }

// loseStatus loses a status update on the way, or lets it arrive and then breaks the connection.
func (w *world) loseStatus() {
	w.edit(func() {
		if st := w.pg.holder; st != nil {
			if w.IntN(2) == 0 {
				st.deaf = true
			} else {
				st.slams = true
			}
			w.disturb()
		}
	})
}

// silence makes the server send nothing any more.
func (w *world) silence() {
	w.edit(func() {
		if st := w.pg.holder; st != nil {
			st.mute = true
			w.reached[serverSilent] = true
			w.disturb()
		}
	})
}

func (w *world) nextBreaks() {
	w.edit(func() {
		if w.IntN(2) == 0 {
			w.pg.breaks = 1 + w.IntN(30)
		} else {
			w.pg.still = w.IntN(3)
		}
	})
}

// notice sends a warning of the server: one that means waiting, or an unknown one.
func (w *world) notice() {
	w.edit(func() {
		st := w.pg.holder
		if st == nil {
			return
		}
		if w.IntN(3) > 0 {
			st.say(sentItem{notice: &replication.Waiting{Message: "a standby has not caught up"}})
		} else {
			w.disturb()
			st.say(sentItem{notice: &replication.Error{Kind: replication.Protocol, Op: "read the stream", Err: errGone}})
		}
		st.poke()
	})
}

// alterTable adds a column and changes the order of columns, or adds a partition.
func (w *world) alterTable() { w.edit(func() { w.pg.table = w.IntN(len(w.pg.tables)) }) }

// jump sets the server's clock. In runs with audits it is not ahead by a little more than audit allows for: the rows
// would soon be in the future no more, and have older records (docs/audit.md).
func (w *world) jump() {
	w.edit(func() {
		const allowed = 10 * time.Minute
		w.pg.skew = []time.Duration{0, 2 * time.Hour, -time.Hour, w.upTo(time.Hour), -w.upTo(time.Hour)}[w.IntN(5)]
		if w.audited && w.pg.skew > allowed && w.pg.skew < 3*allowed {
			w.pg.skew = 2 * time.Hour
		}
	})
}

// condition begins or ends a lasting fault.
func (w *world) condition() {
	w.edit(func() {
		if len(w.sick) > 0 && w.IntN(2) == 0 {
			w.endCondition()
			return
		}
		pg, k := w.pg, w.kafka
		all := []condition{
			{"server down", func() { pg.down = true; pg.cut(-1) }, func() { pg.down = false }},
			{"slot held", func() { pg.held = pg.holder == nil }, func() { pg.held = false }},
			{"connections hang", func() { pg.hang = make(chan struct{}); pg.cut(-1) }, func() { close(pg.hang); pg.hang = nil }},
			{"checks fail", func() { pg.flaky = true }, func() { pg.flaky = false }},
			{"checks cannot tell", func() { pg.pending = true }, func() { pg.pending = false }},
			{"checks are slow", func() { pg.slow = w.upTo(4 * time.Second) }, func() { pg.slowUntil, pg.slow = time.Now().Add(2*pg.slow), 0 }},
			{"Kafka cannot be opened", func() { k.openErr = []error{errKafka, simReasoned{}}[w.IntN(2)] }, func() { k.openErr = nil }},
			{"probes fail", func() { k.probeErr = errKafka }, func() { k.probeErr = nil }},
			{"topic missing", func() { k.missing[2] = true }, func() { k.missing[2] = false }}, // without a Wake
		}
		if w.dead {
			all = append(all, condition{"dead-letter topic missing", func() { k.missing[3] = true }, func() { k.missing[3] = false }})
		}
		if w.deduplicates() {
			all = append(all, condition{"the position topic cannot be used", func() {
				k.unusable, w.excused[PermissionDenied] = true, "the position topic cannot be used before the first ack"
			}, func() { k.unusable = false }})
		}
		c := pick(w, all)
		for _, s := range w.sick {
			if s.name == c.name {
				return
			}
		}
		w.tell("%s", c.name)
		w.disturb()
		c.begin()
		w.sick = append(w.sick, c)
	})
}

// endCondition ends the oldest condition. w.mu is held.
func (w *world) endCondition() {
	w.tell("no more: %s", w.sick[0].name)
	w.sick[0].end()
	w.sick = w.sick[1:]
	w.disturb()
}
