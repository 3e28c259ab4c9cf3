package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/replication"
)

// world is a server with one leaf, its writers, two slots and an archive. Before each call of the steps, other sessions
// act at random. When rows are removed, it checks that they could be.
type world struct {
	t     *testing.T
	rnd   *rand.Rand
	now   time.Time
	end   pglogrepl.LSN
	xid   int
	ids   int
	rows  []*row
	slots map[string]*replication.Slot
	leaf  Leaf
	file  uint32 // of the leaf; a rewrite makes another one

	received map[string]pglogrepl.LSN // by slot: what its client has received
	orphaned map[string]bool          // by slot: a person created it again or advanced it, and its client refuses to go on

	quiet    bool         // no other session acts, and no call fails
	locked   bool         // by the steps
	reading  bool         // a session reads the leaf
	looked   bool         // the steps have seen that none does
	asks     bool         // the steps ask meanwhile whether a writer waits
	waiting  bool         // a writer waits for the lock
	told     bool         // the steps know
	archived map[int]bool // by id
	removed  int
	broken   bool // the archive fails
	shrunk   bool // the server has lost WAL that slots have confirmed
	recovery string
	log      []string
}

// row is a version of a row.
type row struct {
	id            int
	place, writer string
	created       time.Time
	noTime        bool
	commit        pglogrepl.LSN // 0: its transaction is open
	locked        bool          // by another session
}

const keep = time.Hour

// always is what a slot has confirmed whose client is never behind.
const always = pglogrepl.LSN(1) << 40

var errServer = errors.New("the server has gone")

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// others lets other sessions act, and may fail the call.
func (w *world) others(call string) error {
	w.note("%s", call)
	if w.quiet {
		return nil
	}
	for w.rnd.IntN(3) > 0 {
		w.end += pglogrepl.LSN(8 + w.rnd.IntN(100))
		switch w.rnd.IntN(13) {
		case 0, 1: // a transaction writes into the leaf
			if w.locked {
				w.waiting = w.waiting || w.rnd.IntN(30) == 0
				continue
			}
			w.write(time.Duration(w.rnd.IntN(180)) * time.Minute)
		case 2, 3, 4: // transactions end
			for _, r := range w.rows {
				if r.commit == 0 && w.rnd.IntN(2) == 0 {
					w.commit(r.writer)
				}
			}
		case 5: // one is rolled back
			if n := len(w.rows); n > 0 && w.rnd.IntN(2) == 0 {
				writer := w.rows[w.rnd.IntN(n)].writer
				w.rows = slices.DeleteFunc(w.rows, func(r *row) bool { return r.commit == 0 && r.writer == writer })
			}
		case 6, 7, 8: // a slot confirms
			name := []string{"daemon", "other"}[w.rnd.IntN(2)]
			s := w.slots[name]
			if s == nil || s.WALStatus == "lost" {
				continue
			}
			if w.rnd.IntN(300) == 0 && !w.orphaned[name] { // a person advances it
				s.ConfirmedFlush, w.orphaned[name] = w.end, true
				w.note("%s is advanced to %d", name, w.end)
			}
			if w.rnd.IntN(300) == 0 { // a person drops it and creates it again
				w.slots[name] = &replication.Slot{Name: name, Kind: s.Kind, Database: s.Database, WALStatus: "reserved", RestartLSN: w.end, ConfirmedFlush: w.end + 8}
				w.end += 8
				w.orphaned[name] = true
				w.note("%s is created at %d", name, w.end)
				continue
			}
			if !w.orphaned[name] {
				if s.ConfirmedFlush = w.end; w.rnd.IntN(4) == 0 {
					s.RestartLSN = w.end
				}
				w.received[name] = w.end
				w.note("%s confirms %d", name, w.end)
			}
		case 9: // a poller marks a row, or a person locks it
			if len(w.rows) > 0 && !w.locked {
				r := w.rows[w.rnd.IntN(len(w.rows))]
				switch {
				case r.commit == 0:
				case w.rnd.IntN(2) == 0:
					r.locked = !r.locked
				default:
					w.write(w.now.Sub(r.created))
					w.rows = slices.DeleteFunc(w.rows, func(x *row) bool { return x == r })
				}
			}
		case 10:
			w.now = w.now.Add(time.Minute)
		case 11:
			w.reading = !w.reading && w.rnd.IntN(3) == 0
		case 12:
			w.rewrite()
		}
	}
	if w.rnd.IntN(60) == 0 {
		w.note("%s fails", call)
		return errServer
	}
	return nil
}

