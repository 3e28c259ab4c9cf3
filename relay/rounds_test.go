package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// TestAckToConfirmed: an acknowledged position is confirmed within a second, in both modes of delivery, under load
// and when nothing follows. A slow step, or a request of the server, does not delay later rounds. Checks, records and
// status updates each run about once a second.
func TestAckToConfirmed(t *testing.T) {
	const lasts, disturbed = 30 * time.Second, 8 * time.Second
	for _, mode := range []string{"at_least_once", "deduplicated"} {
		for _, every := range []time.Duration{7 * time.Millisecond, 20 * time.Millisecond, 310 * time.Millisecond, 1777 * time.Millisecond, 3140 * time.Millisecond} {
			for _, what := range []string{"nothing", "a slow look", "a slow record", "a slow record, slow acks", "the server asks", "a slow start", "everything slow"} {
				t.Run(fmt.Sprintf("%s/every %s/%s", mode, every, what), func(t *testing.T) {
					run := func(b *bench, p *fakePositions) {
						look := 3 * time.Millisecond
						b.pg.checkErr = func(int) error {
							var d time.Duration
							b.pg.edit(func() { d = look })
							time.Sleep(d)
							return nil
						}
						var ends []*tx
						var at []time.Time
						switch what {
						case "a slow start":
							look = 640 * time.Millisecond
						case "everything slow":
							look = 28 * time.Millisecond
						case "a slow record, slow acks": // some between check and record, some after the record
							b.kafka.edit(func() { b.kafka.auto = 12300 * time.Microsecond })
						}
						calm := 0 * time.Second // meanwhile the server does not ask
						if strings.HasPrefix(what, "a slow") {
							calm = 3 * time.Second
						}
						b.start()
						for b.state() != Streaming { // the session begins with a check and the first record
							b.sleep(time.Millisecond)
						}
						began := time.Now()
						for hit := false; time.Since(began) < lasts; b.sleep(every) {
							ends, at = append(ends, b.pg.commit(fmt.Sprint("e", len(ends)))), append(at, time.Now())
							if hit || time.Since(began) < disturbed {
								continue
							}
							hit = true
							switch what {
							case "a slow look":
								b.pg.edit(func() { look = 640 * time.Millisecond })
								time.AfterFunc(time.Second, func() { b.pg.edit(func() { look = 3 * time.Millisecond }) })
							case "a slow record", "a slow record, slow acks":
								if p != nil {
									p.locked(func() { p.slow = 640 * time.Millisecond })
									time.AfterFunc(time.Second, func() { p.locked(func() { p.slow = 0 }) })
								}
							case "the server asks":
								time.AfterFunc(390*time.Millisecond, func() { b.pg.keepalive(0, true) })
							case "a slow start":
								b.pg.edit(func() { look = 3 * time.Millisecond })
							}
						}
						b.sleep(2 * time.Second)
						ups := b.pg.stream().updates()
						for i, x := range ends {
							if d := at[i].Sub(began); calm > 0 && d > disturbed-time.Second && d < disturbed+calm || what == "a slow start" && d < disturbed {
								continue
							}
							if late := confirmedAt(ups, x.End).Sub(at[i]); late > time.Second {
								t.Errorf("what was committed after %s was confirmed %s later", at[i].Sub(began), late)
								break
							}
						}
						most := int(time.Since(began).Seconds()*1.06) + 2
						if n := len(b.pg.catalogChecks()); n > most {
							t.Errorf("%d checks in %s", n, time.Since(began))
						}
						if n := moves(ups); n > most {
							t.Errorf("%d status updates that moved in %s", n, time.Since(began))
						}
						if p != nil && len(p.saved) > most {
							t.Errorf("%d records in %s", len(p.saved), time.Since(began))
						}
					}
					if mode == "deduplicated" {
						deduplicating(t, run)
					} else {
						bubble(t, testConfig(), func(b *bench) { run(b, nil) })
					}
				})
			}
		}
	}
}

// TestLongStatusInterval: a long status_interval is kept. Position records are still stored once a second. Without
// them the catalogs are checked only before a status update.
func TestLongStatusInterval(t *testing.T) {
	const interval, lasts = 10 * time.Second, 62 * time.Second
	run := func(b *bench) (checks int) {
		b.start()
		for i := range int(lasts / (20 * time.Millisecond)) {
			b.pg.commit(fmt.Sprint("e", i))
			b.sleep(20 * time.Millisecond)
		}
		ups := b.pg.stream().updates()
		var moved []status
		for i, u := range ups[1:] {
			if u.pos > ups[i].pos {
				moved = append(moved, u)
			}
		}
		for _, gap := range gaps(moved) {
			if gap < interval-2*roundSlack || gap > interval+time.Second {
				t.Errorf("status updates that move are %s apart, want 10 s", gap)
			}
		}
		if len(moved) < 5 || len(moved) > 6 {
			t.Errorf("%d status updates that moved in %s", len(moved), lasts)
		}
		return len(b.pg.catalogChecks())
	}
	cfg := testConfig()
	cfg.StatusInterval, cfg.WalSenderTimeout = interval, time.Hour
	t.Run("at_least_once", func(t *testing.T) {
		bubble(t, cfg, func(b *bench) {
			if checks := run(b); checks > 8 {
				t.Errorf("%d checks for 6 status updates", checks)
			}
		})
	})
	t.Run("deduplicated", func(t *testing.T) {
		cfg := cfg
		cfg.Deduplication = Deduplication{Slot: "outboxcdc", LookBack: 100, FenceWait: 5 * time.Second, Sources: "s"}
		bubble(t, cfg, func(b *bench) {
			p := &fakePositions{b: b, pid: 7}
			b.kafka.deduplication = p
			b.pg.checkErr = func(n int) error {
				if n == 10 {
					time.Sleep(640 * time.Millisecond)
				}
				return nil
			}
			run(b)
			for _, x := range b.pg.wal[:len(b.pg.wal)-100] {
				for _, s := range p.saved {
					if s.Confirm >= x.End {
						if late := s.At.Sub(x.Time); late > time.Second && x.Time.Sub(b.pg.wal[0].Time) > 15*time.Second {
							t.Errorf("a position record speaks of what was committed at %s %s later", x.Time, late)
							return
						}
						break
					}
				}
			}
			if n := len(p.saved); n < 60 || n > 66 {
				t.Errorf("%d position records in %s", n, lasts)
			}
		})
	})
}

// confirmedAt returns when a status update first carried the position.
func confirmedAt(ups []status, pos pglogrepl.LSN) time.Time {
	for _, u := range ups {
		if u.pos >= pos {
			return u.at
		}
	}
	return time.Now().Add(time.Hour)
}

// moves returns the number of status updates that moved the slot.
func moves(ups []status) (n int) {
	last := pglogrepl.LSN(firstLSN)
	for _, u := range ups {
		if u.pos > last {
			last, n = u.pos, n+1
		}
	}
	return n
}
