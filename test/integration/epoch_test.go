package integration

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// A backup is restored without the archive, after one or two failovers. The new timeline has a number that is lower
// than that of the lost history, or the same one. After recover, what the daemon sends comes later by position than
// what it has sent before, in each partition.
func TestEpochAfterRestore(t *testing.T) {
	t.Parallel()
	for _, promotions := range []int{1, 2} {
		t.Run(fmt.Sprint(promotions), func(t *testing.T) {
			o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
			env := o.deduplicating(fence)
			o.deliver(env, "order", "k", 1, 5)
			older := o.copyServer()
			for range promotions {
				o.promoteAlone()
			}
			r := o.startStreaming(env...)
			o.insert("order", "k", 6, 5)
			o.awaitArrived(patience)
			o.awaitConfirmed(o.walFlushed(), patience)
			r.term()
			o.restoreWithoutArchive(older)
			o.insert("order", "k", 6, 3)
			if promotions == 1 {
				o.skipWAL(3) // past what Kafka has
			}
			r = o.start(env...)
			is(t, "exit code", r.awaitExit(patience), 79)
			o.recover(env, 0, "--this-server")
			o.startStreaming(env...)
			o.insert("order", "k", 9, 20)
			o.awaitArrived(patience)
			o.checkEpochs()
		})
	}
}

// checkEpochs compares the positions of the daemon's records in each partition, as consumers do.
func (o *outbox) checkEpochs() {
	o.t.Helper()
	all := o.readAll()
	slices.SortStableFunc(all, func(x, y kafkatest.Record) int {
		return cmp.Or(cmp.Compare(x.Partition, y.Partition), cmp.Compare(x.Offset, y.Offset))
	})
	type header struct {
		pos checkpoint.Position
		checkpoint.Origin
	}
	last, lower, epochs := map[int32]header{}, 0, map[uint32]bool{}
	for _, rec := range all {
		if _, sent := headerOf(rec, "outboxcdc-recovered"); sent > 0 {
			continue
		}
		text, _ := headerOf(rec, "outboxcdc-position")
		pos, origin, err := checkpoint.ParseHeader(text)
		must(o.t, err)
		if origin.Slot != o.name || origin.Database == 0 {
			o.t.Errorf("%s does not name slot %s", text, o.name)
		}
		before, ok := last[rec.Partition]
		if order, same := checkpoint.Order(before.pos, before.Origin, pos, origin); ok && (!same || order >= 0) {
			o.t.Errorf("%s comes after %s", text, checkpoint.FormatHeader(before.pos, before.Origin))
		}
		if ok && pos.Timeline <= before.pos.Timeline && origin.Epoch > before.Epoch {
			lower++
		}
		last[rec.Partition], epochs[origin.Epoch] = header{pos, origin}, true
	}
	if lower == 0 || len(epochs) != 3 {
		o.t.Errorf("%d records are on a timeline that is not higher; %d epochs, want the first, that of the failover and that of recover", lower, len(epochs))
	}
}

// promoteAlone makes the server begin a new timeline, as a promotion does.
func (o *outbox) promoteAlone() {
	o.t.Helper()
	ctx := testContext(o.t)
	_, err := o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	o.admin.close()
	must(o.t, os.WriteFile(o.pg.DataDir+"/standby.signal", nil, 0o644))
	must(o.t, o.pg.StartAgain(ctx))
	o.exec(`SELECT pg_promote()`)
	o.awaitPromoted()
	o.exec(`CHECKPOINT`)
}

// restoreWithoutArchive replaces the data directory by a copy, which begins the timeline after its own.
func (o *outbox) restoreWithoutArchive(older string) {
	o.t.Helper()
	ctx := testContext(o.t)
	_, err := o.pg.Stop(ctx, pgtest.Fast)
	must(o.t, err)
	o.admin.close()
	o.shell("mv", o.pg.DataDir, o.pg.DataDir+".gone")
	o.shell("mv", older, o.pg.DataDir)
	must(o.t, os.WriteFile(o.pg.DataDir+"/recovery.signal", nil, 0o644))
	must(o.t, o.pg.AppendConf("restore_command = 'false'"))
	must(o.t, o.pg.StartAgain(ctx))
	o.awaitPromoted()
}
