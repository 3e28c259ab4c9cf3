package relay

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// unseen returns the time since the lease was last renewed.
func (p *fakePositions) unseen() (age time.Duration) {
	age = 1 << 62
	p.locked(func() {
		for _, at := range p.seen {
			age = min(age, time.Since(at))
		}
	})
	return age
}

// TestLeaseNeedsEvidence: neither a status update nor a catalog check without an answer renews the lease. The network
// loses everything here, but the socket still accepts status updates.
func TestLeaseNeedsEvidence(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.kafka.hold()
		b.start()
		b.sleep(time.Second)
		if age := p.unseen(); age > time.Second {
			t.Fatalf("the first record was sent without a catalog check: %s", age)
		}
		b.pg.commit("a")
		b.sleep(time.Second)
		b.pg.stream().silence()
		cut := time.Now()
		asked := make(chan struct{})
		b.pg.edit(func() {
			b.pg.checkErr = func(int) error { // the network loses it
				<-asked
				return errGone
			}
		})
		updates := len(b.pg.stream().updates())
		b.sleep(9 * time.Second)
		if n := len(b.pg.stream().updates()); n == updates {
			t.Error("no status update was written")
		}
		if age := p.unseen(); age < time.Since(cut) {
			t.Errorf("the slot was seen %s ago, and the network was cut %s ago", age, time.Since(cut))
		}
		b.pg.edit(func() { b.pg.checkErr = nil })
		close(asked)
		b.sleep(5 * time.Second)
		b.kafka.edit(func() { b.kafka.auto = 5 * time.Millisecond })
		b.kafka.ack()
		b.sleep(5 * time.Second)
		b.delivered("a")
	})
}

// TestLeaseLooks: the lease is renewed every quarter of fence_wait while something is in flight, rarely while nothing
// is, and at once when the first record after that is sent. A catalog check without a result about the publication
// renews it as well.
func TestLeaseLooks(t *testing.T) {
	for _, undecided := range []bool{false, true} {
		t.Run(fmt.Sprintf("undecided %v", undecided), func(t *testing.T) {
			deduplicating(t, func(b *bench, p *fakePositions) {
				p.saved = []checkpoint.PositionRecord{before(b, nil)}
				if undecided {
					b.pg.edit(func() { b.pg.checkErr = func(int) error { return replication.ErrUndecided } })
				}
				b.kafka.hold()
				b.start()
				b.sleep(10 * time.Second)
				begin := len(b.pg.catalogChecks())
				b.sleep(time.Minute + 300*time.Millisecond) // no check is due
				if n := len(b.pg.catalogChecks()) - begin; n > 5 {
					t.Errorf("%d checks in a quiet minute", n)
				}
				b.pg.commit("a")
				b.sleep(20 * time.Millisecond)
				if age := p.unseen(); age > 20*time.Millisecond {
					t.Errorf("a record was sent, and the slot was last seen %s ago", age)
				}
				for range 80 {
					b.sleep(250 * time.Millisecond)
					if age := p.unseen(); age > 1300*time.Millisecond {
						t.Fatalf("a record is in flight, and the slot was last seen %s ago", age)
					}
				}
				b.kafka.ack()
				b.sleep(time.Second)
			})
		})
	}
}

// TestLeaseBehindTheRecord: an instance that takes the slot before Kafka has this session's first record does not
// know its producer id. So no event is sent before a catalog check that began later finds our walsender at the slot.
func TestLeaseBehindTheRecord(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		p.slow = 500 * time.Millisecond
		b.pg.commit("a")
		began := time.Now()
		b.pg.edit(func() {
			b.pg.checkErr = func(int) error {
				if time.Since(began) < 400*time.Millisecond {
					return nil
				}
				return errGone
			}
		})
		b.start()
		b.sleep(3 * time.Second)
		if got := b.kafka.flying(); len(got) > 0 || len(b.kafka.ids()) > 0 || len(p.saved) < 2 {
			t.Errorf("sent %v, stored %v; %d records", got, b.kafka.ids(), len(p.saved))
		}
		b.pg.edit(func() { b.pg.checkErr = nil })
		b.sleep(time.Minute)
		b.delivered("a")
	})
}

// TestLeaseWhileTheFirstRecordWaits: catalog checks continue while Kafka is slow to store the first position record,
// or the last.
func TestLeaseWhileTheFirstRecordWaits(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		p.mute = true
		b.start()
		for range 80 {
			b.sleep(250 * time.Millisecond)
			if age := p.unseen(); age > 1300*time.Millisecond {
				t.Fatalf("the first record waits, and the slot was last seen %s ago", age)
			}
		}
		p.locked(func() { p.mute = false })
		b.sleep(30 * time.Second)
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.delivered("a")
		p.locked(func() { p.slow = 12 * time.Second })
		b.stop()
		for range 40 {
			b.sleep(250 * time.Millisecond)
			if age := p.unseen(); age > 1300*time.Millisecond {
				t.Fatalf("the last record waits, and the slot was last seen %s ago", age)
			}
		}
		must(t, b.result(20*time.Second))
		if s := p.last(); !s.Clean {
			t.Errorf("the last record: %+v", s)
		}
	})
}

