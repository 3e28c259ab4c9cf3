package recovery

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
	kafkalog "github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// in changes a thing when a call is made for the nth time.
func in(w *world, call string, nth int, change func()) {
	w.on = func(name string, n int) {
		if name == call && n == nth {
			change()
		}
	}
}

// TestSteps runs recover once in every state that its steps tell apart. In each the daemon has confirmed the first
// four of ten rows.
func TestSteps(t *testing.T) {
	moved := func(w *world) { w.daemon.ConfirmedFlush = w.rows[8].commit }
	gone := func(w *world) { w.daemon = nil }
	where := func(id string) func(*Recovery) { return func(r *Recovery) { r.Rows = outboxtable.Range{Where: id} } }
	// doubtful: a record of an unknown writer has the id and the key of row 5, and another value.
	doubtful := func(w *world) {
		moved(w)
		w.put("5", "k5", "other", "")
	}
	nameless := func(w *world) { moved(w); w.rows[5].id, w.rows[5].text = "", "{}" }
	stop := func(r *Recovery) { r.Poison.Policy = relay.StopAtPoison }
	compacted := func(w *world) {
		doubtful(w)
		of := w.settings["order"]
		of.Compact = true
		w.settings["order"] = of
	}
	for _, c := range []struct {
		name    string
		once    bool // at_least_once
		given   func(*world)
		options func(*Recovery)
		err     string // part of the error; "": there is none
		asked   string // part of a question
		said    string
		sent    string // ids
		held    bool   // the recovery slot is there afterwards
		starts  bool   // and a daemon would start
		saved   int    // position records written
		created int    // recovery slots
	}{
		// look
		{name: "nothing is missing", starts: true, created: 1, said: "slot slot is at"},
		{name: "the record cannot be loaded", given: func(w *world) { w.loadErr = errors.New("no broker") }, err: "nothing was changed: no broker", starts: true},
		{name: "the newest record is broken", given: func(w *world) {
			w.loadErr = &checkpoint.Unusable{Record: true, Err: errors.New("cut")}
		}, starts: true, saved: 1, created: 1, said: "position record written"},
		{name: "the slot is active", given: func(w *world) { w.daemon.Active, w.daemon.ActivePID = true, 33 }, err: "active for PID 33", starts: true},
		{name: "a backfill, and the slot exists", options: func(r *Recovery) { r.Backfill = true }, err: "slot slot exists", starts: true},
		{name: "a backfill, and a daemon has delivered", given: gone, options: func(r *Recovery) { r.Backfill = true }, err: "has a position record"},
		{name: "a backfill", given: func(w *world) { w.daemon, w.saved = nil, nil }, options: func(r *Recovery) { r.Backfill = true }, sent: "4 5 6 7 8 9", starts: true, saved: 1, created: 1},
		{
			name: "a backfill that has not finished", given: func(w *world) { w.daemon, w.recovery = nil, slotAt(w.end) }, options: func(r *Recovery) { r.Backfill = true },
			sent: "4 5 6 7 8 9", starts: true, saved: 1, said: "continuing the recovery",
		},
		{
			name: "a backfill of some rows", given: func(w *world) { w.daemon, w.saved = nil, nil }, options: func(r *Recovery) { r.Backfill = true; where("6")(r) },
			sent: "6", starts: true, saved: 1, created: 1,
		},
		{name: "another history", given: func(w *world) {
			w.saved[0].Acked = checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: w.rows[3].commit}
			w.other = &checkpoint.HistoryError{Op: "look", Err: errors.New("another transaction")}
		}, err: "--this-server", asked: "does this server replace", starts: true},
		{name: "another history, said before", given: func(w *world) {
			w.saved[0].Acked = checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: w.rows[3].commit}
			w.other = &checkpoint.HistoryError{Op: "look", Err: errors.New("another transaction")}
		}, options: func(r *Recovery) { r.ThisServer = true }, starts: true, saved: 1, created: 1},
		{name: "a backfill has not finished", given: func(w *world) { w.daemon, w.recovery, w.recoveryName = nil, slotAt(0x100), "slot_backfill_00000000" }, err: "slot_backfill_00000000 exists", held: true},
		// checkServer
		{name: "another server, no answer", given: func(w *world) { w.saved[0].SystemID = 9 }, err: "--this-server", asked: "does this server replace"},
		{name: "another server, yes", given: func(w *world) {
			w.saved[0].SystemID, w.yes = 9, []string{"does this server replace"}
		}, asked: "does this server replace", starts: true, saved: 1, created: 1},
		{name: "another server, beside", given: func(w *world) { w.saved[0].SystemID = 9 }, options: func(r *Recovery) { r.Beside = true }, err: "--this-server", asked: "does this server replace"},
		{name: "another server, said before", given: func(w *world) { w.saved[0].SystemID = 9 }, options: func(r *Recovery) { r.ThisServer = true }, starts: true, saved: 1, created: 1},
		{name: "another server, dry run", given: func(w *world) { w.saved[0].SystemID = 9 }, options: func(r *Recovery) { r.DryRun = true }, said: "may be of another server"},
		// hold and createRecoverySlot
		{name: "the slot is missing", given: gone, sent: "4 5 6 7 8 9", starts: true, saved: 1, created: 1, said: "slot slot is missing: creating slot"},
		{name: "the slot is lost", given: func(w *world) { w.daemon = lostSlot() }, asked: "is lost: create it again?", sent: "4 5 6 7 8 9", starts: true, saved: 1, created: 1},
		{name: "the slot is lost, no", given: func(w *world) { w.daemon = lostSlot(); w.no["create it again"] = true }, err: "nothing was changed"},
		{name: "the recovery slot is lost", given: func(w *world) { w.daemon, w.recovery = nil, lostSlot() }, sent: "4 5 6 7 8 9", starts: true, saved: 1, created: 1, said: "is lost: it is created again"},
		{name: "a dry run without a slot", given: gone, options: func(r *Recovery) { r.DryRun = true }, err: "6 rows are missing", said: "would be created"},
		{name: "a dry run", given: moved, options: func(r *Recovery) { r.DryRun = true }, err: "4 rows are missing", said: "nothing was changed"},
		{name: "a daemon began before the slot existed", given: func(w *world) {
			w.on = func(call string, n int) { // it ends soon after that
				if call == "Slots" && n <= 2 {
					w.daemon.Active, w.daemon.ActivePID = n == 2, 44
				} else if call == "Snapshot" {
					w.daemon.Active = false
				}
			}
		}, err: "active for PID 44", created: 1, starts: true, said: "dropped again"},
		{name: "the recovery slot is dropped meanwhile", given: func(w *world) {
			in(w, "Slots", 2, func() { w.recovery = nil })
		}, err: "was created and is gone again", created: 1, starts: true},
		{name: "no room for two slots", given: func(w *world) { w.daemon = lostSlot(); w.slotsInUse = 9 }, err: "1 of 10 are free (max_replication_slots)"},
		{name: "no room for a copy", given: func(w *world) { w.daemon, w.recovery = nil, lostSlot(); w.slotsInUse = 10 }, err: "needs 1 replication slot", held: true},
		{name: "room for a copy", given: func(w *world) { moved(w); w.recovery = slotAt(w.daemon.ConfirmedFlush); w.slotsInUse = 9 }, sent: "4 5 6 7", starts: true, saved: 1},
		// beside
		{name: "beside a daemon", given: func(w *world) {
			w.daemon.Active, w.daemon.ConfirmedFlush = true, w.end
			w.deliver(6, 10)
		}, options: func(r *Recovery) { r.Beside = true }, sent: "4 5"},
		{name: "beside, and there is no slot", given: gone, options: func(r *Recovery) { r.Beside = true }, sent: "4 5 6 7 8 9", starts: true, saved: 1, created: 1},
		// F123
		{name: "Kafka has lost what the position record says that it has", given: func(w *world) {
			w.saved[0].Acked = checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: w.rows[5].commit}
		}, sent: "4 5", starts: true, created: 1},
		{name: "the slot was moved, and the next session skips nothing", given: func(w *world) {
			w.saved[0].Acked = checkpoint.Position{SystemID: system, Timeline: 1, CommitLSN: w.rows[9].commit}
			moved(w)
		}, sent: "4 5 6 7", starts: true, saved: 1, created: 1},
		// choose
		{name: "no", given: func(w *world) { moved(w); w.no["send"] = true }, err: "4 rows are missing", created: 1, said: "dropped again"},
		{name: "doubt, no answer", given: doubtful, err: "--unjudged=send", asked: "leave the 1 row for good", created: 1, said: "dropped again"},
		{name: "doubt, send", given: func(w *world) { doubtful(w); w.yes = []string{"send the 1 row"} }, sent: "4 5 6 7", starts: true, saved: 1, created: 1},
		{name: "doubt, leave", given: func(w *world) { doubtful(w); w.yes = []string{"leave the 1 row"} }, sent: "4 6 7", starts: true, saved: 1, created: 1},
		{name: "doubt, send was said", given: doubtful, options: func(r *Recovery) { r.Unjudged = SendUnjudged }, sent: "4 5 6 7", starts: true, saved: 1, created: 1},
		{name: "doubt, leave was said", given: doubtful, options: func(r *Recovery) { r.Unjudged = LeaveUnjudged }, sent: "4 6 7", starts: true, saved: 1, created: 1},
		{name: "a row with the id and the key of one that was delivered", given: func(w *world) {
			moved(w)
			w.rows[5].id, w.rows[5].key, w.rows[5].text = "4", "k4", "other"
			w.deliver(4, 5)
		}, options: func(r *Recovery) { r.Unjudged = SendUnjudged }, sent: "4 6 7", starts: true, saved: 1, created: 1},
		{name: "a row without an id", given: nameless, options: stop, err: "--unjudged=send", asked: "leave the 1 row for good", created: 1, said: "dropped again"},
		{name: "a row without an id, left", given: nameless, options: func(r *Recovery) { stop(r); r.Unjudged = LeaveUnjudged }, sent: "4 6 7", starts: true, saved: 1, created: 1},
		{name: "a row without an id, and the policy skips it", given: nameless, sent: "4 6 7", starts: true, saved: 1, created: 1},
		{
			name: "only doubt, no answer", given: func(w *world) {
				w.deliver(4, 5)
				w.daemon.ConfirmedFlush = w.rows[6].commit
				w.put("5", "k5", "other", "")
			},
			err: "--unjudged=send", created: 1, said: "dropped again",
		},
		{name: "doubt in a compacted topic", given: compacted, options: func(r *Recovery) { r.Unjudged = SendUnjudged }, err: "is compacted", created: 1},
		{name: "doubt in a compacted topic, wanted", given: compacted, options: func(r *Recovery) { r.Unjudged, r.Compacted = SendUnjudged, true }, sent: "4 5 6 7", starts: true, saved: 1, created: 1},
		{
			name: "doubt in a topic whose settings are not known", given: func(w *world) { doubtful(w); w.settings = nil }, options: func(r *Recovery) { r.Unjudged = SendUnjudged },
			err: "may be compacted", created: 1,
		},
		// send and finish
		{name: "at least once holds", once: true, given: moved, sent: "4 5 6 7", starts: true, created: 1},
		{name: "the recovery slot is lost, no", given: func(w *world) { w.daemon, w.recovery = nil, lostSlot(); w.no["send"] = true }, err: "6 rows are missing", held: true, created: 1},
		{name: "later events in a compacted topic", given: func(w *world) {
			compacted(w)
			w.log = w.log[:len(w.log)-1]
			w.rows[9].key = "k4"
			w.deliver(9, 10)
		}, err: "--compacted", created: 1},
		{name: "events without a time in a compacted topic", given: func(w *world) {
			compacted(w)
			w.log = w.log[:len(w.log)-1]
			w.rows[4].created, w.rows[9].created, w.rows[9].key = time.Time{}, time.Time{}, "k4"
			w.deliver(9, 10)
		}, err: "--compacted", created: 1},
		{name: "another producer's state in a compacted topic", given: func(w *world) {
			compacted(w)
			w.log = w.log[:len(w.log)-1]
			w.log = append(w.log, kafkalog.Record{Key: []byte("k4"), Value: []byte("state"), Time: time.Now(), Offset: int64(len(w.log))})
		}, err: "--compacted", created: 1},
		{name: "a row is deleted before it is sent", given: func(w *world) {
			moved(w)
			in(w, "Snapshot", 2, func() { w.rows = slices.Delete(w.rows, 4, 5) })
		}, err: "1 row was deleted", sent: "5 6 7", starts: true, saved: 1, created: 1, said: "1 row was deleted"},
		{name: "at least once, the slot is lost", once: true, given: func(w *world) { w.daemon = lostSlot() }, sent: "4 5 6 7 8 9", starts: true, created: 1},
		{name: "Kafka refuses a record, and the policy skips it", given: func(w *world) {
			moved(w)
			w.rows[5].key = "" // poison
		}, sent: "4 6 7", starts: true, saved: 1, created: 1},
		{name: "the broker refuses what no rule foresees, and the policy skips it", given: func(w *world) {
			moved(w)
			w.refused = &sender.DeliveryError{Cause: router.Rejected, Err: errors.New("refused")}
		}, starts: true, saved: 1, created: 1},
		{name: "the topic may not be written", given: func(w *world) { moved(w); w.refused = errors.New("not allowed") }, err: "not allowed", created: 1, said: "dropped again"},
		{name: "the slot is moved while it runs", given: func(w *world) {
			moved(w)
			in(w, "Slots", 5, func() { w.daemon.ConfirmedFlush += 0x10 })
		}, err: "was moved to", sent: "4 5 6 7", held: true, created: 1, said: "Standbys do not copy it"},
		{name: "the slot is moved while it runs, and standbys copy it", given: func(w *world) {
			moved(w)
			w.daemon.Failover = true
			in(w, "Slots", 5, func() { w.daemon.ConfirmedFlush += 0x10 })
		}, err: "was moved to", sent: "4 5 6 7", held: true, created: 1},
		{name: "the slot is dropped while it runs", given: func(w *world) {
			moved(w)
			in(w, "Slots", 5, func() { w.daemon = nil })
		}, err: "was dropped, created or lost meanwhile", sent: "4 5 6 7", held: true, created: 1},
		{name: "the slot is used while it runs", given: func(w *world) {
			moved(w)
			in(w, "Slots", 5, func() { w.daemon.Active = true })
		}, err: "the slot was in use", sent: "4 5 6 7", held: true, created: 1},
		{name: "a partition was detached", given: func(w *world) { moved(w); w.altered = "partition p1 was detached" }, err: "attach it again", sent: "4 5 6 7", held: true, created: 1},
		// finishPart
		{name: "some rows", given: moved, options: where("6"), sent: "6", created: 1, said: "the daemon will not start yet"},
		{name: "some rows, and the daemon starts as before", options: where("6"), starts: true, created: 1, said: "dropped again"},
		{name: "some rows, and no slot", given: gone, options: where("6"), sent: "6", held: true, created: 1, said: "slot adopt"},
		{name: "some rows, and a recovery has not finished", given: func(w *world) { w.recovery = slotAt(w.daemon.ConfirmedFlush) }, options: where("6"), held: true, said: "the daemon will not start yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := lose(t, !c.once, func(*world) {})
			if c.given != nil {
				c.given(w)
			}
			before := len(w.saved)
			r := w.recover(!c.once)
			if c.options != nil {
				c.options(r)
			}
			_, err := r.Deliver(t.Context())
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if err != nil && c.err != "no broker" && exit.Code(err) == 0 {
				t.Errorf("exit status 0: %v", err)
			}
			if got := strings.Join(w.sentIDs(), " "); got != c.sent {
				t.Errorf("sent %q, want %q", got, c.sent)
			}
			created := 0
			for _, call := range w.calls {
				if call == "CreateRecoverySlot" {
					created++
				}
			}
			if (w.recovery != nil) != c.held || w.starts() != c.starts || len(w.saved)-before != c.saved || created != c.created {
				t.Errorf("held %t, daemon starts %t, %d records saved, %d recovery slots; want %t, %t, %d, %d",
					w.recovery != nil, w.starts(), len(w.saved)-before, created, c.held, c.starts, c.saved, c.created)
			}
			contains := func(all []string, part string) bool {
				return part == "" || slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, part) })
			}
			if copied := w.recovery != nil && w.daemon != nil && w.daemon.Failover; copied && (!w.recovery.Failover || contains(w.said, "Standbys do not copy it")) {
				t.Errorf("standbys copy the slot, and not the sign that the run has not finished; said %q", w.said)
			}
			if !contains(w.asked, c.asked) || !contains(w.said, c.said) {
				t.Errorf("asked %q, said %q; want %q, %q", w.asked, w.said, c.asked, c.said)
			}
		})
	}
}

