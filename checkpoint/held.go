package checkpoint

import (
	"crypto/sha256"
	"slices"
	"time"
)

// HeldKeys decides which events go to the dead-letter topic because a poison event of their key is there: a rule
// without I/O, clock or goroutine, for one session of one slot. A key is held while one of its letters is open, that
// is, neither retried nor dropped.
//
// The state is what Kafka has: the session reports each letter that it reads in the dead-letter topic, and which
// offsets its commands have recorded as handled. Only the session that has the slot adds letters. So a key is free
// once every letter of the key that was read is handled, and every letter that the session has sent was read back.
// Nothing can change that observation but the session itself. The record of each retried letter was acknowledged
// before the letter was recorded as handled, so it is before every record that the session sends afterwards.
//
// Before the first letter of a key is sent, everything in flight is acknowledged. Otherwise a crash could leave the
// letter in Kafka and an older event of its key not, which the next session would add behind the letter.
//
// All open letters of a key are in one partition, so that commands handle them in their order: see Partition.
type HeldKeys struct {
	limits HeldLimits
	keys   map[HeldKey]*held
	isRead bool // see ReadAll
	full   bool // letters were read that exceed the limits: there may be others of any key
	count  int  // letters of all keys: open, or sent
}

// HeldKey is a key of a topic, in which its events are ordered: see KeyOf.
type HeldKey struct{ Topic, Key string }

// KeyOf returns the key of a topic. A long key counts as its hash, so that who writes events does not decide how much
// memory a held key takes.
func KeyOf(topic string, key []byte) HeldKey {
	var hashed [2 * longestKey]byte
	return HeldKey{topic, string(shortKey(key, &hashed))}
}

func shortKey(key []byte, hashed *[2 * longestKey]byte) []byte {
	if len(key) <= longestKey {
		return key
	}
	hash := sha256.Sum256(key)
	copy(hashed[:], hash[:])
	return hashed[:] // longer than any that is not hashed
}

// longestKey is the length of the longest key that is not hashed.
const longestKey = 64

// HeldLimits bounds the memory of HeldKeys.
type HeldLimits struct {
	Keys    int // held keys
	Letters int // letters of all of them
}

// LetterPlace is where a letter is in the dead-letter topic.
type LetterPlace struct {
	Partition int32
	Offset    int64
}

// Letter is a letter of a held key.
type Letter struct {
	HeldKey
	Place    LetterPlace
	Position Position // of its event
	By       string   // the id of the poison event that holds the key, its position if it has none
	Time     time.Time
}

// held is a key that is held.
type held struct {
	by        string
	since     time.Time     // the time of its oldest letter that this session knows
	open      []LetterPlace // read, and not handled
	sent      []Position    // the events of letters that the session has sent and not read back
	inOrder   bool          // no record of the key is in flight to its topic: a letter was sent, and since then only letters
	partition int32         // of the letters
	scattered bool          // not all of them are in the partition
	handled   int           // letters that were handled since the first was read
	gaveUp    int           // handled, when the session last gave up waiting
}

// Hold is what happens to an event.
type Hold int

const (
	// Flows means that the event is sent to its topic.
	Flows Hold = iota
	// HoldsNothing means that the event becomes a dead letter that holds no key, because its topic or key is not known.
	HoldsNothing
	// BecomesLetter means that the event becomes a letter of its key. The session reports it to Sent.
	BecomesLetter
	// AwaitLetters means that the letters in Kafka have not been read: see ReadAll.
	AwaitLetters
	// AwaitAcks means that everything in flight has to be acknowledged first.
	AwaitAcks
	// AwaitRelease means that the key may be free soon, because its letters are being handled. The session waits, so that
	// it does not add letters as fast as they are handled, and decides again. It may call GiveUp at any time, for example
	// because other keys wait meanwhile.
	AwaitRelease
	// TooManyKeys and TooManyLetters mean that a limit is reached: the event cannot be sent anywhere.
	TooManyKeys
	TooManyLetters
	// Scattered means that the key has open letters in several partitions, so that no place is behind all of them. That
	// takes a dead-letter topic with another number of partitions, and letters that are open again because Kafka has
	// forgotten that they were handled, or that a killed process had in flight.
	Scattered
)

// lastLetters is how many letters of a key that is being released may be left for AwaitRelease.
const lastLetters = 100

// NewHeldKeys returns the rule of a session that has read nothing yet.
func NewHeldKeys(limits HeldLimits) *HeldKeys {
	return &HeldKeys{limits: limits, keys: map[HeldKey]*held{}}
}

// Decide returns what happens to the next event of the stream. poison means that it cannot be sent to its topic,
// inFlight that an event of the session is not acknowledged. The topic is "" and the key nil if they are not known.
func (h *HeldKeys) Decide(topic string, key []byte, poison, inFlight bool) Hold {
	switch {
	case !h.isRead:
		return AwaitLetters
	case h.full: // a letter that was not kept may be one of this key
		return TooManyKeys
	case topic == "" || key == nil:
		if poison {
			return HoldsNothing
		}
		return Flows
	}
	k := h.of(topic, key)
	switch {
	case k == nil && !poison:
		return Flows
	case k == nil && len(h.keys) >= h.limits.Keys:
		return TooManyKeys
	case k != nil && k.handled > k.gaveUp && k.letters() <= lastLetters:
		return AwaitRelease
	case k != nil && k.scattered:
		return Scattered
	case h.count >= h.limits.Letters:
		return TooManyLetters
	case inFlight && (k == nil || !k.inOrder):
		return AwaitAcks
	}
	return BecomesLetter
}