// write writes a row of some age, in a transaction that is open. It can have written the row before.
func (w *world) write(age time.Duration) {
	writer := strconv.Itoa(w.xid + 1)
	if n := len(w.rows); n > 0 && w.rows[n-1].commit == 0 && w.rnd.IntN(2) == 0 {
		writer = w.rows[n-1].writer
	} else {
		w.xid++
	}
	w.ids++
	w.rows = append(w.rows, &row{
		id: w.ids, place: w.freePlace(), writer: writer, created: w.now.Add(-age), noTime: w.rnd.IntN(200) == 0,
	})
	w.note("write %d at %s by %s, %s old", w.ids, w.rows[len(w.rows)-1].place, writer, age)
}

// commit ends a transaction.
func (w *world) commit(writer string) {
	for _, r := range w.rows {
		if r.commit == 0 && r.writer == writer {
			r.commit = w.end
		}
	}
	w.note("commit of %s at %d", writer, w.end)
}

// rewrite moves the rows, as VACUUM FULL and CLUSTER do, if no session uses the leaf.
func (w *world) rewrite() {
	if w.locked || w.reading || slices.ContainsFunc(w.rows, func(r *row) bool { return r.commit == 0 || r.locked }) {
		return
	}
	w.file++
	for n, i := range w.rnd.Perm(len(w.rows)) {
		w.rows[i].place = fmt.Sprintf("(0,%d)", n+1)
	}
	w.note("rewrite")
}

// freePlace is a place that no row has: often that of a row that has gone.
func (w *world) freePlace() string {
	for n := 1; ; n++ {
		place := fmt.Sprintf("(0,%d)", n)
		if !slices.ContainsFunc(w.rows, func(r *row) bool { return r.place == place }) {
			return place
		}
	}
}

func (w *world) age(since time.Time) (a Age) {
	a.Empty = true
	for _, r := range w.rows {
		if r.commit == 0 {
			continue
		}
		a.Empty = false
		a.Young = a.Young || r.noTime || !r.created.Before(since)
	}
	return a
}

func (w *world) Now(context.Context) (time.Time, error) { return w.now, w.others("now") }

func (w *world) Read(_ context.Context, _ *Leaf, since time.Time) (Age, error) {
	err := w.others("read")
	return w.age(since), err
}

func (w *world) Begin(context.Context, *Leaf) (Transaction, error) {
	if err := w.others("begin"); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(w.rows, func(r *row) bool { return r.commit == 0 || r.locked }) {
		return nil, &InUseError{errors.New("a writer")}
	}
	w.locked = true
	return &worldTx{w}, nil
}

func (w *world) WALEnd(context.Context) (pglogrepl.LSN, error) {
	end := w.end
	err := w.others("end of WAL")
	w.end += 8 // the server writes WAL
	return end, err
}

func (w *world) Slots(_ context.Context, names []string) (map[string]*replication.Slot, string, error) {
	err := w.others("slots")
	out := map[string]*replication.Slot{}
	for _, name := range names {
		if s := w.slots[name]; s != nil {
			now := *s
			if now.ServerLSN = now.ConfirmedFlush; w.shrunk {
				now.ServerLSN = w.end
			}
			out[name] = &now
		}
	}
	return out, w.recovery, err
}

func (w *world) Drop(context.Context, *Leaf) error { return errors.New("not here") }

// check checks that a row may be removed.
func (w *world) check(r *row) {
	w.removed++
	switch {
	case r.commit == 0:
		w.t.Errorf("the row at %s was removed, and its transaction is open", r.place)
	case r.noTime, !r.created.Before(w.now.Add(-keep)):
		w.t.Errorf("the row at %s was removed, and is %s old", r.place, w.now.Sub(r.created))
	case !w.archived[r.id]:
		w.t.Errorf("the row at %s was removed, and the archive does not have it", r.place)
	case w.recovery != "":
		w.t.Errorf("the row at %s was removed during a recovery", r.place)
	}
	for name, s := range w.slots {
		if w.received[name] < r.commit {
			w.t.Errorf("the row at %s was removed, was committed at %d, and the client of slot %s has received %d", r.place, r.commit, name, w.received[name])
		}
		if s.WALStatus == "lost" || s.Kind != "logical" || s.Database != "shop" {
			w.t.Errorf("the row at %s was removed, and slot %s is %+v", r.place, name, *s)
		}
	}
	if len(w.slots) < 2 {
		w.t.Errorf("the row at %s was removed without a slot", r.place)
	}
}

