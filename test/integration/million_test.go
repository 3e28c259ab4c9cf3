package integration

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// One transaction of millions of rows passes through a daemon that never holds more than 256 MB. In `make test` the
// limit is 192 MB, and fewer rows are larger than the limit together. Go's memory limit is off, so the test
// measures what the daemon keeps and not how hard its collector works; where the machine lets us create a cgroup, the
// kernel enforces the limit as well.
func TestOneTransactionOfAMillionRows(t *testing.T) {
	t.Parallel()
	const keys = 100
	limit := fullOrShort[int64](256<<20, 192<<20)
	rows, filling := fullOrShort(5_000_000, 150_000), fullOrShort(0, 44)
	o := newOutbox(t, options{pg: heavyPostgres(t), partitions: 6})
	o.proves("F48", "one transaction of %d rows, written before the daemon starts", rows)
	o.memoryUpTo(limit, "Go's own limit is off")
	s := o.sample()
	s.testJudges = true // it would read all of it
	counted := newCounter(t, o, rows, keys)
	begin := time.Now()
	o.exec(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 'order', 'key-' || g % 100, 'added',
			jsonb_build_object('n', g, 'x', repeat(md5(g::text), $2))
		FROM generate_series(1, $1::int) g`, rows, filling)
	end := o.walFlushed()
	written := time.Now()
	t.Logf("written in %v", written.Sub(begin).Round(time.Millisecond))

	r := o.start("GOMEMLIMIT=off", steady)
	how := "its peak resident memory is measured"
	if err := confine(t, r.pid(), limit); err != nil {
		t.Logf("no cgroup: %v", err)
	} else {
		how = "enforced by a cgroup"
	}
	counted.awaitAll(fullOrShort(6*time.Minute, 3*time.Minute))
	took := time.Since(written)
	o.awaitHealed()
	peak := r.peakMemory()
	r.term()
	t.Logf("delivered in %v from the start of the daemon; peak resident memory %d MB (limit %d MB: %s)",
		took.Round(time.Millisecond), peak>>20, limit>>20, how)
	if peak >= limit {
		t.Errorf("the daemon used %d MB, more than %d MB", peak>>20, limit>>20)
	}
	o.outcome("delivered at %d events/s; %s", int(float64(rows)/took.Seconds()), how)
	o.repeatsAtMost(counted.judge(s, end), 0, "no fault")
}

// counter judges the records of one transaction of numbered rows, 1 and up, so that millions of them can be compared
// without the table and without keeping them.
type counter struct {
	o    *outbox
	keys int

	mu      sync.Mutex
	count   []uint8 // records of number n
	records int
	commit  pglogrepl.LSN
	newest  map[string]int64 // by partition: the offset of the newest first delivery
	last    map[int]int      // n modulo keys → the highest n so far
	report  check.Report
}

// newCounter replaces the outbox's own reader, which would keep every id.
func newCounter(t *testing.T, o *outbox, rows, keys int) *counter {
	c := &counter{o: o, keys: keys, count: make([]uint8, rows+1), newest: map[string]int64{}, last: map[int]int{}}
	o.follow.stop()
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := kafkatest.Follow(ctx, o.kafka.Brokers(), c.take, o.follow.topics...); err != nil {
			t.Errorf("follow the topics: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); ended.Wait() })
	return c
}

// numberedID returns the id of row n.
func numberedID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }

func (c *counter) take(r kafkatest.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records++
	at := fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset)
	id, _ := headerOf(r, "id")
	text := strings.TrimPrefix(string(r.Value), `{"n": `)
	n, err := strconv.Atoi(text[:max(0, strings.IndexAny(text, ",}"))])
	if err != nil || n < 1 || n >= len(c.count) || id != numberedID(n) || !bytes.Equal(r.Key, fmt.Appendf(nil, "key-%d", n%c.keys)) {
		c.report.Phantom = append(c.report.Phantom, fmt.Sprintf("%s: id %s, key %s and value %.40s do not belong together", at, id, r.Key, r.Value))
		return
	}
	// All records have the same commit LSN, and a fixed ordinal each, in every delivery.
	text, _ = headerOf(r, "outboxcdc-position")
	p, err := parsePosition(text)
	if c.commit == 0 {
		c.commit = p.commit
	}
	if err != nil || p.commit != c.commit || p.ordinal != uint64(n-1) {
		c.report.WrongContent = append(c.report.WrongContent, fmt.Sprintf("%s: number %d is at position %q", at, n, text))
	}
	switch first := c.count[n] == 0; {
	case first && n != c.next(n):
		c.report.OutOfOrder = append(c.report.OutOfOrder, fmt.Sprintf("%s: number %d of key %s, the next is %d", at, n, r.Key, c.next(n)))
		fallthrough
	case first:
		c.last[n%c.keys] = max(c.last[n%c.keys], n)
		c.newest[placeOf(r).partition] = r.Offset
		c.report.Rows++ // so far
	default:
		c.report.Repeats++
	}
	if c.count[n] < 255 {
		c.count[n]++
	}
}

// next returns the number that must follow for the key of n.
func (c *counter) next(n int) int {
	if last := c.last[n%c.keys]; last > 0 {
		return last + c.keys
	}
	return cmp.Or(n%c.keys, c.keys)
}

// progress returns the number of rows and records so far.
func (c *counter) progress() (rows, records int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report.Rows, c.records
}

// commitLSN returns the commit LSN of the transaction, known from the first record on.
func (c *counter) commitLSN() pglogrepl.LSN {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commit
}

func (c *counter) awaitAll(d time.Duration) {
	c.o.t.Helper()
	await(c.o.t, d, fmt.Sprintf("all of %d rows", len(c.count)-1), func() error {
		if n, _ := c.progress(); n < len(c.count)-1 {
			return errors.Join(fmt.Errorf("%d have arrived; %s", n, c.o.situation()), c.o.checkRelays())
		}
		return nil
	})
}

// judge fails the test unless the promise was kept, and unless Kafka had all of the transaction, which ends before end,
// when the slot first confirmed it.
func (c *counter) judge(s *sampler, end pglogrepl.LSN) *verdict {
	c.o.t.Helper()
	await(c.o.t, patience, "the sampler to see the transaction confirmed", func() error {
		if looks, _ := s.results(); len(looks) == 0 || looks[len(looks)-1].Confirmed < end {
			return errors.New("not yet")
		}
		return nil
	})
	s.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &verdict{Report: c.report}
	v.Rows, v.Records = len(c.count)-1, c.records
	for n, count := range c.count[1:] {
		if most := len(c.o.relays); int(count) > most { // each start delivers it once
			v.BadRepeats = append(v.BadRepeats, fmt.Sprintf("number %d arrived %d times from %d daemons", n+1, count, most))
		}
		if count == 0 {
			v.Missing = append(v.Missing, numberedID(n+1))
		}
	}
	looks, _ := s.results()
	for _, l := range looks {
		for partition, offset := range c.newest {
			if l.Confirmed > c.commit && l.Ends[partition] <= offset {
				v.problems = append(v.problems, fmt.Sprintf("the slot confirmed %s when Kafka did not have offset %d of %s, of the transaction committed at %s",
					l.Confirmed, offset, partition, c.commit))
			}
		}
	}
	c.o.proof.setVerdict(v)
	if err := v.err(); err != nil {
		c.o.t.Fatal(err)
	}
	c.o.t.Log(v.String())
	return v
}

// confine puts a process into a memory cgroup of its own, where that is possible: as root, mostly.
func confine(t *testing.T, pid int, limit int64) error {
	name := fmt.Sprintf("outboxcdc-test-%d", pid)
	for _, c := range []struct{ dir, most string }{
		{filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes"}, // version 1
		{filepath.Join("/sys/fs/cgroup", name), "memory.max"},
	} {
		if _, err := os.Stat(filepath.Join(filepath.Dir(c.dir), "cgroup.procs")); err != nil {
			continue
		}
		if err := os.Mkdir(c.dir, 0o755); err != nil {
			return err
		}
		t.Cleanup(func() { // empty a moment after the process has ended
			_ = poll(5*time.Second, func() error { return os.Remove(c.dir) })
		})
		if err := os.WriteFile(filepath.Join(c.dir, c.most), []byte(strconv.FormatInt(limit, 10)), 0o644); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(c.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
	}
	return errors.New("no writable cgroup file system")
}
