package checkpoint

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

func TestPositionRecord(t *testing.T) {
	want := PositionRecord{
		Slot: "outboxcdc", Generation: 3, SystemID: 1<<63 + 1, Timeline: 2, Epoch: 1<<32 - 1, EpochStarts: []pglogrepl.LSN{0x10, 0x1_0000_0004}, ServerMajor: 17, UpgradedFrom: 1<<63 + 2, Acked: Position{1<<63 + 1, 2, 0x1_0000_0010, 4}, AckedTx: TxID{0x1_0000_0010, 77, time.Unix(3, 1000).UTC()}, Settled: Position{1<<63 + 1, 2, 0x1_0000_0008, 1}, Confirm: 0x1_0000_0020,
		Producers: []int64{1, 1 << 60}, Topics: []string{"t", "u"}, Sources: "abc", Published: "def", FenceWait: 5 * time.Second, Clean: true, Adopted: true, At: time.Unix(1, 5).UTC(),
	}
	b, err := want.MarshalText()
	must(t, err)
	for _, part := range []string{`"version":1`, `"epoch":4294967295`, `"epoch_starts":["0/10","1/4"]`, `"confirm":"1/20"`, `"fence_wait_ms":5000`, `"server_major":17`, `"upgraded_from":"9223372036854775810"`, `"system_id":"9223372036854775809"`, `"acked":"1:9223372036854775809:2:0000000100000010:4"`} {
		if !strings.Contains(string(b), part) {
			t.Errorf("%s lacks %s", b, part)
		}
	}
	var got PositionRecord
	if err := got.UnmarshalText(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	first := (*PositionRecord)(nil).Next(server{}, 5, "r")
	b, _ = first.MarshalText()
	if err := got.UnmarshalText(b); err != nil || !got.Acked.IsZero() || got.Generation != 1 || got.Producers[0] != 5 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPositionRecordUnreadable(t *testing.T) {
	good := `{"version":1,"system_id":"7","confirm":"0/1"}`
	var s PositionRecord
	must(t, s.UnmarshalText([]byte(good)))
	padded := strings.Replace(good, "0/1", "0/00000001", 1) // as PostgreSQL 19 prints it
	if err := s.UnmarshalText([]byte(padded)); err != nil || s.Confirm != 1 {
		t.Errorf("%s: %s, %v", padded, s.Confirm, err)
	}
	for _, c := range []struct{ old, text string }{
		{`{"version":1`, `version=1`}, {`"7"`, `"-7"`}, {`"0/1"`, `"0-1"`}, {`"confirm"`, `"acked":"1:2","confirm"`}, {`"confirm"`, `"settled":"1:2","confirm"`}, {`"confirm"`, `"epoch_starts":["0-1"],"confirm"`},
	} {
		err := s.UnmarshalText([]byte(strings.Replace(good, c.old, c.text, 1)))
		if err == nil || !strings.Contains(err.Error(), "read the position record") {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	if err := s.UnmarshalText([]byte(strings.Replace(good, "1", "2", 1))); !errors.Is(err, ErrRecordVersion) {
		t.Errorf("version 2: %v", err)
	}
	if s.SystemID != 7 {
		t.Errorf("an unreadable record has changed what was read: %+v", s)
	}
}

// TestPositionRecordWithoutTransaction: an acked position counts only with its transaction, which the server has to
// send again.
func TestPositionRecordWithoutTransaction(t *testing.T) {
	for with, want := range map[string]bool{`,"acked_xid":9,"acked_commit_time":"2026-01-01T00:00:00Z"`: true, `,"acked_xid":9`: false} {
		var rec PositionRecord
		text := `{"version":1,"slot":"s","generation":1,"system_id":"7","timeline":1,"acked":"1:7:1:0000000000000050:2"` + with + `,"confirm":"0/1","clean":false,"at":"2026-01-01T00:00:00Z"}`
		if err := rec.UnmarshalText([]byte(text)); err != nil || rec.Acked.IsZero() == want || rec.AckedTx.IsZero() == want {
			t.Errorf("%s: acked %s, transaction %+v, error %v", with, rec.Acked, rec.AckedTx, err)
		}
	}
}

func TestPositionRecordNext(t *testing.T) {
	s := PositionRecord{Slot: "a", Generation: 9, Clean: true, Confirm: 5}
	for i := range int64(2 * maxProducers) {
		before := s.Producers
		s = s.Next(server{}, i, "")
		if len(before) > 0 && before[len(before)-1] != i-1 {
			t.Fatalf("the previous record has changed: %v", before)
		}
	}
	if n := len(s.Producers); n != maxProducers || s.Producers[n-1] != 2*maxProducers-1 || s.Producers[0] != maxProducers {
		t.Errorf("producers %v", s.Producers)
	}
	s.Topics = []string{"t"}
	next := s.Next(server{}, 9000, "")
	next.Use([]string{"u", "t", "a"})
	if !slices.Equal(next.Topics, []string{"a", "t", "u"}) || !slices.Equal(s.Topics, []string{"t"}) {
		t.Errorf("topics %v after %v", next.Topics, s.Topics)
	}
	same := next.Next(server{}, 9000, "") // another session of the process
	if n := len(same.Producers); n != maxProducers || same.Producers[n-1] != 9000 || slices.Index(same.Producers, 9000) != n-1 {
		t.Errorf("producers %v", same.Producers)
	}
	same.Settled = Position{7, 1, 0x40, 1}
	same.Settle() // nothing is acknowledged, so Settled stays
	if same.Settled.CommitLSN != 0x40 {
		t.Errorf("settled at %s", same.Settled)
	}
	same.Acked = Position{7, 1, 0x50, 3}
	same.Settle()
	if mine, other := same.Next(server{}, 1, same.Sources), same.Next(server{}, 1, "other"); same.Settled != same.Acked || mine.Settled != same.Acked || !other.Settled.IsZero() {
		t.Errorf("settled at %s; in the next record %s, with other settings %s", same.Settled, mine.Settled, other.Settled)
	}
	if n := len(same.Producers); n != keptProducers || same.Producers[n-1] != 9000 {
		t.Errorf("settled: producers %v", same.Producers)
	}
	if s.Generation != 9+2*maxProducers || s.Clean || s.Slot != "a" || s.Confirm != 5 {
		t.Errorf("%+v", s)
	}
}

// TestTopicsLeave: the record has the topics that are in use, and a limited number of those that were.
func TestTopicsLeave(t *testing.T) {
	var s PositionRecord
	want := func(topics, recent string) {
		t.Helper()
		if got := strings.Join(s.Topics, " "); got != topics {
			t.Errorf("topics %s, want %s", got, topics)
		}
		if got := strings.Join(s.Recent, " "); got != recent {
			t.Errorf("recent %s, want %s", got, recent)
		}
	}
	for _, step := range []struct{ use, topics, recent string }{
		{"u t u", "t u", ""}, {"t", "t", "u"}, {"t v", "t v", "u"}, {"u", "u", "t v"}, {"", "", "t v u"}, {"t", "t", "v u"}, {"", "", "v u t"},
	} {
		before := strings.Join(s.Topics, " ")
		kept := s
		s.Use(strings.Fields(step.use))
		want(step.topics, step.recent)
		if got := strings.Join(kept.Topics, " "); got != before {
			t.Errorf("the previous record has changed to %s", got)
		}
	}
	for i := range 3 * maxRecent {
		s.Use([]string{fmt.Sprint("x", i)})
	}
	if n := len(s.Recent); n != maxRecent || s.Recent[n-1] != fmt.Sprint("x", 3*maxRecent-2) || len(s.Topics) != 1 {
		t.Errorf("%d recent topics, %v", n, s.Recent)
	}
}

// TestAckedForOtherSources: with other settings an ordinal may belong to another event, so the acked position is not
// used.
func TestAckedForOtherSources(t *testing.T) {
	acked, tx := Position{7, 1, 0x50, LastOrdinal}, TxID{CommitLSN: 0x50, XID: 3}
	s := PositionRecord{Acked: acked, AckedTx: tx, Sources: "a"}
	for _, sources := range []string{"a", "b", ""} {
		next := s.Next(server{}, 1, sources)
		for _, r := range []PositionRecord{next, *Merge([]PositionRecord{s, next})} {
			if same := sources == "a"; r.Acked.IsZero() == same || r.AckedTx.IsZero() == same || r.Sources != sources || same && (r.Acked != acked || r.AckedTx != tx) {
				t.Errorf("sources %q: %s of %+v, sources %q", sources, r.Acked, r.AckedTx, r.Sources)
			}
		}
	}
}

// TestPositionRecordOfEarlierVersion: a record of the previous version, with partition counts and a fingerprint of
// the routing, is read. Its topics are those with a partition count. Its acked position is not used, because the
// settings that numbered the events are unknown.
func TestPositionRecordOfEarlierVersion(t *testing.T) {
	const text = `{"version":1,"slot":"s","generation":4,"system_id":"7","timeline":1,"acked":"1:7:1:0000000000000050:2","acked_xid":9,` +
		`"acked_commit_time":"2026-11-22T10:00:00Z","confirm":"0/60","clean":false,"producers":[3,4],"partitions":{"u":3,"t":6},"routing":"abc","at":"2026-11-22T10:00:01Z"}`
	var s PositionRecord
	must(t, s.UnmarshalText([]byte(text)))
	if !slices.Equal(s.Topics, []string{"t", "u"}) || !slices.Equal(s.Producers, []int64{3, 4}) || s.Confirm != 0x60 {
		t.Errorf("%+v", s)
	}
	if got, _ := s.AckedFor("x"); !got.IsZero() || s.Acked.IsZero() {
		t.Errorf("acked %s of %s", got, s.Acked)
	}
}

// TestAdoption: an adoption continues the generation and drops everything by which the next session could skip an
// event. It adds what the publication sends now, so that the next session notices if the publication is altered after
// the adoption.
func TestAdoption(t *testing.T) {
	now := time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)
	old := &PositionRecord{
		Slot: "a", Generation: 9, SystemID: 1, Timeline: 3, Epoch: 3, EpochStarts: []pglogrepl.LSN{7}, Acked: Position{1, 3, 90, 0}, Confirm: 99, Producers: []int64{1, 2},
		Topics: []string{"t"}, Sources: "r",
	}
	want := PositionRecord{Slot: "a", Generation: 10, SystemID: 7, Timeline: 2, Epoch: 4, ServerMajor: 17, Confirm: 40, Clean: true, Adopted: true, At: now, Published: "p", Sources: "r"}
	if got := old.Adoption("a", 7, 2, 17, 40, "p", "r", now); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	old, want.Generation, want.Epoch = nil, 1, 1
	got := old.Adoption("a", 7, 2, 17, 40, "p", "r", now)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("of nothing: %+v, want %+v", got, want)
	}
	next := got.Next(server{system: 7, timeline: 2}, 5, "r")
	if got.PublishedFor("r") != "p" || got.PublishedFor("other") != "" || next.Clean || next.Adopted || len(next.Producers) != 1 || next.Generation != 2 {
		t.Errorf("the session after it: %+v", next)
	}
	// What is compared word by word is compared whatever the settings are.
	next.Published = "all of them"
	if next.PublishedFor("r") != "all of them" || next.PublishedFor("other") != "of them" {
		t.Errorf("with other settings: %q", next.PublishedFor("other"))
	}
}

// TestUpgraded: what an adoption after pg_upgrade refuses. The session after it knows of the upgrade, and so does the
// record's remedy.
func TestUpgraded(t *testing.T) {
	newer := server{system: 8, timeline: 1, end: 0x1000}
	good := PositionRecord{Slot: "s", SystemID: 7, Timeline: 3, ServerMajor: 17, Confirm: 0x800, Acked: Position{7, 3, 0x700, 0}}
	for name, c := range map[string]struct {
		edit  func(*PositionRecord)
		from  uint64
		start pglogrepl.LSN
		why   string
	}{
		"the slot of pg_upgrade":    {func(*PositionRecord) {}, 7, 0x900, ""},
		"a record of another":       {func(s *PositionRecord) { s.SystemID = 6 }, 7, 0x900, "was written for system 6, not for system 7"},
		"adopted already":           {func(s *PositionRecord) { s.SystemID = 8 }, 7, 0x900, "of this server already"},
		"this server":               {func(*PositionRecord) {}, 8, 0x900, "system 8 itself"},
		"an old version":            {func(s *PositionRecord) { s.ServerMajor = 16 }, 7, 0x900, "keeps slots since PostgreSQL 17"},
		"the version not known":     {func(s *PositionRecord) { s.ServerMajor = 0 }, 7, 0x900, "does not say which version"},
		"before what was confirmed": {func(*PositionRecord) {}, 7, 0x800, "not the result of an upgrade"},
	} {
		rec := good
		c.edit(&rec)
		err := rec.Upgraded(c.from, newer, c.start)
		if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %q", name, err, c.why)
		}
	}

	remedy := func(rec PositionRecord, l Lineage) string {
		t.Helper()
		e, ok := errors.AsType[*HistoryError](rec.Contradiction(l, 0x900, ""))
		if !ok {
			t.Fatalf("%+v does not contradict system %d", rec, l.System())
		}
		return e.Error()
	}
	const adopt = "outboxcdc slot adopt --upgraded-from 7`"
	if text := remedy(good, newer); !strings.Contains(text, adopt) {
		t.Error(text)
	}
	old := good
	old.ServerMajor = 16
	if text := remedy(old, newer); strings.Contains(text, "--upgraded-from") || !strings.Contains(text, "outboxcdc recover") {
		t.Error(text)
	}
	adopted := good.Adoption("s", 8, 1, 18, 0x900, "", "r", time.Time{})
	adopted.UpgradedFrom = 7
	next := adopted.Next(newer, 5, "r")
	late := good
	late.Generation, next.Generation, adopted.Generation = 1, 2, 1
	merged := *Merge([]PositionRecord{good, adopted, late, next})
	if merged.SystemID != 8 || merged.UpgradedFrom != 7 || !merged.Acked.IsZero() || merged.Confirm != 0x900 || !slices.Equal(merged.Producers, []int64{5}) {
		t.Errorf("a late record of the old system: %+v", merged)
	}
	if text := remedy(merged, server{system: 7, timeline: 3, end: 0x1000}); !strings.Contains(text, "which was replaced by system 8") || strings.Contains(text, "slot adopt --upgraded") {
		t.Error(text)
	}
	h := NewHistory()
	h.NoteServer(server{system: 7})
	if err := h.Check(newer); err == nil || !strings.Contains(err.Error(), adopt) {
		t.Error(err)
	}
}

func TestMerge(t *testing.T) {
	if Merge(nil) != nil {
		t.Error("something of nothing")
	}
	at := func(lsn uint64, ordinal uint32) Position { return Position{7, 1, pglogrepl.LSN(lsn), ordinal} }
	base := PositionRecord{SystemID: 7, Timeline: 1, Generation: 4, Confirm: 10, Acked: at(9, 1), Producers: []int64{1, 2}}
	with := func(f func(*PositionRecord)) PositionRecord {
		s := base
		f(&s)
		return s
	}
	late := with(func(s *PositionRecord) { s.Generation, s.Confirm, s.Acked, s.Producers = 3, 8, at(8, 0), []int64{1} })
	clean := with(func(s *PositionRecord) { s.Confirm, s.Acked, s.Clean = 12, at(11, 0), true })
	other := with(func(s *PositionRecord) { s.Confirm, s.Acked, s.Producers = 11, at(10, 0), []int64{1, 3} })
	adopted := PositionRecord{Adopted: true, SystemID: 8, Timeline: 1, Epoch: 1, Generation: 5, Confirm: 3}
	moved := with(func(s *PositionRecord) {
		s.Timeline, s.Epoch, s.Acked, s.Confirm, s.Generation = 2, 1, Position{7, 2, 5, 0}, 5, 6
	})
	for name, c := range map[string]struct {
		in   []PositionRecord
		want PositionRecord
	}{
		"one":                                {[]PositionRecord{clean}, clean},
		"the last of a session":              {[]PositionRecord{base, clean}, clean},
		"a late one":                         {[]PositionRecord{clean, late}, with(func(s *PositionRecord) { s.Confirm, s.Acked = 12, at(11, 0) })},
		"a late one that is clean":           {[]PositionRecord{base, with(func(s *PositionRecord) { s.Generation, s.Clean = 3, true })}, base},
		"two at a time":                      {[]PositionRecord{base, clean, other}, with(func(s *PositionRecord) { s.Confirm, s.Acked, s.Producers = 12, at(11, 0), []int64{1, 2, 3} })},
		"an adoption":                        {[]PositionRecord{clean, adopted}, adopted},
		"late, of before an adoption":        {[]PositionRecord{clean, adopted, base}, adopted},
		"late, of the adoption's generation": {[]PositionRecord{clean, adopted, with(func(s *PositionRecord) { s.Generation, s.SystemID = 5, 8 })}, with(func(s *PositionRecord) { *s = adopted })},
		"after an adoption": {
			[]PositionRecord{clean, adopted, with(func(s *PositionRecord) { s.Epoch, s.Generation, s.Producers = 2, 6, []int64{5} })},
			with(func(s *PositionRecord) { s.Epoch, s.Generation, s.Producers = 2, 6, []int64{5} }),
		},
		"topics": {
			[]PositionRecord{
				with(func(s *PositionRecord) { s.Generation, s.Topics = 3, []string{"w"} }), with(func(s *PositionRecord) { s.Topics = []string{"u"} }),
				with(func(s *PositionRecord) { s.Producers, s.Topics = []int64{1, 2, 3}, []string{"u"} }), with(func(s *PositionRecord) { s.Topics = []string{"t", "v"} }),
			},
			with(func(s *PositionRecord) { s.Producers, s.Topics = []int64{1, 2, 3}, []string{"t", "u", "v", "w"} }),
		},
		"a topic has left": {
			[]PositionRecord{with(func(s *PositionRecord) { s.Topics = []string{"t", "u"} }), with(func(s *PositionRecord) { s.Topics, s.Recent = []string{"t"}, []string{"u"} })},
			with(func(s *PositionRecord) { s.Topics, s.Recent = []string{"t"}, []string{"u"} }),
		},
		"late ones of the timeline before": {[]PositionRecord{moved, moved, clean, late}, moved},
		"waits longer": {
			[]PositionRecord{with(func(s *PositionRecord) { s.FenceWait, s.Generation = 9*time.Second, 3 }), with(func(s *PositionRecord) { s.FenceWait = time.Second })},
			with(func(s *PositionRecord) { s.FenceWait = 9 * time.Second }),
		},
		"another timeline": {[]PositionRecord{clean, moved}, moved},
	} {
		if got := Merge(c.in); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
	}
}

// TestMergeProducers: a daemon is killed again and again. The merged record names every producer since the last
// session that settled, newest last.
func TestMergeProducers(t *testing.T) {
	const settled = 150 // the session that settles
	var records []PositionRecord
	newest := func() *PositionRecord { return Merge(records[max(0, len(records)-Recent):]) }
	for id := int64(1); id < settled+maxProducers; id++ {
		s := newest().Next(server{}, id, "")
		records = append(records, s)
		if id == settled {
			s.Settle()
			records = append(records, s)
		}
		if id%7 == 0 && id > 1 { // a late record of the previous session
			records = append(records, records[len(records)-2])
		}
		got := newest().Producers
		for back := range min(id, maxProducers) {
			want := id - back
			if at := len(got) - 1 - int(back); want >= min(id, settled) && (at < 0 || got[at] != want) {
				t.Fatalf("session %d: producers %v, want %d to be number %d from the end", id, got, want, back)
			}
		}
	}
}

// TestMergeOrder: two processes began with the same record, and one of them was frozen: its record was stored after
// those of the other one, and names only what it had read. The producers stay in the order of their turns.
func TestMergeOrder(t *testing.T) {
	first := (*PositionRecord)(nil).Next(server{}, 1, "")
	second := first.Next(server{}, 2, "")
	again, other, frozen := second.Next(server{}, 2, ""), second.Next(server{}, 3, ""), first.Next(server{}, 3, "")
	for name, c := range map[string]struct {
		records []PositionRecord
		want    []int64
		back    int64 // the producer of the process that has the slot now
	}{
		"one that has sent nothing":              {[]PositionRecord{first, second, frozen}, []int64{1, 2, 3}, 2},
		"one that had the slot, and comes again": {[]PositionRecord{first, second, other, again}, []int64{1, 2, 3}, 2},
		"and the first record is gone":           {[]PositionRecord{second, other, again}, []int64{1, 2, 3}, 2},
	} {
		if got := Merge(c.records); !slices.Equal(got.Producers, c.want) || !got.HasTurnAfter(c.back, false) {
			t.Errorf("%s: %v, want %v; a turn after that of %d: %v", name, got.Producers, c.want, c.back, got.HasTurnAfter(c.back, false))
		}
	}
}

// TestMergeFindingAfterAdoption: what the first start after an adoption has found is not forgotten. A session that
// began before the adoption has no say.
func TestMergeFindingAfterAdoption(t *testing.T) {
	adopted := PositionRecord{SystemID: 7, Timeline: 1, Generation: 4, Adopted: true, Clean: true, Published: "look"}
	found, frozen := adopted, adopted
	found.Published = "look found"
	frozen.Adopted, frozen.Published = false, "another"
	if got := Merge([]PositionRecord{adopted, frozen, found, frozen}); got.Published != found.Published {
		t.Errorf("published %q", got.Published)
	}
}
