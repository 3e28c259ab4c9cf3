package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

const positions = "positions"

// positionConfigOf is a cluster's configuration with position records.
func withPositions(cfg Config, slot string) Config {
	cfg.PositionTopic, cfg.Slot = positions, slot
	return cfg
}

// save waits until a position record is stored, or is not.
func save(t testing.TB, p *Producer, s checkpoint.Saved) error {
	t.Helper()
	done := make(chan error, 2)
	p.SavePosition(s, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(15 * time.Second):
		t.Fatal("done was not called")
		return nil
	}
}

func load(t testing.TB, p *Producer) *checkpoint.Saved {
	t.Helper()
	s, err := p.LoadPosition(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// putRaw writes records into the position topic by an independent client.
func putRaw(t testing.TB, addrs []string, recs ...*kgo.Record) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.DefaultProduceTopic(positions))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := cl.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func rawSaved(slot string, generation uint64, confirm int) *kgo.Record {
	s := checkpoint.Saved{Slot: slot, Generation: generation, SystemID: historySystem, Confirm: pglogrepl.LSN(confirm)}
	value, _ := s.MarshalText()
	return &kgo.Record{Key: []byte(slot), Value: value}
}

func TestPositions(t *testing.T) {
	f := newFake(t)
	c := newTestCluster(t, withPositions(testConfig(f.ListenAddrs()...), "s"))
	ctx := context.Background()
	p, _ := openSession(t, c)
	var u *checkpoint.Unusable
	if _, err := p.LoadPosition(ctx); !errors.As(err, &u) || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("load without a topic: %v", err)
	}
	if err := save(t, p, checkpoint.Saved{}); !errors.As(err, &u) {
		t.Errorf("save without a topic: %v", err)
	}
	for _, want := range []bool{true, false} {
		if created, err := c.CreatePositionTopic(ctx, positions, -1); created != want || err != nil {
			t.Errorf("create: %v %v", created, err)
		}
	}
	if err := c.CheckPositionTopic(ctx, positions); err != nil {
		t.Error(err)
	}
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v from nothing", s)
	}
	for i := range 5 {
		s := checkpoint.Saved{Slot: "s", Generation: 3, SystemID: historySystem, Confirm: pglogrepl.LSN(i)}
		if err := save(t, p, s); err != nil {
			t.Fatal(err)
		}
		if s := load(t, p); s == nil || s.Confirm != pglogrepl.LSN(i) {
			t.Errorf("loaded %+v, want %d", s, i)
		}
	}
	putRaw(t, f.ListenAddrs(), rawSaved("s", 2, 99), rawSaved("other", 9, 98))
	if s := load(t, p); s == nil || s.Confirm != 4 || s.Generation != 3 {
		t.Errorf("loaded %+v; a late record of an earlier session won", s)
	}
	for i := range 6 {
		recs := make([]*kgo.Record, 1000)
		for j := range recs {
			recs[j] = rawSaved(fmt.Sprint("other-", j), 1, i)
		}
		putRaw(t, f.ListenAddrs(), recs...)
	}
	if s := load(t, p); s == nil || s.Confirm != 4 {
		t.Errorf("loaded %+v past 6000 records of others", s)
	}
	putRaw(t, f.ListenAddrs(), &kgo.Record{Key: []byte("s"), Value: []byte(`{"version": 2}`)})
	if _, err := p.LoadPosition(ctx); !errors.As(err, &u) || !errors.Is(err, checkpoint.ErrSavedVersion) {
		t.Errorf("a newer version: %v", err)
	}
	putRaw(t, f.ListenAddrs(), &kgo.Record{Key: []byte("s")})
	if s := load(t, p); s != nil {
		t.Errorf("loaded %+v, which is deleted", s)
	}
	putRaw(t, f.ListenAddrs(), rawSaved("s", 1, 5))
	if s := load(t, p); s == nil || s.Generation != 1 {
		t.Errorf("loaded %+v after a deletion", s)
	}
}
