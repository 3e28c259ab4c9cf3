package audit

import (
	"context"
	"slices"
	"time"
)

// freshLooks is how many snapshots are taken to find rows that became visible later, freshPause the time between two.
// A transaction that was delivered becomes visible soon, unless it waits for a synchronous standby.
const (
	freshLooks = 3
	freshPause = time.Second
)

// exist returns which of the ids rows have that are outside the range. The snapshot has ended, so a row that was
// deleted since is not found.
func (r *run) exist(ctx context.Context, ids []string) (map[string]bool, error) {
	if r.Messages { // they have no row
		all := map[string]bool{}
		for _, id := range ids {
			all[id] = true
		}
		return all, nil
	}
	return r.existFresh(ctx, ids)
}

// existFresh returns which of the ids rows have in a new snapshot.
func (r *run) existFresh(ctx context.Context, ids []string) (map[string]bool, error) {
	s, done, err := r.Fresh(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return r.existIn(ctx, s, ids)
}

func (r *run) existIn(ctx context.Context, s Snapshot, ids []string) (map[string]bool, error) {
	all := map[string]bool{}
	for i := range r.Tables {
		if r.Tables[i].IDColumn == "" {
			continue
		}
		some, err := s.Existing(ctx, i, r.Tables[i].IDColumn, ids)
		if err != nil {
			return nil, err
		}
		for id, is := range some {
			all[id] = all[id] || is
		}
	}
	return all, nil
}

// existNow returns which of the ids rows have that became visible after the snapshot.
func (r *run) existNow(ctx context.Context, ids []string) (map[string]bool, error) {
	found := map[string]bool{}
	for look := range freshLooks {
		if look > 0 {
			select {
			case <-time.After(freshPause):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		some, err := r.existFresh(ctx, ids)
		if err != nil {
			return nil, err
		}
		for id := range some {
			found[id] = true
		}
		ids = slices.DeleteFunc(ids, func(id string) bool { return found[id] })
		if len(ids) == 0 {
			break
		}
	}
	return found, nil
}
