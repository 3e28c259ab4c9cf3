package retention

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Rows are versions of rows that were visible when they were read. A version is its place in the file of the table
// (ctid) and the transaction that wrote it (xmin). A row that was updated since is another version, and a place
// that was used again has a row of a transaction that is not among these. If the table was rewritten, it has
// another file.
type Rows struct {
	Places  []string  // ctid
	Writers []string  // xmin, each once
	File    uint32    // pg_relation_filenode
	Before  time.Time // all are older
	Age     Age
}

// haulChunks is how many chunks are read at a time. The slots are asked once for all of them.
const haulChunks = 50

// share: one part of so many of the time is work of the server; the rest are pauses.
const share = 10

// Delete deletes the rows of a leaf that are older than the time to keep. It reads versions of rows, then the end of
// the WAL: they were committed before it. When each slot has confirmed that position and the archive has the rows,
// those versions are deleted in chunks. No lock is held meanwhile, and rows that others have locked remain.
func (r *Retention) Delete(ctx context.Context, leaf *Leaf) Result {
	now, err := r.Server.Now(ctx)
	if err != nil {
		return result(leaf, Age{}, fmt.Errorf("read the server's time: %w", err))
	}
	since := now.Add(-r.Keep)
	var from time.Time
	var total, read int64
	var first Age
	ended := func(err error) Result {
		if err == nil && read > total { // they are still there
			err = &InUseError{errors.New("some rows are locked by other sessions, or were changed meanwhile")}
		}
		return r.deleted(leaf, first, total, err)
	}
	for {
		began := time.Now()
		rows, err := r.Server.OldRows(ctx, leaf, from, since, haulChunks*r.Chunk)
		if err != nil {
			return r.deleted(leaf, first, total, fmt.Errorf("read old rows: %w", err))
		}
		if len(rows.Places) == 0 {
			return ended(nil)
		}
		if !r.Pause(ctx, (share-1)*time.Since(began)) {
			return r.deleted(leaf, first, total, context.Cause(ctx))
		}
		if first.Oldest.IsZero() {
			first = rows.Age
		}
		n, err := r.deleteHaul(ctx, leaf, rows)
		total, read = total+n, read+int64(len(rows.Places))
		if err != nil {
			return r.deleted(leaf, first, total, err)
		}
		if len(rows.Places) < haulChunks*r.Chunk {
			return ended(nil)
		}
		from = rows.Age.Newest
		if n == 0 { // all are locked by others
			from = from.Add(time.Microsecond)
		}
	}
}

func (r *Retention) deleted(leaf *Leaf, first Age, total int64, err error) Result {
	out := result(leaf, first, err)
	if out.Rows = total; err == nil && total == 0 {
		out.Outcome = Kept
	}
	return out
}

func (r *Retention) deleteHaul(ctx context.Context, leaf *Leaf, rows *Rows) (total int64, err error) {
	if err := r.waitForSlots(ctx, func() error { return nil }); err != nil {
		return 0, err
	}
	if r.Archive != nil {
		err := r.Archive.Store(ctx, leaf, rows.Age, func(w io.Writer) error { return r.Server.Copy(ctx, leaf, rows, w) })
		if errors.Is(err, errMoved) {
			return 0, err
		}
		if err != nil {
			return 0, &postponed{reason: ByArchive, err: fmt.Errorf("archive the rows: %w", err)}
		}
		if _, err := r.slots(ctx); err != nil { // a recovery may have begun meanwhile
			return 0, err
		}
	}
	for start := 0; start < len(rows.Places); start += r.Chunk {
		chunk := *rows
		chunk.Places = rows.Places[start:min(start+r.Chunk, len(rows.Places))]
		began := time.Now()
		n, err := r.Server.Delete(ctx, leaf, &chunk)
		total += n
		if errors.Is(err, errMoved) || err != nil && !errors.As(err, new(*InUseError)) {
			return total, fmt.Errorf("delete rows: %w", err)
		}
		if !r.Pause(ctx, (share-1)*time.Since(began)) {
			return total, context.Cause(ctx)
		}
	}
	return total, nil
}