// TestOrderOfCalls: nothing is read before it can be relied on, and the daemon starts last.
func TestOrderOfCalls(t *testing.T) {
	w := lose(t, true, func(w *world) { w.daemon = lostSlot() })
	if _, err := w.recover(true).Deliver(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Load", "Slots", "CreateRecoverySlot", "AwaitVisible", "Slots", "Snapshot", "Rows", "Spans", "Send", "Wait", "Snapshot", "Rows", "Spans",
		"Slots", "Save", "RestoreSlot drops", "RestoreSlot", "DropRecoverySlot",
	}
	at := 0
	for _, call := range w.calls {
		if at < len(want) && call == want[at] {
			at++
		}
	}
	if at < len(want) {
		t.Errorf("%v: after %v there is no %s", w.calls, want[:at], want[at])
	}
}

// TestFence: a process that was killed just before may have requests under way, for as long as its settings say. Kafka
// is not read before they have arrived.
func TestFence(t *testing.T) {
	for _, c := range []struct {
		until     string // the process was killed at the end of this call
		own, runs time.Duration
	}{
		{"Load", time.Second, 7 * time.Second},
		{"Load", 7 * time.Second, time.Second},
		{"CreateRecoverySlot", time.Second, 7 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := lose(t, true, losses["the slot is missing"])
			r := w.recover(true)
			r.FenceWait, w.saved[len(w.saved)-1].FenceWait = c.runs, c.own
			var killed time.Time
			w.on = func(call string, nth int) {
				switch {
				case call == c.until && nth == 1:
					time.Sleep(20 * time.Second) // how long the call takes, by the clock of the bubble
					killed = time.Now()
					time.AfterFunc(6*time.Second, func() { w.deliver(4, 6) })
				case call == "Spans" && nth == 1 && time.Since(killed) < 7*time.Second:
					t.Errorf("%+v: Kafka is read after %s", c, time.Since(killed))
				}
			}
			if _, err := r.Deliver(t.Context()); err != nil || strings.Join(w.sentIDs(), " ") != "6 7 8 9" {
				t.Error(c, err, w.sentIDs())
			}
		})
	}
}

