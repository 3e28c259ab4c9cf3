package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Pairs of transactions have adjacent commit records: the second commits at the very position where the first ends, so
// a slot that has confirmed the first is exactly at the second. For some pairs the daemon is killed between the two, at
// a random moment or once the first is confirmed. None may be skipped, and no confirmed one repeated. The positions in
// Kafka show whether two really were adjacent.
func TestKill9BetweenAdjacentCommits(t *testing.T) {
	t.Parallel()
	pairs, kills := fullOrShort(400, 60), fullOrShort(40, 8)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"autovacuum": "off"})}) // no other session writes WAL
	o.proves("F84", "%d pairs of transactions with adjacent commit records, kill -9 between the two of %d pairs, half of these with the first just confirmed", pairs, kills)
	o.boundRepeats(o.adjacentCommits(rnd, pairs, kills, atLeastOnce))
	o.outcome(unconfirmedOnly)
}

// I12: the same with a deduplicating daemon, which repeats nothing.
func TestDeduplicatedAdjacentCommits(t *testing.T) {
	t.Parallel()
	pairs, kills := fullOrShort(400, 30), fullOrShort(40, 6)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, map[string]string{"autovacuum": "off"})})
	o.proves("F84", "%d pairs of transactions with adjacent commit records, kill -9 of a deduplicating daemon between the two of %d pairs, half of these with the first just confirmed", pairs, kills)
	o.repeatsAtMost(o.adjacentCommits(rnd, pairs, kills, o.deduplicating(fence)...), 0, noneInFlight)
}

// adjacentCommits writes the pairs and kills the daemons.
func (o *outbox) adjacentCommits(rnd *rand.Rand, pairs, kills int, env ...string) *verdict {
	t := o.t
	t.Helper()
	o.sample()
	a, b := openSession(t, o), openSession(t, o)
	killAt := map[int]bool{} // pair → once the first is confirmed
	for n, i := range rnd.Perm(pairs)[:kills] {
		killAt[i] = n%2 == 0
	}
	env = append(env, "OUTBOXCDC_TUNING_STATUS_INTERVAL=50ms")
	r := o.startStreaming(env...)
	ends := map[string]pglogrepl.LSN{} // id of a pair's second → where the first ended
	exact := 0
	// A record of the server's background writer can come between the two, more often on a slow machine: then further
	// pairs follow.
	for i := 0; i < pairs || i < 3*pairs && exact < kills/4; i++ {
		first, second := newID(rnd), newID(rnd)
		commitFirst, commitSecond := prepareBoth(t, a, b, i, first, second)
		end := commitFirst()
		o.ledger.add([]string{first}, end)
		ends[second] = end
		settled, kill := killAt[i]
		if i >= pairs && i%4 == 0 {
			settled, kill = true, true
		}
		if kill {
			if settled {
				o.awaitConfirmed(end, patience)
			}
			r.kill9()
			if r.confirmed == end {
				exact++
			}
			o.ledger.add([]string{second}, commitSecond())
			r = o.startStreaming(env...)
			continue
		}
		o.ledger.add([]string{second}, commitSecond())
	}
	o.awaitHealed()
	v := o.verify(patience)
	adjacent := 0
	for id, end := range ends {
		if v.at[id].commit == end {
			adjacent++
		}
	}
	o.outcome("%d pairs were adjacent; at %d kills the slot was exactly between the two", adjacent, exact)
	if adjacent < pairs/2 || exact < kills/4 {
		t.Errorf("only %d of %d pairs were adjacent, and at %d kills the slot was between the two, want %d: this proves little", adjacent, len(ends), exact, kills/4)
	}
	return v
}

// prepareBoth writes a row in each of two transactions and returns functions to commit them; each returns the
// position after its commit. Every other pair is two sessions, the rest one session with two prepared transactions.
func prepareBoth(t *testing.T, a, b *pgx.Conn, i int, first, second string) (commitFirst, commitSecond func() pglogrepl.LSN) {
	t.Helper()
	ctx := testContext(t)
	run := func(conn *pgx.Conn, sql string, args ...any) {
		t.Helper()
		_, err := conn.Exec(ctx, sql, args...)
		must(t, err)
	}
	end := func(conn *pgx.Conn, sql string) func() pglogrepl.LSN {
		return func() pglogrepl.LSN {
			t.Helper()
			run(conn, sql)
			lsn, err := scanLSN(conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text"))
			must(t, err)
			return lsn
		}
	}
	insert := insertInto + `($1, 'order', $2, 'added', '{}', '{}', $3)`
	if i%2 == 0 {
		run(a, "BEGIN")
		run(a, insert, first, fmt.Sprint("a-", i%7), i)
		run(b, "BEGIN")
		run(b, insert, second, fmt.Sprint("b-", i%7), i)
		return end(a, "COMMIT"), end(b, "COMMIT")
	}
	for _, x := range []struct{ id, key string }{{first, "c-"}, {second, "d-"}} {
		run(a, "BEGIN")
		run(a, insert, x.id, fmt.Sprint(x.key, i%7), i)
		run(a, "PREPARE TRANSACTION '"+x.id+"'")
	}
	return end(a, "COMMIT PREPARED '"+first+"'"), end(a, "COMMIT PREPARED '"+second+"'")
}

// openSession opens a connection of the superuser, closed at the end of the test.
func openSession(t *testing.T, o *outbox) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), o.pg.SuperURL(o.name))
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // interrupts a running statement
		if err := conn.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Log(err)
		}
	})
	return conn
}
