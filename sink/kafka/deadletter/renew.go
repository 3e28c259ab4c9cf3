package deadletter

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

const (
	// renewEvery is how often a daemon commits the offsets of the group again, and renewAfter how long after its start,
	// or after an attempt that failed. Kafka deletes the offsets of a group that has no member
	// offsets.retention.minutes after its last commit (KIP-211; 7 days by default). Then each letter that was ever
	// handled would be open, and its key held.
	renewEvery = 12 * time.Hour
	renewAfter = 10 * time.Minute
)

// renewals commits the offsets of the group again and again until ctx ends. It holds the group meanwhile, which takes
// some seconds: otherwise it could undo what a command has committed since the offsets were read.
func (f *Followed) renewals(ctx context.Context) {
	every, after := cmp.Or(f.renewEvery, renewEvery), cmp.Or(f.renewAfter, renewAfter)
	for {
		f.mu.Lock()
		if f.renewAt.IsZero() {
			f.renewAt = time.Now().Add(after)
		}
		wait := time.Until(f.renewAt)
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		next := every
		if err := f.renew(ctx); err != nil {
			if next = after; ctx.Err() == nil && !errors.Is(err, errInUse) { // who uses the group commits
				f.Logger.Warn("the record of handled dead letters was not renewed: Kafka deletes it after offsets.retention.minutes",
					"group", f.Group, "error", err)
			}
		}
		f.mu.Lock()
		f.renewAt = time.Now().Add(next)
		f.mu.Unlock()
	}
}

// renew commits the offsets of the group as they are, and with them what Kafka had deleted when the session began. A
// group without offsets stays without.
func (f *Followed) renew(ctx context.Context) error {
	t, err := Open(ctx, f.Cluster, f.Topic, f.Group)
	if err != nil {
		return err
	}
	defer t.Close()
	defer context.AfterFunc(ctx, t.client.Cut)()
	if !slices.ContainsFunc(t.parts, func(p partition) bool { return p.committed }) {
		return nil
	}
	if err := t.Hold(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	begun := f.begun
	f.mu.Unlock()
	t.Forget(func(partition int32) int64 { return begun[partition] })
	return t.Commit()
}