func (w *world) OldRows(_ context.Context, _ *Leaf, from, since time.Time, limit int) (*Rows, error) {
	var old []*row
	for _, r := range w.rows {
		if r.commit != 0 && !r.noTime && r.created.Before(since) && !r.created.Before(from) {
			old = append(old, r)
		}
	}
	slices.SortStableFunc(old, func(a, b *row) int { return a.created.Compare(b.created) })
	out := &Rows{File: w.file, Before: since}
	for _, r := range old[:min(limit, len(old))] {
		out.Places, out.Writers = append(out.Places, r.place), append(out.Writers, r.writer)
		out.Age.Newest = r.created
	}
	return out, w.others("old rows")
}

// versions are the rows that are still what was read.
func (w *world) versions(rows *Rows) (out []*row) {
	for _, r := range w.rows {
		if r.commit != 0 && slices.Contains(rows.Places, r.place) && slices.Contains(rows.Writers, r.writer) {
			out = append(out, r)
		}
	}
	return out
}

func (w *world) Delete(_ context.Context, _ *Leaf, rows *Rows) (n int64, err error) {
	if err := w.others("delete"); err != nil {
		return 0, err
	}
	if rows.File != w.file {
		return 0, errMoved
	}
	for _, r := range w.versions(rows) {
		if !r.locked {
			w.check(r)
			n++
			w.rows = slices.DeleteFunc(w.rows, func(x *row) bool { return x == r })
		}
	}
	return n, nil
}

func (w *world) Copy(_ context.Context, _ *Leaf, rows *Rows, out io.Writer) error {
	if rows.File != w.file {
		return errMoved
	}
	return write(out, w.versions(rows))
}

func write(out io.Writer, rows []*row) error {
	for _, r := range rows {
		if _, err := fmt.Fprintln(out, r.id); err != nil {
			return err
		}
	}
	return nil
}

// Store is the archive. It sometimes fails after it has read everything, or reads a part.
func (w *world) Store(_ context.Context, _ *Leaf, _ Age, write func(io.Writer) error) error {
	if err := w.others("archive"); err != nil {
		return err
	}
	var b bytes.Buffer
	if w.locked && !w.looked {
		w.t.Error("the archive got rows of a leaf that a session may read")
	}
	if err := write(&b); err != nil {
		return err
	}
	if !w.quiet && w.rnd.IntN(20) == 0 { // an upload takes long
		w.recovery = "daemon_recovery"
		w.note("a recovery begins")
	}
	if w.broken && w.rnd.IntN(2) == 0 {
		return errors.New("exit status 1")
	}
	for line := range strings.Lines(b.String()) {
		id, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return err
		}
		w.archived[id] = true
	}
	return nil
}

// beside is [Retention.Beside]. It asks once, before the other thing is done.
func (w *world) beside(ctx context.Context, ask, do func(context.Context) error) error {
	if err := ask(ctx); err != nil {
		return err
	}
	w.asks = true
	defer func() { w.asks = false }()
	return do(ctx)
}

type worldTx struct{ *world }

func (tx *worldTx) Read(_ context.Context, since time.Time, _ bool) (Age, error) {
	if !tx.asks {
		tx.t.Error("a leaf is read that is locked, and a writer can wait for the end")
	}
	err := tx.others("read in the transaction")
	return tx.age(since), err
}

func (tx *worldTx) InDemand(context.Context) (bool, error) {
	tx.told = tx.waiting
	return tx.waiting, nil
}

func (tx *worldTx) InUse(context.Context) (bool, error) {
	tx.looked = !tx.reading
	return tx.reading, nil
}

func (tx *worldTx) Copy(_ context.Context, out io.Writer) error {
	if !tx.asks {
		tx.t.Error("a leaf is copied that is locked, and a writer can wait for the end")
	}
	if err := tx.others("copy"); err != nil {
		return err
	}
	var committed []*row
	for _, r := range tx.rows {
		if r.commit != 0 {
			committed = append(committed, r)
		}
	}
	return write(out, committed)
}

