package checkpoint

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// TestEpochOfTimelines: each session on another timeline begins an epoch at the fork. An event from before the fork
// keeps its epoch.
func TestEpochOfTimelines(t *testing.T) {
	first := (*PositionRecord)(nil).Next(server{system: 7, timeline: 1}, 1, "")
	same := first.Next(server{system: 7, timeline: 1}, 1, "")
	forked := same.Next(server{system: 7, timeline: 2, forks: []fork{{1, 0x100}}}, 1, "")
	again := forked.Next(server{system: 7, timeline: 2, forks: []fork{{1, 0x100}}}, 1, "")
	twice := again.Next(server{system: 7, timeline: 4, forks: []fork{{1, 0x100}, {2, 0x200}, {3, 0x300}}}, 1, "") // no session on timeline 3
	adopted := twice.Adoption("s", 7, 2, 17, 0x80, "", "", time.Time{})
	restored := adopted.Next(server{system: 7, timeline: 2, forks: []fork{{1, 0x70}}}, 1, "")
	other := restored.Next(server{system: 8, timeline: 2}, 1, "")
	for what, c := range map[string]struct {
		rec  PositionRecord
		want map[pglogrepl.LSN]uint32 // by commit LSN
	}{
		"the first session":             {first, map[pglogrepl.LSN]uint32{0x10: 0}},
		"the same timeline":             {same, map[pglogrepl.LSN]uint32{0x10: 0}},
		"a failover":                    {forked, map[pglogrepl.LSN]uint32{0xff: 0, 0x100: 1, 0x999: 1}},
		"the session after it":          {again, map[pglogrepl.LSN]uint32{0xff: 0, 0x100: 1}},
		"two failovers":                 {twice, map[pglogrepl.LSN]uint32{0xff: 0, 0x100: 1, 0x1ff: 1, 0x200: 2, 0x300: 2}},
		"a restore onto a lower number": {adopted, map[pglogrepl.LSN]uint32{0: 3, 0x80: 3}},
		"the session after an adoption": {restored, map[pglogrepl.LSN]uint32{0x60: 3, 0x80: 3}},
		"another system":                {other, map[pglogrepl.LSN]uint32{0x10: 4}},
	} {
		for lsn, want := range c.want {
			if got := c.rec.EpochOf(lsn); got != want {
				t.Errorf("%s: an event committed at %s has epoch %d, want %d", what, lsn, got, want)
			}
		}
	}
}

// TestEpochMerged: late records do not lower the epoch, and two timelines do not share one.
func TestEpochMerged(t *testing.T) {
	base := PositionRecord{SystemID: 7, Timeline: 1, Generation: 4, Epoch: 2, EpochStarts: []pglogrepl.LSN{0x20}}
	with := func(generation uint64, timeline int32, epoch uint32, from pglogrepl.LSN) PositionRecord {
		s := base
		s.Generation, s.Timeline, s.Epoch, s.EpochStarts = generation, timeline, epoch, nil
		if from > 0 {
			s.EpochStarts = []pglogrepl.LSN{from}
		}
		return s
	}
	failedOver := with(5, 2, 3, 0x30)
	for what, c := range map[string]struct {
		records []PositionRecord
		epoch   uint32
		from    pglogrepl.LSN
	}{
		"one":                                  {[]PositionRecord{base}, 2, 0x20},
		"a failover":                           {[]PositionRecord{base, failedOver}, 3, 0x30},
		"a late record":                        {[]PositionRecord{failedOver, base}, 3, 0x30},
		"a late record of the same generation": {[]PositionRecord{failedOver, with(5, 1, 2, 0x20)}, 4, 0},
		"two timelines that began the same epoch":       {[]PositionRecord{failedOver, with(5, 3, 3, 0x28)}, 4, 0x28},
		"three timelines that began the same epoch":     {[]PositionRecord{failedOver, with(5, 3, 3, 0x24), with(5, 4, 3, 0x28)}, 4, 0x24},
		"and the session after them":                    {[]PositionRecord{failedOver, with(5, 3, 3, 0x30), with(6, 2, 4, 0)}, 4, 0},
		"a record of a version without epochs":          {[]PositionRecord{failedOver, with(6, 2, 0, 0)}, 3, 0x30},
		"another timeline, without an epoch of its own": {[]PositionRecord{failedOver, with(6, 4, 0, 0)}, 4, 0},
	} {
		if got := Merge(c.records); got.Epoch != c.epoch || len(got.EpochStarts) > 0 != (c.from > 0) || c.from > 0 && got.EpochStarts[0] != c.from {
			t.Errorf("%s: epoch %d from %s, want %d from %s", what, got.Epoch, got.EpochStarts, c.epoch, c.from)
		}
	}
}

// TestEpochRandom: sessions and adoptions on several servers, some of which have read the records long before they
// write theirs. No epoch belongs to two timelines, if each reads the records again after it has written its first
// one, and begins again if the epoch is not its own.
func TestEpochRandom(t *testing.T) {
	type place struct {
		system   uint64
		timeline int32
	}
	for range 300 {
		var records []PositionRecord
		newest := func() *PositionRecord { return Merge(records[max(0, len(records)-Recent):]) }
		used := map[uint32]place{}
		var waiting []PositionRecord
		highest := uint32(0)
		for range 60 {
			at := place{7, 1 + rand.Int32N(4)}
			switch rand.IntN(4) {
			case 0: // a process is frozen between reading and writing
				waiting = append(waiting, newest().Next(server{system: at.system, timeline: at.timeline}, 1, ""))
				continue
			case 1:
				records = append(records, newest().Adoption("s", at.system, at.timeline, 17, 1, "", "", time.Time{}))
				continue
			case 2:
				if len(waiting) == 0 {
					continue
				}
				records = append(records, waiting[0])
				waiting = waiting[1:]
			default:
				records = append(records, newest().Next(server{system: at.system, timeline: at.timeline}, 1, ""))
			}
			mine := records[len(records)-1]
			if newest().Epoch != mine.Epoch {
				continue // it begins again
			}
			if mine.Epoch < highest {
				t.Fatalf("epoch %d after %d", mine.Epoch, highest)
			}
			highest = mine.Epoch
			on := place{mine.SystemID, mine.Timeline}
			if before, ok := used[mine.Epoch]; ok && before != on {
				t.Fatalf("epoch %d belongs to %v and to %v", mine.Epoch, before, on)
			}
			used[mine.Epoch] = on
		}
	}
}
