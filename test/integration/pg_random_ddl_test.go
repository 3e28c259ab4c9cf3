package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The outbox's owner makes random alterations in random sequences, with the daemon running, stopped or killed in
// between. Every committed row is delivered, or the daemon stops and names the alteration; it never confirms an
// undelivered row silently.
func TestRandomDDL(t *testing.T) {
	sequences := fullOrShort(125, 3)
	for lane, major := range []string{"14", "16", "17", "18"} {
		t.Run(fmt.Sprint("PostgreSQL ", major), func(t *testing.T) {
			pg := sharedPostgres(t, major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			root := lane != 1 // one lane publishes by leaves
			o.proves("F43 F45 F46", "%d random sequences of DDL by the owner, publish_via_partition_root = %v, the daemon running, stopped or killed in between", sequences, root)
			o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', ` + fmt.Sprintf(viaRoot, root) + `)`)
			o.exec(`CREATE SCHEMA aside`)
			a := &alteredOutbox{outbox: o, rnd: newRand(t), env: o.deduplicating(fence), root: root, leaves: []leaf{{name: "leaf_1"}}}
			a.lock.url = o.pg.SuperURL(o.name)
			t.Cleanup(a.lock.close)
			a.insert()
			a.settle() // its position record has the catalogs' state: without one, the first start has nothing to compare with
			for range sequences {
				a.sequence()
			}
			o.outcome("%d rows committed; %d stops, at which %d rows were waiting", len(a.committed), a.stops, len(a.reported))
		})
	}
}

// alteredOutbox is an outbox under random alterations.
type alteredOutbox struct {
	*outbox
	rnd  *rand.Rand
	env  []string
	root bool // published via the root
	r    *relay
	lock session // holds a lock sometimes

	leaves    []leaf // attached
	detached  []leaf
	last      int // number of the newest leaf; it has the rows with n from 100 times that
	renamed   bool
	withdrawn bool // from the publication
	committed []string
	reported  map[string]bool // reported as not delivered when the daemon stopped
	stops     int
	done      []string // statements of this sequence
}

type leaf struct {
	name     string
	number   int
	unlogged bool
}

func (a *alteredOutbox) sequence() {
	a.t.Helper()
	a.done = nil
	for range 2 + a.rnd.IntN(5) {
		switch a.rnd.IntN(6) {
		case 0:
			a.start()
		case 1:
			a.stop(syscall.SIGTERM)
		case 2:
			a.stop(syscall.SIGKILL)
		}
		a.insert()
		a.alter()
		a.insert()
	}
	a.settle()
	a.unlock()
}

func (a *alteredOutbox) unlock() {
	a.t.Helper()
	must(a.t, a.lock.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err
	}))
}

func (a *alteredOutbox) start() {
	if a.r == nil {
		a.note("start")
		a.r = a.outbox.start(a.env...)
	}
}

func (a *alteredOutbox) stop(sig syscall.Signal) {
	if a.r == nil {
		return
	}
	a.note("stop with %v", sig)
	if !a.r.proc.Exited() { // else it has found an alteration: the next start reports it
		a.r.endExpected = true
		_ = a.r.proc.Signal(sig)
		a.r.awaitExit(patience)
	}
	a.r = nil
	a.awaitSlotFree()
}

func (a *alteredOutbox) note(format string, args ...any) {
	a.done = append(a.done, fmt.Sprintf(format, args...))
}

// do executes a statement of the owner; the server may refuse it.
func (a *alteredOutbox) do(format string, args ...any) bool {
	sql := fmt.Sprintf(format, args...)
	err := a.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET lock_timeout = '200ms'; "+sql)
		return err
	})
	a.note("%s: %v", sql, err)
	return err == nil
}

// insert commits some rows into attached partitions.
func (a *alteredOutbox) insert() {
	if len(a.leaves) == 0 {
		return
	}
	table := "outbox"
	if a.renamed {
		table = "moved"
	}
	var ids []string
	var values []string
	for range 1 + a.rnd.IntN(3) {
		l, id := a.leaves[a.rnd.IntN(len(a.leaves))], newID(a.rnd)
		ids = append(ids, id)
		values = append(values, fmt.Sprintf("('%s', 'order', 'k', 'added', '{}', '{}', %d)", id, l.number*100+a.rnd.IntN(100)))
	}
	if a.do(`INSERT INTO %s (id, aggregate_type, aggregate_id, event_type, payload, headers, n) VALUES %s`, table, strings.Join(values, ", ")) {
		a.committed = append(a.committed, ids...)
	}
}

