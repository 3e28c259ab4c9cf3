package checkpoint

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// server is a Lineage. forks has the ends of earlier timelines, oldest first.
type server struct {
	system   uint64
	timeline int32
	end      pglogrepl.LSN
	forks    []fork
}

type fork struct {
	timeline int32
	lsn      pglogrepl.LSN
}

func (s server) System() uint64     { return s.system }
func (s server) Current() int32     { return s.timeline }
func (s server) End() pglogrepl.LSN { return s.end }

func (s server) TimelineOf(lsn pglogrepl.LSN) int32 {
	for _, f := range s.forks {
		if lsn < f.lsn {
			return f.timeline
		}
	}
	return s.timeline
}

func (s server) EndOf(timeline int32) (pglogrepl.LSN, bool) {
	for _, f := range s.forks {
		if f.timeline == timeline {
			return f.lsn, true
		}
	}
	return 0, false
}

func txAt(lsn pglogrepl.LSN) TxID {
	return TxID{CommitLSN: lsn, XID: uint32(lsn), CommitTime: time.UnixMicro(int64(lsn))}
}

// positionOf returns a position on timeline 1 of system 7.
func positionOf(lsn pglogrepl.LSN, ordinal uint32) Position {
	return Position{SystemID: 7, Timeline: 1, CommitLSN: lsn, Ordinal: ordinal}
}

// TestResumeExpects: the server must send the last delivered transaction again if and only if the slot is at or
// before its commit LSN. Both are equal when the slot is at the end of the previous transaction.
func TestResumeExpects(t *testing.T) {
	h := &History{systemID: 7, timeline: 1, spans: []span{{from: 0x40, until: 0x101, to: positionOf(0x100, LastOrdinal), tx: txAt(0x100)}}}
	for _, c := range []struct {
		start  pglogrepl.LSN
		expect bool
	}{{0x50, true}, {0xFF, true}, {0x100, true}, {0x101, false}, {0x130, false}, {0x500, false}} {
		s, _, err := h.Resume(server{system: 7, timeline: 1, end: 0x1000}, c.start)
		if err != nil || s.Expecting() != c.expect {
			t.Errorf("start %s: expect %v, %v; want %v", c.start, s.Expecting(), err, c.expect)
		}
	}
	for _, c := range []struct {
		end pglogrepl.LSN
		ok  bool
	}{{0xFF, false}, {0x100, false}, {0x101, true}, {0x130, true}} {
		_, _, err := h.Resume(server{system: 7, timeline: 1, end: c.end}, 0x50)
		if (err == nil) != c.ok {
			t.Errorf("WAL end %s: %v", c.end, err)
		}
	}
	if _, _, err := NewHistory().Resume(server{system: 7, timeline: 3, end: 1}, 1); err != nil {
		t.Errorf("the first session: %v", err)
	}
}

