package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/internal/check"
	"github.com/outboxcdc/outboxcdc/internal/kafkatest"
)

// follower reads the topics from the beginning of the test on. It only tells how far delivery is; what arrived is
// judged on another reading, from the topics' beginning, when all is over.
type follower struct {
	topics []string
	stop   func()

	mu   sync.Mutex
	seen map[string]int // id → records
	all  int
}

func startFollower(o *outbox, types []string) *follower {
	f := &follower{seen: map[string]int{}}
	for _, typ := range types {
		f.topics = append(f.topics, o.topic(typ))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := kafkatest.Follow(ctx, o.kafka.Brokers(), f.take, f.topics...); err != nil {
			o.t.Errorf("follow the topics: %v", err)
		}
	})
	f.stop = func() { cancel(); ended.Wait() }
	o.t.Cleanup(f.stop)
	return f
}

func (f *follower) take(r kafkatest.Record) {
	id, _ := headerOf(r, "id")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[id]++
	f.all++
}

func (f *follower) records() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// unseen keeps those of the ids that have not come.
func (f *follower) unseen(ids []string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(ids, func(id string) bool { return f.seen[id] > 0 })
}

func headerOf(r kafkatest.Record, name string) (value string, count int) {
	for _, h := range r.Headers {
		if h.Key == name {
			value = string(h.Value)
			count++
		}
	}
	return value, count
}

// position is the header outboxcdc-position.
type position struct {
	system   uint64
	timeline int
	commit   pglogrepl.LSN
	ordinal  uint64
}

func parsePosition(text string) (p position, err error) {
	bad := fmt.Errorf("position %q is not 1:<system id>:<timeline>:<commit LSN, 16 hex digits>:<ordinal>", text)
	part := strings.Split(text, ":")
	if len(part) != 5 || part[0] != "1" || len(part[3]) != 16 {
		return p, bad
	}
	var commit uint64
	var errs [4]error
	p.system, errs[0] = strconv.ParseUint(part[1], 10, 64)
	p.timeline, errs[1] = strconv.Atoi(part[2])
	commit, errs[2] = strconv.ParseUint(part[3], 16, 64)
	p.commit = pglogrepl.LSN(commit)
	p.ordinal, errs[3] = strconv.ParseUint(part[4], 10, 64)
	if errors.Join(errs[:]...) != nil || p.system == 0 || p.timeline == 0 || commit == 0 {
		return p, bad
	}
	return p, nil
}

// before is the order in which events are delivered.
func (p position) before(q position) bool {
	return p.commit < q.commit || p.commit == q.commit && p.ordinal < q.ordinal
}

// verdict is what all records together are worth.
type verdict struct {
	check.Report
	problems []string            // with headers and positions
	at       map[string]position // of each id
	repeated map[string]int      // how often an id came again
}

func (v *verdict) err() error {
	if v.OK() && len(v.problems) == 0 {
		return nil
	}
	const few = 5
	text := v.String()
	for i, p := range v.problems {
		if i == few {
			text += fmt.Sprintf("\n  … and %d more", len(v.problems)-few)
			break
		}
		text += "\n  " + p
	}
	return errors.New(text)
}

// repeats lists the transactions of which events came again: commit LSN, and how many of how many.
func (v *verdict) repeats() string {
	again, all := map[pglogrepl.LSN]int{}, map[pglogrepl.LSN]int{}
	for id, p := range v.at {
		all[p.commit]++
		if v.repeated[id] > 0 {
			again[p.commit]++
		}
	}
	var text []string
	for _, lsn := range slices.Sorted(maps.Keys(again)) {
		text = append(text, fmt.Sprintf("%s (%d of %d)", lsn, again[lsn], all[lsn]))
	}
	return strings.Join(text, ", ")
}

