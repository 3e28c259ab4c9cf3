package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// follower reads the topics from the beginning of the test on. It only shows the progress of delivery; the verdict uses
// a second reading from the topics' beginning, after the end.
type follower struct {
	topics []string
	stop   func()

	mu   sync.Mutex
	seen map[string]int // id → number of records
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

// unseenIDs returns the ids without a record so far.
func (f *follower) unseenIDs(ids []string) []string {
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

// position is the header outboxcdc-position, or a position of the position record, which has no origin.
type position struct {
	system   uint64
	database uint32
	slot     string
	epoch    uint32
	timeline int
	commit   pglogrepl.LSN
	ordinal  uint64
}

func parsePosition(text string) (position, error) {
	p, o, err := checkpoint.ParseHeader(text)
	if err != nil {
		return position{}, err
	}
	if p.SystemID == 0 || p.Timeline == 0 || p.CommitLSN == 0 {
		return position{}, fmt.Errorf("position %q names no event", text)
	}
	return position{p.SystemID, o.Database, o.Slot, o.Epoch, int(p.Timeline), p.CommitLSN, uint64(p.Ordinal)}, nil
}

// before reports the order in which events of one history are delivered.
func (p position) before(q position) bool {
	return p.commit < q.commit || p.commit == q.commit && p.ordinal < q.ordinal
}

// precedes reports the order in which events of one slot are delivered.
func (p position) precedes(q position) bool {
	return p.epoch < q.epoch || p.epoch == q.epoch && p.before(q)
}

// verdict is the judgement on all records.
type verdict struct {
	check.Report
	problems []string            // of headers and positions
	at       map[string]position // of each id
	first    map[string]place    // of each id: its first record
	repeated map[string]int      // how often an id was repeated
	late     int                 // records after a later one of their key, after a change of settings
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

// repeatList lists the transactions with repeated events: commit LSN, and how many of how many.
func (v *verdict) repeatList() string {
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
	v := &verdict{at: map[string]position{}, first: map[string]place{}, repeated: map[string]int{}}
	rows := make([]check.Row, 0, len(truth))
	types := make(map[string]string, len(truth))
	for _, r := range truth {
		rows = append(rows, r.Row)
		types[r.ID] = r.EventType
	}
	found := make([]check.Record, 0, len(records))
	problem := func(r kafkatest.Record, format string, args ...any) {
		id, _ := headerOf(r, "id")
		v.problems = append(v.problems, fmt.Sprintf("id %s at %s/%d@%d: %s", id, r.Topic, r.Partition, r.Offset, fmt.Sprintf(format, args...)))
	}
	newest := map[[2]string]position{} // of each topic and key
	owner := map[position]string{}
	for _, r := range records {
		c := r.Check()
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
			v.repeated[id]++ // the checker compares it
			continue
		}
		v.at[id], v.first[id] = p, placeOf(r)
		if other, taken := owner[p]; taken {
			problem(r, "has the position of id %s", other)
		}
		owner[p] = id
		key := [2]string{r.Topic, string(r.Key)}
		if last, ok := newest[key]; ok && !last.precedes(p) {
			problem(r, "position %v of key %s does not follow %v", p, r.Key, last)
		}
		newest[key] = p
	}
	v.Report = check.Check(rows, found)
	return v
}

// verify waits until every row of the table has arrived and, while a daemon runs, is confirmed; then it reads the
// topics from their beginning and fails the test unless the promise was kept. Writers must have stopped.
func (o *outbox) verify(d time.Duration) *verdict {
	o.t.Helper()
	o.awaitArrived(d)
	o.awaitSettled()
	return o.check()
}

// awaitArrived waits until the reader has seen every row of the table.
func (o *outbox) awaitArrived(d time.Duration) {
	o.t.Helper()
	var ids []string
	for _, r := range o.truth() {
		ids = append(ids, r.ID)
	}
	o.awaitEvents(ids, d)
}

// awaitEvents waits until the reader has seen a record of each of these events.
func (o *outbox) awaitEvents(left []string, d time.Duration) {
	o.t.Helper()
	total, begin := len(left), time.Now()
	await(o.t, d, fmt.Sprintf("all of %d rows to arrive", total), func() error {
		if left = o.follow.unseenIDs(left); len(left) == 0 {
			return nil
		}
		if err := o.checkRelays(); err != nil {
			return err
		}
		return fmt.Errorf("%d are missing, e.g. %s; %s", len(left), left[0], o.situation())
	})
	o.t.Logf("all of %d rows have arrived, after %v", total, time.Since(begin).Round(time.Millisecond))
}

// awaitRecords waits until there are that many records in all, whatever fails meanwhile. A test that causes further
// ones takes the count first: see [writer.awaitDelivered] for rows that a writer is going to write.
func (o *outbox) awaitRecords(total int) {
	o.t.Helper()
	await(o.t, patience, fmt.Sprintf("%d records", total), func() error {
		if n := o.follow.records(); n < total {
			return errors.Join(fmt.Errorf("%d have arrived; %s", n, o.situation()), o.checkRelays())
		}
		return nil
	})
}

// situation describes the state of the newest daemon.
func (o *outbox) situation() string {
	r := o.running()
	if r == nil {
		return "no daemon runs"
	}
	st, err := r.status()
	if err != nil {
		return "the daemon does not answer: " + err.Error()
	}
	return fmt.Sprintf("its status is %+v", st)
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
		return errors.Join(err, o.checkRelays())
	})
	o.awaitConfirmed(o.walFlushed(), patience)
}

// check reads everything, keeps it as a history, and fails the test unless the promise was kept.
func (o *outbox) check() *verdict {
	o.t.Helper()
	h := o.history()
	file := h.keep(o)
	v := h.judge()
	o.proof.setVerdict(v)
	if err := v.err(); err != nil {
		o.t.Fatalf("%v\n  OUTBOXCDC_TEST_HISTORY=%s judges it again", err, file)
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

// boundRepeats limits the repeats to what each start may repeat: an event that the slot had confirmed by then must not
// be repeated. Only for tests in which kill9 and term are the only faults.
func (o *outbox) boundRepeats(v *verdict) {
	o.t.Helper()
	for id, n := range v.repeated {
		allowed := 0
		for _, r := range o.relays {
			if r.stopped && r.confirmed <= v.at[id].commit {
				allowed++
			}
		}
		if n > allowed {
			o.t.Errorf("id %s, committed at %s, came %d times again; it was unconfirmed at %d starts", id, v.at[id].commit, n, allowed)
		}
	}
}