// alter executes one random change.
func (a *alteredOutbox) alter() {
	table := "outbox"
	if a.renamed {
		table = "moved"
	}
	some := func() int { return a.rnd.IntN(len(a.leaves)) }
	switch what := a.rnd.IntN(14); {
	case what < 3 || len(a.leaves) == 0:
		a.attach(table, "")
	case what == 3:
		i := some()
		if l := a.leaves[i]; !l.unlogged && a.do(`ALTER TABLE %s DETACH PARTITION %s`, table, l.name) {
			a.leaves, a.detached = slices.Delete(a.leaves, i, i+1), append(a.detached, l)
		}
	case what == 4: // no other transaction is open that could write into it
		i := some()
		if l := a.leaves[i]; !l.unlogged && a.do(`ALTER TABLE %s DETACH PARTITION %s CONCURRENTLY`, table, l.name) {
			a.leaves, a.detached = slices.Delete(a.leaves, i, i+1), append(a.detached, l)
		}
	case what == 5 && len(a.detached) > 0:
		i := a.rnd.IntN(len(a.detached))
		if l := a.detached[i]; a.do(`ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%d) TO (%d)`, table, l.name, l.number*100, l.number*100+100) {
			a.detached, a.leaves = slices.Delete(a.detached, i, i+1), append(a.leaves, l)
		}
	case what == 6: // its rows are not delivered yet
		i := some()
		if l := a.leaves[i]; !l.unlogged && a.do(`DROP TABLE %s`, l.name) {
			a.leaves = slices.Delete(a.leaves, i, i+1)
			if a.rnd.IntN(2) == 0 && a.do(`CREATE TABLE %s PARTITION OF %s FOR VALUES FROM (%d) TO (%d)`, l.name, table, l.number*100, l.number*100+100) {
				a.leaves = append(a.leaves, l)
			}
		}
	case what == 7:
		l := &a.leaves[some()]
		if name := fmt.Sprint("other_", a.last, "_", a.rnd.IntN(1000)); !strings.Contains(l.name, ".") && a.do(`ALTER TABLE %s RENAME TO %s`, l.name, name) {
			l.name = name
		}
	case what == 8:
		if l := &a.leaves[some()]; !strings.Contains(l.name, ".") && a.do(`ALTER TABLE %s SET SCHEMA aside`, l.name) {
			l.name = "aside." + l.name
		}
	case what == 9:
		a.attach(table, "UNLOGGED")
	case what == 10 && a.root: // to list leaves as published, PostgreSQL locks them (docs/sources.md)
		_ = a.lock.do(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET lock_timeout = '200ms'; BEGIN; LOCK TABLE "+a.leaves[some()].name+" IN ACCESS EXCLUSIVE MODE")
			a.note("a lock: %v", err)
			return nil
		})
	case what == 11:
		if a.withdrawn {
			a.withdrawn = !a.do(`ALTER PUBLICATION outboxcdc ADD TABLE %s`, table)
		} else {
			a.withdrawn = a.do(`ALTER PUBLICATION outboxcdc DROP TABLE %s`, table)
		}
	case what == 12:
		if to := map[string]string{"outbox": "moved", "moved": "outbox"}[table]; a.do(`ALTER TABLE %s RENAME TO %s`, table, to) {
			a.renamed = !a.renamed
		}
	default:
		a.do(`TRUNCATE %s`, a.leaves[some()].name)
	}
}

func (a *alteredOutbox) attach(table, kind string) {
	a.last++
	l := leaf{name: fmt.Sprint("leaf_", 1+a.last), number: a.last, unlogged: kind != ""}
	if a.do(`CREATE %s TABLE %s PARTITION OF %s FOR VALUES FROM (%d) TO (%d)`, kind, l.name, table, l.number*100, l.number*100+100) {
		a.leaves = append(a.leaves, l)
	}
}

// settle waits until everything is confirmed or the daemon has stopped. If confirmed, every committed row must have
// been delivered. If stopped, the test does as an operator what the daemon asks for, and the daemon continues.
func (a *alteredOutbox) settle() {
	a.t.Helper()
	a.start()
	for stops := 0; ; stops++ {
		if stops == 6 {
			a.t.Fatalf("it stops repeatedly: %s\n%s", lastLine(a.r.log), strings.Join(a.done, "\n"))
		}
		end := a.walFlushed()
		await(a.t, patience, "everything to be confirmed, or a stop", func() error {
			switch {
			case a.r.proc.Exited():
				return nil
			case a.confirmed() >= end:
				return nil
			}
			return fmt.Errorf("confirmed %s of %s; %s\n%s", a.confirmed(), end, a.situation(), strings.Join(a.done, "\n"))
		})
		if !a.r.proc.Exited() {
			a.verifyDelivered()
			return
		}
		a.resolveStop(stops)
	}
}

// verifyDelivered compares the delivered with the committed rows.
func (a *alteredOutbox) verifyDelivered() {
	a.t.Helper()
	await(a.t, patience, "every row to be delivered", func() error {
		for _, id := range a.follow.absentIDs(a.committed) {
			if !a.reported[id] {
				return errors.Join(a.checkRelays(), fmt.Errorf("row %s was confirmed silently\n%s", id, strings.Join(a.done, "\n")))
			}
		}
		return nil
	})
}

// resolveStop does what an operator does after a stop: read the message, undo the alteration, compare table and topics,
// adopt.
func (a *alteredOutbox) resolveStop(before int) {
	a.t.Helper()
	exit, words := a.r.exit(), lastLine(a.r.log)
	if exit != 79 && exit != 78 || !strings.Contains(words, "remedy: ") && !strings.Contains(words, "outbox") {
		a.t.Fatalf("exit code %d: %s\n%s", exit, words, strings.Join(a.done, "\n"))
	}
	a.note("STOP %d: %s", exit, words)
	a.stops++
	a.awaitSlotFree()
	a.unlock()
	if a.renamed {
		a.do(`ALTER TABLE moved RENAME TO outbox`)
		a.renamed = false
	}
	if a.withdrawn {
		a.do(`ALTER PUBLICATION outboxcdc ADD TABLE outbox`)
		a.withdrawn = false
	}
	for i := len(a.leaves) - 1; i >= 0; i-- {
		if l := a.leaves[i]; l.unlogged && a.do(`DROP TABLE %s`, l.name) {
			a.leaves = slices.Delete(a.leaves, i, i+1)
		}
	}
	if before > 0 { // the waiting rows cannot be decoded: they are skipped, after the comparison
		a.do(`SELECT pg_replication_slot_advance('%s', pg_current_wal_flush_lsn())`, a.name)
	}
	if a.reported == nil {
		a.reported = map[string]bool{}
	}
	// A reported record that the follower has not seen yet counts too.
	for _, id := range a.follow.absentIDs(a.committed) {
		a.reported[id] = true
	}
	a.adopt(a.env, 0)
	a.r = a.outbox.start(a.env...)
}
