package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A COPY of very many rows, hundreds of which share one LSN. The daemon is killed repeatedly inside that one
// transaction (in the mode that begins it again), each time some while after it has begun to deliver, and may confirm
// nothing of it. Left alone in the end it delivers all of it.
func TestKill9InsideACopy(t *testing.T) {
	t.Parallel()
	const keys = 100
	rows, kills := fullOrShort(1_000_000, 30_000), fullOrShort(10, 3)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: heavyPostgres(t), partitions: 6})
	o.proves("F47", "COPY of %d rows in one transaction, kill -9 %d times within it%s", rows, kills, fullOrShort(", each after two seconds of delivery", ""))
	s := o.sample()
	s.testJudges = true // it would read all of it
	counted := newCounter(t, o, rows, keys)
	copyNumbered(o, rows, keys)
	end := o.walFlushed()
	for n := range kills {
		// Nothing is confirmed by accident: the first update that moves the slot is sent after an interval.
		r := o.startStreaming(atLeastOnce, "OUTBOXCDC_TUNING_STATUS_INTERVAL="+fullOrShort("1s", "20s"))
		killInside(t, rnd, counted, rows)
		r.kill9()
		got, records := counted.progress()
		t.Logf("kill %d after %d records, with %d rows; the slot confirms %s", n+1, records, got, r.confirmed)
		switch commit := counted.commitLSN(); {
		case r.confirmed > commit && got < rows:
			t.Fatalf("the slot confirms %s; %d of the rows of the transaction committed at %s are in Kafka", r.confirmed, got, commit)
		case r.confirmed > commit:
			t.Fatalf("kill %d was too late: everything was delivered and confirmed", n+1)
		}
	}
	begin := time.Now()
	o.start(atLeastOnce)
	counted.awaitAll(fullOrShort(4*time.Minute, patience))
	o.proof.Recovery = time.Since(begin)
	o.awaitConfirmed(end, recoverIn)
	v := counted.judge(s, end)
	o.repeatsAtMost(v, kills*rows, "each start delivers the transaction from its beginning: once for each start, which is checked row by row")
}

// killInside returns at a moment within the delivery: two seconds after it has begun or, in a short delivery, after a
// random number of records.
func killInside(t *testing.T, rnd *rand.Rand, counted *counter, rows int) {
	t.Helper()
	_, had := counted.progress()
	most := 1
	if !isProving() {
		most = 1 + rnd.IntN(rows/2)
	}
	await(t, 2*time.Minute, fmt.Sprintf("%d records more", most), func() error {
		_, records := counted.progress()
		return waitFor(records >= had+most)
	})
	if isProving() {
		time.Sleep(2 * time.Second) // the catalogue's figure
	}
}

// copyNumbered commits numbered rows by one COPY.
func copyNumbered(o *outbox, rows, keys int) {
	o.t.Helper()
	in, out := io.Pipe()
	go func() {
		w := bufio.NewWriterSize(out, 1<<16)
		for n := 1; n <= rows; n++ {
			fmt.Fprintf(w, "%s\torder\tkey-%d\tcopied\t{\"n\": %d}\t{}\t%d\n", numberedID(n), n%keys, n, n)
		}
		_ = out.CloseWithError(w.Flush())
	}()
	begin := time.Now()
	must(o.t, o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().CopyFrom(ctx, in, copyInto)
		return err
	}))
	o.t.Logf("copied in %v", time.Since(begin).Round(time.Millisecond))
}
