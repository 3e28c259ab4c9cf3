package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// TableResult is what became of a table.
type TableResult struct {
	Table  string    `json:"table"`
	Bytes  int64     `json:"bytes"`           // before
	Oldest time.Time `json:"oldest,omitzero"` // row that is left; zero: not known
	Leaves []Result  `json:"leaves"`
}

// Overdue counts the leaves with rows that are old enough and remain, by reason.
func (t *TableResult) Overdue() map[Reason]int {
	n := map[Reason]int{}
	for _, leaf := range t.Leaves {
		if leaf.Reason != "" {
			n[leaf.Reason]++
		}
	}
	return n
}

// Removed counts the leaves that were emptied or dropped, or whose old rows were deleted.
func (t *TableResult) Removed() (n int) {
	for _, leaf := range t.Leaves {
		if leaf.Outcome == Emptied || leaf.Outcome == Dropped || leaf.Rows > 0 {
			n++
		}
	}
	return n
}

// Pass removes the old rows of a table, leaf by leaf. A leaf that has to wait does not keep other leaves from being
// emptied. outboxes are all outboxes. With dry it changes nothing and locks nothing.
func Pass(ctx context.Context, p *Postgres, t *Table, outboxes []replication.Table, r Retention, dry bool, waiting func()) (out TableResult, err error) {
	out.Table = t.String()
	leaves, err := p.Open(ctx, t, outboxes)
	if err != nil {
		return out, err
	}
	if r.Database, err = p.Database(ctx); err != nil {
		return out, fmt.Errorf("read the database: %w", err)
	}
	r.Server = p
	if !dry {
		if err := p.Lock(ctx, t, waiting); err != nil {
			return out, fmt.Errorf("wait for another retain: %w", err)
		}
		defer func() { _ = p.Unlock(context.WithoutCancel(ctx), t) }()
	}
	for i := range leaves {
		leaf := &leaves[i]
		out.Bytes += leaf.Bytes
		var res Result
		switch {
		case dry:
			res = r.Judge(ctx, leaf, t.Delete)
		case t.Delete:
			res = r.Delete(ctx, leaf)
		default:
			res = r.Empty(ctx, leaf)
		}
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		out.Leaves = append(out.Leaves, res)
		if res.Outcome != Emptied && !res.Oldest.IsZero() && (out.Oldest.IsZero() || res.Oldest.Before(out.Oldest)) {
			out.Oldest = res.Oldest
		}
	}
	return out, nil
}

// Judge says what [Retention.Delete], or otherwise [Retention.Empty], would do with a leaf if the slots stayed where
// they are. It locks nothing and changes nothing.
func (r *Retention) Judge(ctx context.Context, leaf *Leaf, chunks bool) Result {
	now, err := r.Server.Now(ctx)
	if err != nil {
		return result(leaf, Age{}, fmt.Errorf("read the server's time: %w", err))
	}
	since := now.Add(-r.Keep)
	age, err := r.Server.Read(ctx, leaf, since)
	hasOld := err == nil && !age.Empty && !age.Young
	if err == nil && chunks && age.Young {
		var old *Rows
		if old, err = r.Server.OldRows(ctx, leaf, time.Time{}, since, 1); err == nil {
			hasOld = len(old.Places) > 0
		}
	}
	if err == nil && hasOld {
		err = r.waitForSlots(ctx, func() error { return nil })
	}
	out := result(leaf, age, err)
	switch {
	case err != nil:
	case age.Empty:
		out.Outcome = Empty
	case !hasOld:
		out.Outcome = Kept
	}
	return out
}
