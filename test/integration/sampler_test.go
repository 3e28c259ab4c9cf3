package integration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// ledger remembers commits, and a position at or after the end LSN of each.
type ledger struct {
	mu      sync.Mutex
	commits []commit
}

type commit struct {
	IDs []string
	End pglogrepl.LSN
}

func (l *ledger) add(ids []string, end pglogrepl.LSN) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commits = append(l.commits, commit{ids, end})
}

func (l *ledger) all() []commit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.commits)
}

// look is the slot's confirmed position at one moment, and the ends of the broker's logs right after it: by then Kafka
// must have had every row committed before that position.
type look struct {
	Confirmed pglogrepl.LSN
	Ends      map[string]int64 // by "topic/partition"
}

// place is where a record was found.
type place struct {
	partition string // "topic/partition"
	offset    int64
}

// unsafeConfirm finds the first commit that the slot confirmed before Kafka had all of it; "" if there is none. Looks
// are in the order of time, with rising positions.
func unsafeConfirm(looks []look, commits []commit, at map[string]place) string {
	commits = slices.Clone(commits)
	slices.SortStableFunc(commits, func(a, b commit) int { return cmp.Compare(a.End, b.End) })
	for _, l := range looks {
		for len(commits) > 0 && commits[0].End <= l.Confirmed {
			for _, id := range commits[0].IDs {
				p, there := at[id]
				if !there || p.offset >= l.Ends[p.partition] {
					return fmt.Sprintf("the slot confirmed %s, but id %s, committed before %s, was not in Kafka then (it is at %+v)",
						l.Confirmed, id, commits[0].End, p)
				}
			}
			commits = commits[1:]
		}
	}
	return ""
}

// sampler reads the slot's confirmed position and the ends of the broker's logs repeatedly, and how much WAL the slot
// holds back. It judges nothing while the test runs.
type sampler struct {
	o          *outbox
	cancel     context.CancelFunc
	ended      sync.WaitGroup
	testJudges bool // the test itself judges

	mu    sync.Mutex
	looks []look
	held  int64
}

// sample starts a sampler until the end of the test, which fails if the slot ever confirmed what Kafka did not have.
func (o *outbox) sample() *sampler {
	o.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &sampler{o: o, cancel: cancel}
	ends, err := kafkatest.OpenLogEnds(o.kafka.Brokers())
	must(o.t, err)
	s.ended.Go(func() { defer ends.Close(); s.run(ctx, ends) })
	o.sampler = s
	o.t.Cleanup(func() {
		s.stop()
		if s.testJudges || o.t.Failed() { // servers may be in any state
			return
		}
		if what := s.violation(); what != "" {
			o.t.Error(what)
		}
	})
	return s
}

func (s *sampler) stop() {
	s.cancel()
	s.ended.Wait()
}

// violation returns the first violation so far, if any.
func (s *sampler) violation() string {
	s.o.t.Helper()
	looks, _ := s.results()
	at := map[string]place{}
	for _, r := range s.o.readAll() {
		id, _ := headerOf(r, "id")
		if _, again := at[id]; !again {
			at[id] = placeOf(r)
		}
	}
	return unsafeConfirm(looks, s.o.ledger.all(), at)
}

func placeOf(r kafkatest.Record) place {
	return place{fmt.Sprintf("%s/%d", r.Topic, r.Partition), r.Offset}
}

// results returns the looks at which the slot confirmed more than ever before, and the most WAL that it held back, in
// bytes.
func (s *sampler) results() ([]look, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.looks), s.held
}

func (s *sampler) run(ctx context.Context, ends *kafkatest.LogEnds) {
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
		var text string
		var held int64
		err := db.do(func(_ context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, s.o.slotSQL("confirmed_flush_lsn::text, coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn), 0)::bigint")).Scan(&text, &held)
		})
		if err != nil {
			continue // the server is away
		}
		confirmed, err := pglogrepl.ParseLSN(text)
		if err != nil {
			continue
		}
		s.add(ctx, confirmed, held, ends)
	}
}

func (s *sampler) add(ctx context.Context, confirmed pglogrepl.LSN, held int64, ends *kafkatest.LogEnds) {
	s.mu.Lock()
	n := len(s.looks)
	news := n == 0 || confirmed > s.looks[n-1].Confirmed
	s.held = max(s.held, held)
	s.mu.Unlock()
	if !news {
		return // nothing new was confirmed
	}
	read, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	now, err := ends.Read(read, s.o.follow.topics...)
	if err != nil {
		return // Kafka is away; the next look has the same or a higher position
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks = append(s.looks, look{confirmed, now})
}
