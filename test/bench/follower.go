package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// follower reads records and notes when each arrived.
type follower struct {
	client *kgo.Client
	cancel context.CancelFunc
	ended  chan struct{}
	mu     sync.Mutex
	rows   map[int]arrival
}

type arrival struct {
	at     time.Time
	commit pglogrepl.LSN
}

func follow(brokers, topics []string) (*follower, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(50*time.Millisecond), // its topic has just been created
		kgo.FetchMaxWait(100*time.Millisecond))  // an added partition is read from the next request on
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{client: client, cancel: cancel, ended: make(chan struct{}), rows: map[int]arrival{}}
	go func() {
		defer close(f.ended)
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			now := time.Now()
			f.mu.Lock()
			for _, r := range fetches.Records() {
				if n, err := rowOf(r); err == nil {
					if _, ok := f.rows[n]; !ok {
						f.rows[n] = arrival{now, commitOf(r)}
					}
				}
			}
			f.mu.Unlock()
		}
	}()
	return f, nil
}

// commitOf returns the commit LSN in the position header, 0 if there is none.
func commitOf(r *kgo.Record) (lsn pglogrepl.LSN) {
	for _, h := range r.Headers {
		if h.Key == "outboxcdc-position" {
			if p, err := checkpoint.ParsePosition(string(h.Value)); err == nil {
				return p.CommitLSN
			}
		}
	}
	return 0
}

func (f *follower) arrivalOf(n int) (arrival, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, ok := f.rows[n]
	return a, ok
}

func (f *follower) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows = map[int]arrival{}
}

// newest returns the highest commit LSN read so far.
func (f *follower) newest() (lsn pglogrepl.LSN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.rows {
		lsn = max(lsn, a.commit)
	}
	return lsn
}

func (f *follower) await(ctx context.Context, n int, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		have := len(f.rows)
		f.mu.Unlock()
		switch {
		case have >= n:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%d of %d records have arrived", have, n)
		}
	}
}

func (f *follower) close() {
	f.cancel()
	<-f.ended
	f.client.Close()
}