// TestPositionsOfRecords: recovered records come after all earlier events, and before those that the slot has.
func TestPositionsOfRecords(t *testing.T) {
	for name, c := range map[string]struct {
		once    bool
		how     func(*world)
		options func(*Recovery)
		before  string // what the positions begin with
	}{
		"the next session's epoch":      {how: losses["the slot was moved"], before: "2:7:16:slot:4:1:000000000000017f:"},
		"that of a new slot":            {how: losses["the slot is missing"], before: "2:7:16:slot:4:1:000000000000019f:"},
		"no record, so no epoch":        {once: true, how: losses["the slot was moved"], before: "2:7:16:slot:0:1:000000000000017f:"},
		"some rows, and no new session": {how: losses["the slot was moved"], options: func(r *Recovery) { r.Rows.Where = "5" }, before: "2:7:16:slot:4:1:000000000000017f:"},
		"the daemon starts as it is": {how: func(w *world) {
			w.rows = append([]event{{id: "old", key: "old", commit: 0x50, created: time.Now()}}, w.rows...)
		}, before: "2:7:16:slot:3:1:000000000000013f:"},
		"beside the daemon": {how: func(w *world) { losses["the slot was moved"](w) }, options: func(r *Recovery) { r.Beside = true }, before: "2:7:16:slot:3:1:000000000000017f:"},
	} {
		t.Run(name, func(t *testing.T) {
			w := lose(t, !c.once, c.how)
			r := w.recover(!c.once)
			if c.options != nil {
				c.options(r)
			}
			if _, err := r.Deliver(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(w.sentIDs()) == 0 {
				t.Fatal("nothing was sent")
			}
			for _, rec := range w.log[4:] {
				if got := string(rec.Headers[1].Value); !strings.HasPrefix(got, c.before) {
					t.Errorf("%s, want %s…", got, c.before)
				}
			}
			w.checkPositions(t)
		})
	}
	w := lose(t, true, losses["the slot was moved"])
	r := w.recover(true)
	if r.PositionHeader = false; true {
		_, err := r.Deliver(t.Context())
		if err != nil || len(w.log) != 8 || len(w.log[4].Headers) != 2 {
			t.Errorf("without the header: %v, %v", err, w.log[4:])
		}
	}
}

func (w *world) checkPositions(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	for _, rec := range w.log {
		if text := string(rec.Headers[1].Value); seen[text] {
			t.Errorf("two records have the position %s", text)
		} else {
			seen[text] = true
		}
	}
}

// TestPredecessors: the records of a server that this one has replaced are those of its rows. Which servers it has
// replaced, the position record says.
func TestPredecessors(t *testing.T) {
	for name, c := range map[string]struct {
		record func(*checkpoint.PositionRecord)
		want   []uint64
	}{
		"this server":      {func(*checkpoint.PositionRecord) {}, nil},
		"another":          {func(r *checkpoint.PositionRecord) { r.SystemID = 9 }, []uint64{9}},
		"after an upgrade": {func(r *checkpoint.PositionRecord) { r.UpgradedFrom = 8 }, []uint64{8}},
	} {
		w := lose(t, true, func(*world) {})
		c.record(&w.saved[0])
		v, err := loadRecord(t.Context(), w, w, "s")
		if err != nil || !slices.Equal(v.old.Predecessors(system), c.want) {
			t.Errorf("%s: %v %v, want %v", name, err, v.old.Predecessors(system), c.want)
		}
	}
	if got := (&verdict{}).old.Predecessors(system); got != nil {
		t.Errorf("without a record: %v", got)
	}
	// Kafka has what the former server has delivered.
	w := lose(t, true, losses["the slot is missing"])
	w.saved[0].SystemID, w.id.SystemID = system, 8
	r := w.recover(true)
	r.ThisServer = true
	if _, err := r.Deliver(t.Context()); err != nil || strings.Join(w.sentIDs(), " ") != "4 5 6 7 8 9" {
		t.Error(err, w.sentIDs())
	}
}

// TestLateTimes: the times of rows can be later than those of their records. Where a record shows that, Kafka is read
// from its beginning.
func TestLateTimes(t *testing.T) {
	for name, c := range map[string]struct {
		lead time.Duration // of the second row's time
		sent string
	}{
		"a record is older than its row": {55 * time.Minute, "4 5 6 7 8 9"},
		"clocks may differ by that":      {audit.KafkaMargin - time.Minute, "0 4 5 6 7 8 9"},
	} {
		w := lose(t, true, losses["the slot is missing"])
		now := time.Now()
		w.rows[0].created, w.log[0].Time = now.Add(-time.Hour), now.Add(-2*time.Hour)
		w.rows[1].created, w.log[1].Time = now.Add(-time.Hour+c.lead), now.Add(-time.Hour)
		if _, err := w.recover(true).Deliver(t.Context()); err != nil || strings.Join(w.sentIDs(), " ") != c.sent {
			t.Errorf("%s: %v, sent %v, want %s", name, err, w.sentIDs(), c.sent)
		}
		if n := len(w.found); n != 2 {
			t.Errorf("%s: %d comparisons are shown", name, n)
		}
	}
}
