package checkpoint

import (
	"cmp"
	"slices"
)

// Release decides what a command does with letters, so that those of a key are handled in their order only: an event
// must not come to its topic after a later one of its key. It is a rule without I/O.
//
// The command notes all open letters first. Then it asks about each of them, in the order of its partition, and reports
// what has become of it. That is their order, with exceptions: letters of a key may be in several partitions (see
// Scattered), and that of a killed process may be stored late. The command asks again about those whose time has not
// come.
//
// The command records that a letter of a key is handled before it goes on to the next one of the key. Otherwise a
// command that is killed could leave a dropped letter open and have sent those behind it; a later command may then send
// it after them.
type Release struct {
	// Followers is what happens to the letters behind those that the command was asked to handle: Send or Drop.
	Followers Fate

	keys map[HeldKey]*release
}

// release is what a command knows of a key.
type release struct {
	waiting []Letter    // noted, and not done, in their order
	isBegun bool        // one is done
	isOpen  bool        // a letter stays open, so those behind it must
	oldest  LetterPlace // of those that stay open
}

// Fate is what happens to a letter.
type Fate int

const (
	// Leave means that the letter stays open.
	Leave Fate = iota
	// Send means that the letter is sent to its topic.
	Send
	// Drop means that the letter is recorded as handled.
	Drop
	// Behind means that the letter stays open although the command was asked to handle it, because an older one of its key
	// does: see OldestOpen.
	Behind
	// Later means that the command asks again about the letter when it has asked about all others: an older one of its key
	// is not done.
	Later
)

// Note notes an open letter.
func (r *Release) Note(l *Letter) {
	k := r.of(l)
	i, _ := slices.BinarySearchFunc(k.waiting, l, func(a Letter, b *Letter) int { return a.Compare(b) })
	k.waiting = slices.Insert(k.waiting, i, *l)
}

// Compare orders the letters of a key by the positions of their events. Those of two servers have no order, so the
// times of the letters decide.
func (a *Letter) Compare(b *Letter) int {
	p, q := &a.Position, &b.Position
	if p.SystemID != q.SystemID {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(p.SystemID, q.SystemID))
	}
	return cmp.Or(cmp.Compare(p.Timeline, q.Timeline), cmp.Compare(p.CommitLSN, q.CommitLSN), cmp.Compare(p.Ordinal, q.Ordinal),
		cmp.Compare(a.Place.Partition, b.Place.Partition), cmp.Compare(a.Place.Offset, b.Place.Offset))
}

func (r *Release) of(l *Letter) *release {
	if r.keys == nil {
		r.keys = map[HeldKey]*release{}
	}
	k := r.keys[l.HeldKey]
	if k == nil {
		k = &release{}
		r.keys[l.HeldKey] = k
	}
	return k
}

// Decide returns what happens to a letter. asked is what the command was asked to do with it: Leave, Send or Drop. The
// letters behind one that is handled are handled too: the key is released as a whole.
func (r *Release) Decide(l *Letter, asked Fate) Fate {
	k := r.of(l)
	switch {
	case len(k.waiting) > 0 && k.waiting[0].Place != l.Place:
		return Later
	case !k.isBegun || asked == Leave && k.isOpen:
		return asked
	case k.isOpen:
		return Behind
	case asked == Leave:
		return r.Followers
	}
	return asked
}

// Done notes whether a letter is handled now, or stays open.
func (r *Release) Done(l *Letter, isHandled bool) {
	k := r.of(l)
	if len(k.waiting) > 0 && k.waiting[0].Place == l.Place {
		k.waiting = k.waiting[1:]
	}
	k.isBegun = true
	if !isHandled && !k.isOpen {
		k.isOpen, k.oldest = true, l.Place
	}
}

// OldestOpen returns the place of the oldest letter of a key that stays open.
func (r *Release) OldestOpen(l *Letter) LetterPlace {
	if k := r.keys[l.HeldKey]; k != nil && k.isOpen {
		return k.oldest
	}
	return l.Place
}