func (tx *worldTx) Truncate(context.Context) error {
	if err := tx.others("truncate"); err != nil {
		return err
	}
	if tx.reading {
		return &InUseError{errors.New("a reader")}
	}
	if tx.told {
		tx.t.Error("the leaf was emptied although a session waits for it")
	}
	for _, r := range tx.rows {
		tx.check(r)
	}
	tx.rows = nil
	return nil
}

func (tx *worldTx) Commit(context.Context) error { tx.Rollback(); return nil }

func (tx *worldTx) Rollback() {
	tx.locked, tx.waiting, tx.told, tx.looked = false, false, false, false
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC), end: 1000, archived: map[int]bool{}, slots: map[string]*replication.Slot{},
		received: map[string]pglogrepl.LSN{}, orphaned: map[string]bool{},
	}
	for _, name := range []string{"daemon", "other"} {
		w.slots[name] = &replication.Slot{Name: name, Kind: "logical", Database: "shop", WALStatus: "reserved"}
	}
	switch w.rnd.IntN(20) {
	case 0:
		w.slots["daemon"].WALStatus, w.slots["daemon"].ConfirmedFlush = "lost", 1<<40
	case 1:
		w.slots["other"].Database = "another"
	case 2:
		w.slots["other"].Kind = "physical"
	case 3:
		delete(w.slots, "other")
	case 4:
		w.recovery = "daemon_recovery"
	case 5: // the server has lost WAL that the slot has confirmed, and writes other WAL
		w.shrunk, w.orphaned["daemon"] = true, true
		w.slots["daemon"].ConfirmedFlush = w.end + pglogrepl.LSN(w.rnd.IntN(1000))
	}
	w.broken = w.rnd.IntN(3) == 0
	for range w.rnd.IntN(6) {
		w.write(time.Duration(30+w.rnd.IntN(180)) * time.Minute)
		if w.rnd.IntN(4) > 0 {
			w.commit(w.rows[len(w.rows)-1].writer)
		}
	}
	return w
}

// TestSimRetention removes rows in random histories: writers, pollers, slots that do not move or are lost, an archive
// that fails, a server that goes away.
func TestSimRetention(t *testing.T) {
	first, n := uint64(rand.Uint32()), uint64(5_000)
	if text := os.Getenv("OUTBOXCDC_TEST_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, n = seed, 1
	}
	removed := map[bool]int{}
	for seed := first; seed < first+n; seed++ {
		w := newWorld(t, seed)
		chunks := w.rnd.IntN(2) == 0
		r := Retention{
			Server: w, Archive: w, Keep: keep, Slots: []string{"daemon", "other"}, Database: "shop", Chunk: 1 + w.rnd.IntN(3), SlotWait: time.Second,
			Beside: w.beside,
			Pause:  func(context.Context, time.Duration) bool { _ = w.others("pause"); return true },
		}
		for range 7 {
			if chunks {
				r.Delete(t.Context(), &w.leaf)
			} else {
				r.Empty(t.Context(), &w.leaf)
			}
		}
		removed[chunks] += w.removed
		if t.Failed() {
			t.Fatalf("OUTBOXCDC_TEST_SEED=%d\n%s", seed, strings.Join(w.log, "\n"))
		}
	}
	if removed[true] < int(n)/10 || removed[false] < int(n)/20 {
		if n > 1 {
			t.Errorf("removed: %v of %d histories: the histories test nothing", removed, n)
		}
	}
}