// TestLeaseWhileTheRecordIsRead: a session stores a mark before it reads the position record. Catalog checks continue
// while Kafka is slow to store it, or refuses it for a time.
func TestLeaseWhileTheRecordIsRead(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.load = func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-time.After(7 * time.Second): // less than half of wal_sender_timeout
			}
		}
		b.start()
		for i := range 27 {
			b.sleep(250 * time.Millisecond)
			if age := p.unseen(); i > 4 && age > 1300*time.Millisecond {
				t.Fatalf("the position record is read, and the slot was last seen %s ago", age)
			}
		}
		b.sleep(10 * time.Second)
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.delivered("a")
	})
}

// TestLeaseWhileAFindingIsStored: while a start compares the catalogs with the position record and stores what it
// found, and while a session that ends stores it, catalog checks keep the lease and status updates keep the connection.
func TestLeaseWhileAFindingIsStored(t *testing.T) {
	const limit = 1300 * time.Millisecond
	// watch waits until the n-th record is stored. The lease is watched after the first seconds.
	watch := func(b *bench, p *fakePositions, n int, after time.Duration) {
		b.Helper()
		began, count := time.Now(), 0
		for count < n && time.Since(began) < time.Minute {
			b.sleep(50 * time.Millisecond)
			p.locked(func() { count = len(p.saved) })
			if age := p.unseen(); time.Since(began) > after && age > limit {
				b.Fatalf("what was found is not stored, and the slot was last seen %s ago", age)
			}
		}
		if got := p.last().Published; count != n || got != "found" {
			b.Fatalf("%d records, the last one has %q", count, got)
		}
		updates := append([]status{{at: b.pg.opens[0]}}, b.pg.stream().updates()...)
		for _, gap := range gaps(append(updates, status{at: time.Now()})) {
			if gap > DefaultConfig().WalSenderTimeout/3+100*time.Millisecond {
				b.Errorf("no status update was sent for %s", gap)
			}
		}
	}
	for _, c := range []struct{ compares, stores time.Duration }{{6 * time.Second, 0}, {0, 7 * time.Second}} {
		deduplicating(t, func(b *bench, p *fakePositions) {
			p.saved = []checkpoint.PositionRecord{before(b, func(s *checkpoint.PositionRecord) { s.Published = "q" })}
			b.pg.noted, b.pg.compares, p.slow = "found", c.compares, c.stores
			b.start()
			watch(b, p, 2, c.compares)
			b.ends(Lost, time.Minute)
		})
	}
	deduplicating(t, func(b *bench, p *fakePositions) {
		b.start()
		b.pg.commit("a")
		b.sleep(10 * time.Second)
		stored, found := len(p.saved), make(chan struct{}, 100)
		b.pg.edit(func() {
			b.pg.published, p.slow = "found", grace-100*time.Millisecond
			b.pg.checkErr = func(int) error {
				found <- struct{}{}
				return altered()
			}
		})
		<-found
		watch(b, p, stored+1, 0)
		b.ends(Lost, time.Minute)
	})
}

// TestStreamEnds: once the stream has failed nothing more is sent, and open requests get time to finish.
func TestStreamEnds(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.kafka.hold()
		b.start()
		b.sleep(time.Second)
		b.pg.commit("a", "b")
		b.sleep(time.Second)
		s := b.kafka.sink()
		b.pg.cut()
		b.sleep(time.Second)
		b.pg.edit(func() {
			if !s.closing || s.closed {
				t.Errorf("closing %v, closed %v", s.closing, s.closed)
			}
		})
		b.kafka.ack("a", "b")
		b.sleep(time.Second)
		b.pg.edit(func() {
			if !s.closed {
				t.Error("it waits although nothing is open")
			}
		})
		b.delivered("a", "b")
	})
}

// TestLeaseSlowLook: a catalog check renews the lease from the time at which it began.
func TestLeaseSlowLook(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.kafka.hold()
		b.start()
		b.sleep(time.Second)
		b.pg.edit(func() {
			b.pg.checkErr = func(int) error {
				time.Sleep(2 * time.Second)
				return nil
			}
		})
		b.pg.commit("a")
		b.sleep(5 * time.Second)
		for range 20 {
			b.sleep(250 * time.Millisecond)
			if age := p.unseen(); age < 2*time.Second {
				t.Fatalf("a look takes two seconds, and the slot was last seen %s ago", age)
			}
		}
		b.kafka.ack()
		b.sleep(5 * time.Second)
	})
}
