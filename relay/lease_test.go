package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// unseen is how long ago the slot was last seen, as the sink knows it.
func (p *fakePositions) unseen() (age time.Duration) {
	age = 1 << 62
	p.locked(func() {
		for _, at := range p.seen {
			age = min(age, time.Since(at))
		}
	})
	return age
}

// TestLeaseNeedsEvidence: neither a status update that was written nor a look without an answer renews the lease. Host and server are cut
// off from each other here: the socket takes what is written.
func TestLeaseNeedsEvidence(t *testing.T) {
	deduplicating(t, func(b *bench, p *fakePositions) {
		p.saved = []checkpoint.PositionRecord{before(b, nil)}
		b.kafka.hold()
		b.start()
		b.sleep(time.Second)
		if age := p.unseen(); age > time.Second {
			t.Fatalf("the first record left without a look at the slot: %s", age)
		}
		b.pg.commit("a")
		b.sleep(time.Second)
		b.pg.stream().silence()
		cut := time.Now()
		asked := make(chan struct{})
		b.pg.edit(func() {
			b.pg.checkErr = func(int) error { // the network has swallowed it
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

// TestLeaseLooks: the slot is looked at every quarter of fence_wait while something is in flight, rarely while nothing is, and at once
// when the first record after that is sent. A look that cannot tell about the publication shows all the same whose the slot is.
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
				begin := len(b.pg.looked())
				b.sleep(time.Minute + 300*time.Millisecond) // and nothing is due
				if n := len(b.pg.looked()) - begin; n > 5 {
					t.Errorf("%d looks in a quiet minute", n)
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

// TestLeaseBehindTheRecord: an instance that takes the slot before Kafka has this session's first record does not know its producer id. So
// nothing is sent before a look that began after it has found the slot ours.
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

// TestLeaseWhileTheFirstRecordWaits: looks go on while Kafka takes its time about the first position record, and at the end about the last.
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
		if err := b.result(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		if s := p.last(); !s.Clean {
			t.Errorf("the last record: %+v", s)
		}
	})
}

// TestStreamEnds: once the stream has failed nothing is sent, and what is open gets its time.
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

// TestLeaseSlowLook: a look counts from the moment at which it was asked for.
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