// TestBlocked has faults that last: nothing is removed meanwhile, with the reason, and everything afterwards.
func TestBlocked(t *testing.T) {
	for _, c := range []struct {
		name    string
		lasts   time.Duration
		chunks  bool
		begin   func(*world)
		end     func(*world)
		reason  Reason
		slot    string
		removed int
	}{
		{"a transaction is open", time.Hour, false, func(w *world) { w.write(2 * time.Hour) }, func(w *world) { w.rows[1].commit = w.end }, ByLock, "", 2},
		{"Kafka is away", 7 * 24 * time.Hour, false, func(w *world) { w.slots["daemon"].ConfirmedFlush = 1 }, func(w *world) { w.slots["daemon"].ConfirmedFlush = always }, BySlot, "daemon", 1},
		{"Kafka is away, rows", 7 * 24 * time.Hour, true, func(w *world) { w.slots["daemon"].ConfirmedFlush = 1 }, func(w *world) { w.slots["daemon"].ConfirmedFlush = always }, BySlot, "daemon", 1},
		{"another slot does not move", 7 * 24 * time.Hour, false, func(w *world) { w.slots["other"].ConfirmedFlush = 1 }, func(w *world) { w.slots["other"].ConfirmedFlush = always }, BySlot, "other", 1},
		{"another slot does not move, rows", 7 * 24 * time.Hour, true, func(w *world) { w.slots["other"].ConfirmedFlush = 1 }, func(w *world) { w.slots["other"].ConfirmedFlush = always }, BySlot, "other", 1},
		{"a slot was just created", time.Hour, false, func(w *world) { w.slots["other"].ConfirmedFlush = w.end }, func(w *world) { w.slots["other"].ConfirmedFlush = always }, BySlot, "other", 1},
		{"a slot is ahead of its server", time.Hour, false, func(w *world) { w.shrunk = true }, func(w *world) { w.shrunk = false }, BySlot, "daemon", 1},
		{"a recovery has not finished", 24 * time.Hour, false, func(w *world) { w.recovery = "daemon_recovery" }, func(w *world) { w.recovery = "" }, BySlot, "daemon_recovery", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newQuietWorld(t)
			r := quietRetention(w)
			r.Pause = func(_ context.Context, d time.Duration) bool { w.now = w.now.Add(d); return true }
			run := r.Empty
			if c.chunks {
				run = r.Delete
			}
			c.begin(w)
			for end := w.now.Add(c.lasts); w.now.Before(end); w.now = w.now.Add(time.Minute) {
				if res := run(t.Context(), &w.leaf); res.Outcome != Postponed || res.Reason != c.reason || res.Slot != c.slot || res.Text == "" || w.removed > 0 {
					t.Fatalf("%+v; %d rows removed", res, w.removed)
				}
			}
			c.end(w)
			if res := run(t.Context(), &w.leaf); res.Outcome != Emptied || w.removed != c.removed {
				t.Errorf("afterwards: %+v; %d rows removed, want %d", res, w.removed, c.removed)
			}
		})
	}
}

// TestAdvanced has a slot that no client reads: a person advances it while it is waited for.
func TestAdvanced(t *testing.T) {
	for _, chunks := range []bool{false, true} {
		w := newQuietWorld(t)
		w.slots["other"].ConfirmedFlush, w.received["other"] = 1, 1
		pauses := 0
		r := quietRetention(w)
		r.Pause = func(context.Context, time.Duration) bool {
			if pauses++; pauses == 2 {
				w.slots["other"].ConfirmedFlush = w.end
			}
			return true
		}
		run := r.Empty
		if chunks {
			run = r.Delete
		}
		if res := run(t.Context(), &w.leaf); res.Outcome != Postponed || res.Reason != BySlot || res.Slot != "other" || w.removed > 0 || pauses < 3 {
			t.Errorf("%+v; %d rows removed, %d pauses", res, w.removed, pauses)
		}
	}
}

// newQuietWorld has one old row that both slots have confirmed, and no other session acts.
func newQuietWorld(t *testing.T) *world {
	w := &world{
		t: t, quiet: true, rnd: rand.New(rand.NewPCG(1, 1)), now: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC), end: 1000, archived: map[int]bool{}, slots: map[string]*replication.Slot{},
		received: map[string]pglogrepl.LSN{}, orphaned: map[string]bool{},
	}
	for _, name := range []string{"daemon", "other"} {
		w.slots[name] = &replication.Slot{Name: name, Kind: "logical", Database: "shop", WALStatus: "reserved", ConfirmedFlush: always}
		w.received[name] = always
	}
	w.rows = []*row{{place: "(0,1)", writer: "1", created: w.now.Add(-2 * keep), commit: 500}}
	return w
}

func quietRetention(w *world) Retention {
	return Retention{
		Server: w, Archive: w, Keep: keep, Slots: []string{"daemon", "other"}, Database: "shop", Chunk: 1, SlotWait: 300 * time.Millisecond,
		Beside: w.beside,
	}
}