// judge compares all records with all rows. The records of a partition are in the order of their offsets.
func judge(truth []row, records []kafkatest.Record) *verdict {
	v := &verdict{at: map[string]position{}, repeated: map[string]int{}}
	rows := make([]check.Row, 0, len(truth))
	types := make(map[string]string, len(truth))
	for _, r := range truth {
		rows = append(rows, r.Row)
		types[r.ID] = r.eventType
	}
	found := make([]check.Record, 0, len(records))
	problem := func(r kafkatest.Record, format string, args ...any) {
		id, _ := headerOf(r, "id")
		v.problems = append(v.problems, fmt.Sprintf("id %s at %s/%d@%d: %s", id, r.Topic, r.Partition, r.Offset, fmt.Sprintf(format, args...)))
	}
	newest := map[[2]string]position{} // of each topic and key
	owner := map[position]string{}
	for _, r := range records {
		c := check.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			c.Headers = append(c.Headers, check.Header{Name: h.Key, Value: h.Value})
		}
		found = append(found, c)

		id, _ := headerOf(r, "id")
		if typ, n := headerOf(r, "type"); n != 1 || typ != types[id] {
			problem(r, "header type is %q, %d times; want %q once", typ, n, types[id])
		}
		text, n := headerOf(r, "outboxcdc-position")
		if n != 1 {
			problem(r, "%d headers outboxcdc-position", n)
			continue
		}
		p, err := parsePosition(text)
		if err != nil {
			problem(r, "%v", err)
			continue
		}
		if _, again := v.at[id]; again {
			v.repeated[id]++ // that it is identical is the checker's
			continue
		}
		v.at[id] = p
		if other, taken := owner[p]; taken {
			problem(r, "has the position of id %s", other)
		}
		owner[p] = id
		key := [2]string{r.Topic, string(r.Key)}
		if last, ok := newest[key]; ok && !last.before(p) {
			problem(r, "position %v of key %s does not follow %v", p, r.Key, last)
		}
		newest[key] = p
	}
	v.Report = check.Check(rows, found)
	return v
}

// verify waits until every row of the table has arrived and, while a daemon runs, is confirmed; then it reads the topics
// from their beginning and fails the test unless the promise was kept. Writers must have stopped.
func (o *outbox) verify(d time.Duration) *verdict {
	o.t.Helper()
	o.awaitArrived(d)
	o.awaitSettled()
	return o.check()
}

// awaitArrived waits until the reader has seen every row of the table.
func (o *outbox) awaitArrived(d time.Duration) {
	o.t.Helper()
	var left []string
	for _, r := range o.truth() {
		left = append(left, r.ID)
	}
	total, begin := len(left), time.Now()
	await(o.t, d, fmt.Sprintf("all of %d rows to arrive", total), func() error {
		if left = o.follow.unseen(left); len(left) == 0 {
			return nil
		}
		if err := o.unharmed(); err != nil {
			return err
		}
		return fmt.Errorf("%d are missing, such as %s; %s", len(left), left[0], o.situation())
	})
	o.t.Logf("all of %d rows have arrived, after %v", total, time.Since(begin).Round(time.Millisecond))
}

// situation is what the newest daemon says about itself.
func (o *outbox) situation() string {
	r := o.running()
	if r == nil {
		return "no daemon runs"
	}
	st, err := r.status()
	if err != nil {
		return "the daemon does not answer: " + err.Error()
	}
	return fmt.Sprintf("the daemon says %+v", st)
}

// awaitSettled waits until the running daemon has nothing in flight and everything is confirmed.
func (o *outbox) awaitSettled() {
	o.t.Helper()
	r := o.running()
	if r == nil {
		return
	}
	await(o.t, patience, "nothing to be in flight", func() error {
		st, err := r.status()
		if err == nil && st.InFlight > 0 {
			err = fmt.Errorf("%d events are", st.InFlight)
		}
		return errors.Join(err, o.unharmed())
	})
	o.awaitConfirmed(o.walFlushed(), patience)
}

// check reads everything and fails the test unless the promise was kept.
func (o *outbox) check() *verdict {
	o.t.Helper()
	truth := o.truth()
	for _, w := range o.writers {
		w.checkTruth(truth)
	}
	v := judge(truth, o.readAll())
	if err := v.err(); err != nil {
		o.t.Fatal(err)
	}
	o.t.Log(v.String())
	return v
}

