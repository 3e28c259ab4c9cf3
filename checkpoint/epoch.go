package checkpoint

import (
	"slices"

	"github.com/jackc/pglogrepl"
)

// Epochs order the histories of a slot where the numbers of timelines do not: after a restore the server can be on a
// timeline with a lower number, or on the same one with lower LSNs. The position record has the epoch. A new one
// begins with every adoption, and with the first session on another timeline or system.

// enter begins a new epoch if the server is on another timeline or system than the record's. The epoch begins where
// the server's history left the record's timeline: an event from before keeps its epoch when it is sent again, so
// that the two records are equal.
func (s *PositionRecord) enter(l Lineage) {
	if s.SystemID == l.System() && s.Timeline == l.Current() {
		return
	}
	starts := last(append(slices.Clone(s.EpochStarts), 0), maxEpochStarts)
	if from, over := l.EndOf(s.Timeline); over && s.SystemID == l.System() {
		starts[len(starts)-1] = from
	} else { // the server does not have the record's history
		starts = nil
	}
	s.SystemID, s.Timeline = l.System(), l.Current()
	s.Epoch, s.EpochStarts = s.Epoch+1, starts
}

// maxEpochStarts is how many starts of epochs are kept. Events from before the oldest one get a later epoch than
// theirs if they are sent again.
const maxEpochStarts = 100

// EpochOf returns the epoch of the events of a transaction.
func (s *PositionRecord) EpochOf(commit pglogrepl.LSN) uint32 {
	epoch := s.Epoch
	for _, from := range s.EpochStarts {
		if commit < from && epoch > 0 {
			epoch--
		}
	}
	return epoch
}

// latestEpoch returns the epoch of merged records, of which out is the newest: the highest one, because a late record
// of a process that was frozen has an earlier one. An epoch belongs to one timeline. If two sessions on different
// timelines have begun the same epoch, because each did not know of the other's, a new one begins.
func latestEpoch(records []PositionRecord, out *PositionRecord) (epoch uint32, starts []pglogrepl.LSN) {
	for i := range records {
		epoch = max(epoch, records[i].Epoch)
	}
	var others []*PositionRecord
	for i := range records {
		switch r := &records[i]; {
		case r.Epoch != epoch:
		case r.SystemID != out.SystemID || r.Timeline != out.Timeline:
			others = append(others, r)
		default:
			starts = r.EpochStarts
		}
	}
	if len(others) == 0 {
		return epoch, starts
	}
	n := len(starts) - 1
	if n < 0 {
		return epoch + 1, nil
	}
	// What is before all of them keeps its epoch. Of what is later one may have sent events in the epoch that it began,
	// so an earlier epoch would make consumers drop new ones.
	from := starts[n]
	for _, r := range others {
		if r.SystemID != out.SystemID || len(r.EpochStarts) != n+1 || !slices.Equal(r.EpochStarts[:n], starts[:n]) {
			return epoch + 1, nil
		}
		from = min(from, r.EpochStarts[n])
	}
	return epoch + 1, last(append(slices.Clone(starts[:n]), from, from), maxEpochStarts)
}