// of returns a key that is held; nil: it is free. It does not allocate.
func (h *HeldKeys) of(topic string, key []byte) *held {
	if len(h.keys) == 0 {
		return nil
	}
	var hashed [2 * longestKey]byte
	return h.keys[HeldKey{topic, string(shortKey(key, &hashed))}]
}

func (k *held) letters() int { return len(k.open) + len(k.sent) }

// By returns the id of the poison event that holds the key; "": the key is free.
func (h *HeldKeys) By(topic string, key []byte) string {
	if k := h.of(topic, key); k != nil {
		return k.by
	}
	return ""
}

// Partition returns the partition that the next letter of the key is sent to, and false if the hash of the key decides.
func (h *HeldKeys) Partition(topic string, key []byte) (partition int32, known bool) {
	if k := h.of(topic, key); k != nil {
		return k.partition, true
	}
	return 0, false
}

// Sent notes that the session sends a letter to a partition; its offset is not known yet.
func (h *HeldKeys) Sent(l *Letter) {
	k := h.hold(l)
	k.sent = append(k.sent, l.Position)
	h.count++
	k.inOrder = true
}

// Read notes a letter of the dead-letter topic. Each one is read once, in the order of its partition.
func (h *HeldKeys) Read(l *Letter, handled bool) {
	k := h.keys[l.HeldKey]
	isOwn := k != nil && k.readBack(l.Position)
	if isOwn {
		h.count--
	}
	switch {
	case handled:
		if isOwn {
			k.handled++
			h.release(l.HeldKey, k)
		}
		return
	case !isOwn && (k == nil && len(h.keys) >= h.limits.Keys || h.count >= h.limits.Letters):
		h.full = true
		return
	}
	k = h.hold(l)
	k.open = append(k.open, l.Place)
	h.count++
	k.scattered = k.scattered || k.partition != l.Place.Partition
}

// ReadAll notes that every letter was read that earlier sessions have left.
func (h *HeldKeys) ReadAll() { h.isRead = true }

// Handled notes which letters are handled, according to what their commands have recorded.
func (h *HeldKeys) Handled(has func(LetterPlace) bool) {
	for name, k := range h.keys {
		before := len(k.open)
		k.open = slices.DeleteFunc(k.open, has)
		k.handled += before - len(k.open)
		h.count -= before - len(k.open)
		h.release(name, k)
	}
}

// Gone returns a key with an open letter that Kafka does not have any more, because its partition begins behind it. The
// session has to end: the key would be held for good, and without it nothing says that its events are missing.
func (h *HeldKeys) Gone(first func(partition int32) int64) (name HeldKey, by string, gone bool) {
	for name, k := range h.keys {
		if slices.ContainsFunc(k.open, func(p LetterPlace) bool { return p.Offset < first(p.Partition) }) {
			return name, k.by, true
		}
	}
	return HeldKey{}, "", false
}

// GiveUp notes that the session does not wait for the release of a key any longer, until more of its letters are
// handled.
func (h *HeldKeys) GiveUp(topic string, key []byte) {
	if k := h.of(topic, key); k != nil {
		k.gaveUp = k.handled
	}
}

// Len returns the number of held keys, and of their letters.
func (h *HeldKeys) Len() (keys, letters int) { return len(h.keys), h.count }

// Oldest returns since when a key is held; zero: none is.
func (h *HeldKeys) Oldest() (oldest time.Time) {
	for _, k := range h.keys {
		if oldest.IsZero() || k.since.Before(oldest) {
			oldest = k.since
		}
	}
	return oldest
}

// hold returns the key of a letter, which is held from now on.
func (h *HeldKeys) hold(l *Letter) *held {
	k := h.keys[l.HeldKey]
	if k == nil {
		k = &held{by: l.By, since: l.Time, partition: l.Place.Partition}
		h.keys[l.HeldKey] = k
	}
	return k
}

// LettersGone means that letters that held keys are not in the dead-letter topic any more, and that nothing says they
// were handled. Its text says what to do.
type LettersGone struct{ What string }

func (e *LettersGone) Error() string {
	return e.What + ": their events are in no topic, unless they were retried. `outboxcdc audit` finds those that are missing, " +
		"`outboxcdc recover` delivers them while the daemon is stopped; the next start lets the keys flow"
}

// LetterMarks are what Kafka says about letters.
type LetterMarks struct {
	Handled func(LetterPlace) bool      // a command has recorded that the letter is handled
	First   func(partition int32) int64 // the first offset that the partition still has
}

// release lets the key go if none of its letters is open.
func (h *HeldKeys) release(name HeldKey, k *held) {
	if len(k.open) == 0 && len(k.sent) == 0 {
		delete(h.keys, name)
	}
}

// readBack notes that the letter of an event was read, and reports whether the session has sent it.
func (k *held) readBack(p Position) bool {
	i := slices.Index(k.sent, p)
	if i < 0 {
		return false
	}
	k.sent = slices.Delete(k.sent, i, i+1)
	return true
}
