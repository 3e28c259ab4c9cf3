package main

import (
	"context"
	"fmt"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
)

// This file has what the dlq commands do with the letters of held keys.

// asks returns what the flags ask for a dead letter, and whether they mean this one, and not its whole key. drop --all
// drops poison events, and sends those that only follow one.
func (d *dlq) asks(l *letter) (what checkpoint.Fate, named bool) {
	ok, named := d.choice.matches(l)
	switch {
	case !ok:
		return checkpoint.Leave, false
	case d.drops && (named || !l.onlyFollows()):
		return checkpoint.Drop, named
	}
	return d.behindHandled(), named
}

// behindHandled is what happens to the letters of a key behind one that is handled.
func (d *dlq) behindHandled() checkpoint.Fate {
	if d.drops && d.followers {
		return checkpoint.Drop
	}
	return checkpoint.Send
}

// behind says why a dead letter stays open that has an older one of its key before it, and what to do.
func (d *dlq) behind(l *letter) string {
	at := d.release.OldestOpen(l.held)
	if d.drops {
		return fmt.Sprintf("an older letter of its key is open: outboxcdc dlq drop --at %d:%d drops that one and sends those behind it, "+
			"outboxcdc dlq drop --at %[1]d:%[2]d --with-followers drops all of them", at.Partition, at.Offset)
	}
	return fmt.Sprintf("an older letter of its key is open: outboxcdc dlq retry --at %d:%d sends the letters of the key in their order", at.Partition, at.Offset)
}

// alsoSent says how many followers drop has sent.
func (d *dlq) alsoSent() string {
	if d.sent == 0 {
		return ""
	}
	return ", " + human.Count(d.sent, "follower", "followers") + " sent"
}

// heldKeys are the keys that open letters hold.
type heldKeys map[checkpoint.HeldKey]*heldKey

type heldKey struct {
	oldest    *checkpoint.Letter
	followers int
}

// note counts an open letter.
func (h heldKeys) note(l *letter) {
	if l.held == nil || l.Handled {
		return
	}
	if k := h[l.held.HeldKey]; k != nil {
		k.followers++
		if l.held.Compare(k.oldest) < 0 {
			k.oldest = l.held
		}
		return
	}
	h[l.held.HeldKey] = &heldKey{oldest: l.held}
}

// of returns the key whose oldest open letter l is; nil: it is none.
func (h heldKeys) of(l *letter) *heldKey {
	if l.held == nil || l.Handled {
		return nil
	}
	if k := h[l.held.HeldKey]; k != nil && k.oldest.Place == l.held.Place {
		return k
	}
	return nil
}

// list lists dead letters. It reads them twice: the oldest letter of a key is shown with the number of its followers.
func (d *dlq) list(ctx context.Context) error {
	d.holds = heldKeys{}
	err := d.letters.Read(ctx, d.choice.all, func(raw *deadletter.Letter) error {
		if l := d.parse(raw); l != nil {
			d.holds.note(l)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.letters.Read(ctx, d.choice.all, func(raw *deadletter.Letter) error {
		l := d.parse(raw)
		if l == nil {
			d.otherSlots++
			return nil
		}
		ok, named := d.choice.matches(l)
		isKey := ok && len(d.choice.keys) > 0
		switch {
		case l.Handled && !d.choice.all, !ok:
			return nil
		case l.held == nil, l.Handled, d.choice.all, d.followers, named, isKey, d.holds.of(l) != nil:
			d.done++
			return d.show(l, outcome{})
		}
		d.hidden++
		return nil
	})
}
