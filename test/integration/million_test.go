package integration

import (
	"bytes"
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

	"github.com/outboxcdc/outboxcdc/internal/kafkatest"
)

// One transaction of a million rows passes through a daemon that never holds more than 256 MB. Go's memory limit is
// switched off, so what is measured is what the daemon keeps and not how hard its collector works; where the machine
// lets us make a cgroup, the kernel holds it to the limit as well.
func TestOneTransactionOfAMillionRows(t *testing.T) {
	const rows, keys, limit = 1_000_000, 100, 256 << 20
	o := newOutbox(t, options{partitions: 6})
	// Every row is known from its number, so that a million of them can be compared without the table.
	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) }
	counted := newCounter(rows, func(r kafkatest.Record) (n int, err error) {
		text, _ := headerOf(r, "id")
		if n, err = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(string(r.Value), `{"n": `), "}")); err != nil {
			return 0, err
		}
		if n < 1 || n > rows || text != id(n) || !bytes.Equal(r.Key, fmt.Appendf(nil, "key-%d", n%keys)) {
			return 0, errors.New("id, key and value do not belong together")
		}
		return n, nil
	})
	counted.follow(t, o)
	begin := time.Now()
	o.exec(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT ('00000000-0000-4000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 'order', 'key-' || g % 100, 'added', jsonb_build_object('n', g)
		FROM generate_series(1, 1000000) g`)
	written := time.Now()
	t.Logf("written in %v", written.Sub(begin).Round(time.Millisecond))

	r := o.start("GOMEMLIMIT=off")
	how := "its peak resident memory is looked at"
	if err := confine(t, r.pid(), limit); err != nil {
		t.Logf("no cgroup: %v", err)
	} else {
		how = "a cgroup holds it to that"
	}
	await(t, 3*time.Minute, "a million rows", func() error {
		if n := counted.sofar(); n < rows {
			return errors.Join(fmt.Errorf("%d have come; %s", n, o.situation()), o.unharmed())
		}
		return nil
	})
	took := time.Since(written)
	o.awaitConfirmed(o.walFlushed(), patience)
	peak := r.peakMemory()
	r.term()
	t.Logf("delivered in %v from the start of the daemon; peak resident memory %d MB (limit %d MB: %s)",
		took.Round(time.Millisecond), peak>>20, limit>>20, how)
	if peak >= limit {
		t.Errorf("the daemon took %d MB, more than %d MB", peak>>20, limit>>20)
	}
	counted.check(t, keys)
}

// counter judges records that are known from a number.
type counter struct {
	number func(kafkatest.Record) (int, error)

	mu       sync.Mutex
	seen     []bool
	distinct int
	repeats  int
	problems []string
	last     map[string]int // key → number
}

func newCounter(rows int, number func(kafkatest.Record) (int, error)) *counter {
	return &counter{number: number, seen: make([]bool, rows+1), last: map[string]int{}}
}

func (c *counter) take(r kafkatest.Record) {
	n, err := c.number(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.problems = append(c.problems, fmt.Sprintf("%s/%d@%d: %v", r.Topic, r.Partition, r.Offset, err))
	case c.seen[n]:
		c.repeats++
	default:
		c.seen[n] = true
		c.distinct++
		key := string(r.Key)
		if last := c.last[key]; n <= last {
			c.problems = append(c.problems, fmt.Sprintf("number %d of key %s came after %d", n, key, last))
		}
		c.last[key] = n
	}
}

func (c *counter) sofar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.distinct
}

// follow takes the place of the outbox's own reader, which would keep a million ids.
func (c *counter) follow(t *testing.T, o *outbox) {
	o.follow.stop()
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := kafkatest.Follow(ctx, o.kafka.Brokers(), c.take, o.follow.topics...); err != nil {
			t.Errorf("follow the topics: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); ended.Wait() })
}

func (c *counter) check(t *testing.T, keys int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.repeats > 0 || len(c.problems) > 0 || len(c.last) != keys {
		t.Errorf("%d repeats, %d keys, %d problems, such as %v", c.repeats, len(c.last), len(c.problems), c.problems[:min(3, len(c.problems))])
	}
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
		t.Cleanup(func() { // it is empty when the process has ended, a moment later
			_ = poll(5*time.Second, func() error { return os.Remove(c.dir) })
		})
		if err := os.WriteFile(filepath.Join(c.dir, c.most), []byte(strconv.FormatInt(limit, 10)), 0o644); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(c.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
	}
	return errors.New("no writable cgroup file system")
}