// TestResume: which transactions are known to be in Kafka, and how another history is noticed.
func TestResume(t *testing.T) {
	fresh := func(expect ...TxID) *Resume {
		return &Resume{
			spans:        []span{{from: 0x20, to: positionOf(0x30, 0)}, {from: 0x120, to: positionOf(0x130, 3)}},
			recordedUpTo: positionOf(0x100, LastOrdinal), expected: expect,
		}
	}
	s := fresh(txAt(0x130))
	for _, c := range []struct {
		lsn   pglogrepl.LSN
		known bool
	}{{0x50, true}, {0x100, true}, {0x110, false}, {0x120, true}, {0x12F, true}, {0x130, false}, {0x160, false}} {
		if got, err := s.Begin(txAt(c.lsn)); got != c.known || err != nil {
			t.Errorf("begin %s: %v, %v; want %v", c.lsn, got, err, c.known)
		}
	}
	if s.Expecting() {
		t.Error("a transaction that was sent again is still expected")
	}
	for name, wrong := range map[string]TxID{
		"another xid":  {CommitLSN: 0x130, XID: 1, CommitTime: time.UnixMicro(0x130)},
		"another time": {CommitLSN: 0x130, XID: 0x130, CommitTime: time.UnixMicro(1)},
		"a later one":  txAt(0x131),
	} {
		s := fresh(txAt(0x130))
		if _, err := s.Begin(wrong); !errors.As(err, new(*HistoryError)) || !s.Expecting() {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Two transactions may be expected: one delivered by this process, and one of the position record.
	s = fresh(txAt(0x130), txAt(0x100))
	if _, err := s.Begin(txAt(0x100)); err != nil || !s.Expecting() {
		t.Errorf("the first of two: %v, expecting %v", err, s.Expecting())
	}
	// A keepalive at the commit LSN is at the end of the previous transaction; a keepalive beyond it is after this
	// transaction.
	s = fresh(txAt(0x100))
	if err := s.Advance(0x100); err != nil {
		t.Errorf("keepalive at the commit LSN: %v", err)
	}
	if err := s.Advance(0x101); err == nil {
		t.Error("keepalive beyond the commit LSN went unnoticed")
	}
	if err := fresh().Advance(0x5000); err != nil {
		t.Errorf("no transaction is expected: %v", err)
	}
}

// TestLearn: the events that a session delivered are added to the history, also if the session ended while it re-read
// earlier events. Spans with a gap between them are not joined: events committed in the gap may be missing in Kafka.
func TestLearn(t *testing.T) {
	l := server{system: 7, timeline: 1}
	const all = LastOrdinal
	// session has transactions of three events each, which end 5 after their commit LSN.
	type session struct {
		start   pglogrepl.LSN
		acked   int // events of the last transaction
		commits []pglogrepl.LSN
	}
	whole := func(from, to pglogrepl.LSN) span {
		return span{from: from, until: to + 5, to: positionOf(to, all), tx: txAt(to)}
	}
	part := func(from, until, lsn pglogrepl.LSN, events uint32) span {
		return span{from: from, until: until, to: positionOf(lsn, events-1), tx: txAt(lsn)}
	}
	for _, c := range []struct {
		name     string
		sessions []session
		want     []span
		done     pglogrepl.LSN
	}{
		{"nothing", []session{{5, 0, nil}}, []span{{from: 5, until: 5}}, 0},
		{"nothing acknowledged", []session{{5, 0, []pglogrepl.LSN{10}}}, []span{{from: 5, until: 5}}, 0},
		{"in part", []session{{5, 2, []pglogrepl.LSN{10}}}, []span{part(5, 5, 10, 2)}, 0},
		{"whole", []session{{5, 3, []pglogrepl.LSN{10}}}, []span{whole(5, 10)}, 10},
		{"whole, then in part", []session{{5, 2, []pglogrepl.LSN{10, 20}}}, []span{part(5, 15, 20, 2)}, 10},
		{"the next goes on", []session{{5, 3, []pglogrepl.LSN{10}}, {15, 3, []pglogrepl.LSN{20}}}, []span{whole(5, 20)}, 20},
		{"the next goes on where it may", []session{{5, 3, []pglogrepl.LSN{10}}, {12, 3, []pglogrepl.LSN{20}}}, []span{whole(5, 20)}, 20},
		{"the next is cut earlier", []session{{5, 2, []pglogrepl.LSN{10, 20}}, {5, 1, []pglogrepl.LSN{10}}}, []span{part(5, 15, 20, 2)}, 10},
		{"the next delivers the rest", []session{{5, 2, []pglogrepl.LSN{10, 20}}, {15, 3, []pglogrepl.LSN{20}}}, []span{whole(5, 20)}, 20},
		{"another instance has delivered the rest", []session{{5, 2, []pglogrepl.LSN{10}}, {15, 2, []pglogrepl.LSN{20}}}, []span{part(5, 5, 10, 2), part(15, 15, 20, 2)}, 0},
		{
			"back to before the first",
			[]session{{15, 2, []pglogrepl.LSN{20}}, {5, 2, []pglogrepl.LSN{10}}},
			[]span{part(5, 5, 10, 2), part(15, 15, 20, 2)},
			0,
		},
		{
			"the gap is filled",
			[]session{{5, 2, []pglogrepl.LSN{10}}, {15, 2, []pglogrepl.LSN{20}}, {5, 3, []pglogrepl.LSN{10}}},
			[]span{part(5, 15, 20, 2)},
			10,
		},
	} {
		h := NewHistory()
		h.confirmed = 8
		for _, s := range c.sessions {
			tr := NewTracker(s.start)
			for i, lsn := range s.commits {
				tr.Begin(txAt(lsn), false)
				for n := range 3 {
					if number := tr.Add(1, uint64(n)); i < len(s.commits)-1 || n < s.acked {
						tr.Ack([]uint64{number}, nil)
					}
				}
				tr.Commit(lsn + 5)
			}
			h.Learn(l, s.start, tr, 9, &Resume{}, Position{})
		}
		if !slices.Equal(h.spans, c.want) || h.done != c.done {
			t.Errorf("%s: %+v, done %s; want %+v, done %s", c.name, h.spans, h.done, c.want, c.done)
		}
		if h.confirmed != 9 || h.systemID != 7 || h.timeline != 1 {
			t.Errorf("%s: %+v", c.name, h)
		}
	}
}

// TestSentUpTo: a position that this process has sent on an earlier timeline explains the slot's position up to the
// fork only.
func TestSentUpTo(t *testing.T) {
	l := server{system: 7, timeline: 3, end: 0x1000, forks: []fork{{1, 0x400}, {2, 0x800}}}
	for name, c := range map[string]struct {
		system   uint64
		timeline int32
		sent     pglogrepl.LSN
		want     pglogrepl.LSN
	}{
		"on this timeline":           {7, 3, 0x900, 0x900},
		"before the fork":            {7, 2, 0x700, 0x700},
		"beyond the fork":            {7, 2, 0x900, 0x800},
		"beyond a fork further back": {7, 1, 0x900, 0x400},
		"on another branch":          {7, 4, 0x900, 0},
		"another system":             {8, 3, 0x900, 0},
	} {
		h := NewHistory()
		h.Sending(server{system: 6, timeline: c.timeline}, 0x3000) // to another server
		h.Sending(server{system: c.system, timeline: 9}, 0x2000)   // on another timeline
		h.Sending(server{system: c.system, timeline: c.timeline}, c.sent)
		h.Sending(server{system: c.system, timeline: c.timeline}, 0x100)
		if got := h.sentUpTo(l); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestSpanEndsAtTheFork: keepalives extend a span beyond its last event. The part after a fork belongs to another
// history.
func TestSpanEndsAtTheFork(t *testing.T) {
	h := NewHistory()
	session := func(l server, start, commit, end pglogrepl.LSN) {
		t.Helper()
		if _, _, err := h.Resume(l, start); err != nil {
			t.Fatal(err)
		}
		tr := NewTracker(start)
		tr.Begin(txAt(commit), false)
		n := tr.Add(1, 1)
		tr.Commit(commit + 0x30)
		tr.Ack([]uint64{n}, nil)
		tr.Keepalive(end)
		h.Learn(l, start, tr, start, &Resume{}, Position{})
	}
	session(server{system: 7, timeline: 1, end: 0x1000}, 0x100, 0x200, 0x900)
	l := server{system: 7, timeline: 2, end: 0x1000, forks: []fork{{1, 0x400}}}
	session(l, 0x800, 0x850, 0x880) // a client has advanced the slot on timeline 2
	s, _, err := h.Resume(l, 0x300) // the slot is back
	must(t, err)
	for lsn := pglogrepl.LSN(0x100); lsn < 0x900; lsn += 0x50 {
		p := Position{SystemID: 7, Timeline: l.TimelineOf(lsn), CommitLSN: lsn}
		if got, want := s.Delivered(p), lsn <= 0x200 || 0x800 <= lsn && lsn <= 0x850; got != want {
			t.Errorf("%s: delivered %v, want %v", lsn, got, want)
		}
	}
}

// TestHistoryOvertaken: a session has sent an event of before the process's first session. What the process has
// delivered after it is before it in Kafka, until it was delivered again.
func TestHistoryOvertaken(t *testing.T) {
	l := server{system: 7, timeline: 1, end: 0x1000}
	h := NewHistory()
	session := func(start pglogrepl.LSN, resent Position, acked ...int) { // of transactions 10 and 20, with three events each
		tr := NewTracker(start)
		for i, lsn := range []pglogrepl.LSN{0x10, 0x20} {
			if lsn >= start {
				tr.Begin(txAt(lsn), false)
				first := tr.Add(1, h.Events.Hash(nil))
				tr.Add(1, h.Events.Hash(nil))
				tr.Add(1, h.Events.Hash(nil))
				tr.Commit(lsn + 5)
				for _, n := range acked {
					if n/3 == i {
						tr.Ack([]uint64{first + uint64(n%3)}, nil)
					}
				}
			}
		}
		h.Learn(l, start, tr, start, &Resume{}, resent)
	}
	want := func(when, states string) {
		t.Helper()
		r, _, err := h.Resume(l, 1)
		must(t, err)
		got := ""
		for n := range uint32(6) {
			p := Position{7, 1, pglogrepl.LSN(0x10 + n/3*0x10), n % 3}
			_, single := h.Events.Has(p, nil)
			switch {
			case single:
				got += "e"
			case !r.Delivered(p):
				got += "-"
			case r.Overtaken(p) > 0:
				got += "o"
			default:
				got += "d"
			}
		}
		if got != states {
			t.Errorf("%s: %s, want %s", when, got, states)
		}
	}
	first, second := Position{7, 1, 0x10, 0}, Position{7, 1, 0x20, 1}
	session(0x15, Position{}, 3)
	want("the first session", "---d--")
	session(0x15, second, 3, 4)
	want("an event after what was delivered is sent", "---dd-")
	session(0x5, first, 0, 1, 4)
	want("an event of before is sent", "dd-oe-")
	session(0x5, first, 0, 1)
	want("another event of before is sent", "dd-oe-")
	if r, _, _ := h.Resume(l, 1); r.Overtaken(Position{7, 1, 0x20, 0}) != 3 || r.Overtaken(first) != 0 {
		t.Error("the first session that has sent an older event is the third")
	}
	if n := h.Newest(); n != second || !h.Overtaken() {
		t.Errorf("the newest position is %s", n)
	}
	session(0x5, Position{7, 1, 0x10, 2}, 0, 1, 2, 3)
	want("the rest is sent in part", "dddde-")
	session(0x5, Position{7, 1, 0x20, 2}, 0, 1, 2, 3, 4)
	want("all of it", "ddddd-")
	if h.Overtaken() || len(h.spans) != 1 {
		t.Errorf("%+v", h.spans)
	}
}
