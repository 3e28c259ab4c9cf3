package checkpoint

// Release decides what a command does with letters, so that those of a key are handled in their order only: an event
// must not come to its topic after a later one of its key. It is a rule without I/O.
//
// The command asks about each open letter in the order of its partition, and reports what has become of it. It records
// that a letter of a key is handled before it goes on to the next one of the key. Otherwise a command that is killed
// could leave a dropped letter open and have sent those behind it; a later command may then send it after them.
type Release struct {
	// Followers is what happens to the letters behind those that the command was asked to handle: Send or Drop.
	Followers Fate

	keys map[HeldKey]*release
}

// release is what a command knows of a key.
type release struct {
	isOpen bool        // a letter stays open, so those behind it must
	oldest LetterPlace // of those that stay open
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
)

// Decide returns what happens to a letter. asked is what the command was asked to do with it: Leave, Send or Drop. The
// letters behind one that is handled are handled too: the key is released as a whole.
func (r *Release) Decide(l *Letter, asked Fate) Fate {
	k := r.keys[l.HeldKey]
	switch {
	case k == nil || asked == Leave && k.isOpen:
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
	if r.keys == nil {
		r.keys = map[HeldKey]*release{}
	}
	k := r.keys[l.HeldKey]
	if k == nil {
		k = &release{}
		r.keys[l.HeldKey] = k
	}
	if !isHandled && !k.isOpen {
		k.isOpen, k.oldest = true, l.Place
	}
}

// OldestOpen returns the place of the oldest letter of a key that stays open.
func (r *Release) OldestOpen(l *Letter) LetterPlace {
	if k := r.keys[l.HeldKey]; k != nil {
		return k.oldest
	}
	return l.Place
}