func (o *outbox) readAll() []kafkatest.Record {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	records, err := kafkatest.ReadAll(ctx, o.kafka.Brokers(), o.follow.topics...)
	must(o.t, err)
	return records
}

// boundRepeats holds the repeats to what each start may repeat: an event that the slot had confirmed by then must not
// come again, whatever else does. Only for tests in which kill9 and term are all that happens.
func (o *outbox) boundRepeats(v *verdict) {
	o.t.Helper()
	for id, n := range v.repeated {
		allowed := 0
		for _, r := range o.relays {
			if r.gone && r.confirmed <= v.at[id].commit {
				allowed++
			}
		}
		if n > allowed {
			o.t.Errorf("id %s, committed at %s, came %d times again; it was unconfirmed at %d starts", id, v.at[id].commit, n, allowed)
		}
	}
}

// ledger remembers commits and a position at or behind the end LSN of each, for the sampler.
type ledger struct {
	mu      sync.Mutex
	commits []commit
}

type commit struct {
	ids []string
	end pglogrepl.LSN
}

func (l *ledger) committed(ids []string, end pglogrepl.LSN) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits = append(l.commits, commit{ids, end})
}

// unseen lists the rows of commits up to lsn that have not come, and forgets the commits of which all have.
func (l *ledger) unseen(lsn pglogrepl.LSN, f *follower) (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits = slices.DeleteFunc(l.commits, func(c commit) bool {
		if c.end > lsn {
			return false
		}
		left := f.unseen(slices.Clone(c.ids))
		ids = append(ids, left...)
		return len(left) == 0
	})
	return ids
}

// sampler looks again and again whether what the slot confirms is in Kafka.
type sampler struct {
	o      *outbox
	cancel context.CancelFunc
	ended  sync.WaitGroup
	taken  bool // the test itself looks at what was found

	// of its goroutine, until it has ended
	samples, closely int

	mu   sync.Mutex
	what string // is wrong
}

// sample starts a sampler; it ends, and fails the test if it has found something, when the test does.
func (o *outbox) sample() *sampler {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sampler{o: o, cancel: cancel}
	s.ended.Go(func() { s.run(ctx) })
	o.t.Cleanup(func() {
		s.stop()
		if s.taken {
			return
		}
		o.t.Logf("the slot's position was compared with Kafka %d times, %d times closely", s.samples, s.closely)
		if what := s.found(); what != "" {
			o.t.Error(what)
		}
	})
	return s
}

func (s *sampler) stop() {
	s.cancel()
	s.ended.Wait()
}

// found is what is wrong, if something is.
func (s *sampler) found() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.what
}

func (s *sampler) run(ctx context.Context) {
	db := session{url: s.o.pg.SuperURL(s.o.name)}
	defer db.close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		confirmed, err := db.lsn(s.o.slotSQL("confirmed_flush_lsn::text"))
		if err != nil {
			continue // the server is away
		}
		s.samples++
		left := s.o.ledger.unseen(confirmed, s.o.follow)
		if len(left) == 0 {
			continue
		}
		// The reader is behind, or the promise is broken: read up to where the topics end now.
		s.closely++
		read, cancel := context.WithTimeout(ctx, 20*time.Second)
		records, err := kafkatest.ReadAll(read, s.o.kafka.Brokers(), s.o.follow.topics...)
		cancel()
		if err != nil {
			continue // Kafka is away
		}
		there := map[string]bool{}
		for _, r := range records {
			id, _ := headerOf(r, "id")
			there[id] = true
		}
		left = slices.DeleteFunc(left, func(id string) bool { return there[id] })
		if len(left) > 0 && ctx.Err() == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.what = fmt.Sprintf("the slot confirms %s, but %d rows committed in front of it are not in Kafka, such as %s", confirmed, len(left), left[0])
			return
		}
	}
}
