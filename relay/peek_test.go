package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/walsendertest"
	"github.com/outboxcdc/outboxcdc/replication"
)

// peekBench is a peek at the fake Postgres; what it says to the server may be in front of every acknowledgement.
type peekBench struct {
	*bench
	Peek
	ids []string
}

func peekBubble(t *testing.T, f func(*peekBench)) {
	t.Helper()
	bubble(t, testConfig(), func(b *bench) {
		p := &peekBench{bench: b}
		p.Peek = Peek{Router: newRouter(b), WalSenderTimeout: 15 * time.Second, Show: func(v *Peeked) error {
			what := string(v.Record.ID)
			if v.Poison != nil {
				what += " " + string(v.Poison.Cause) + " " + string(v.Policy)
			}
			p.ids = append(p.ids, what)
			return nil
		}}
		f(p)
	})
}

func (p *peekBench) open() *stream {
	p.Helper()
	st, err := p.pg.Open(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	p.ackAll()
	st.OnDrained(func() {})
	return st.(*stream)
}

// ackAll makes the fake take every position, as a slot without a Kafka behind it does.
func (p *peekBench) ackAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.pg.wal {
		for _, id := range t.ids {
			p.kafka.acked[id] = true
		}
	}
}

func (p *peekBench) shown(want ...string) {
	p.Helper()
	if !slices.Equal(p.ids, want) {
		p.Errorf("shown are %q, want %q", p.ids, want)
	}
}

// It ends where the WAL ended at the start, with what was committed later left out; poison is shown and stops nothing.
func TestPeekEnds(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		p.pg.commit("a", "!b")
		last := p.pg.commit("c")
		st := p.open()
		p.pg.edit(func() { st.id.WALEnd, p.pg.end = st.id.WALEnd+0x10, p.pg.end+0x20 }) // something else of the WAL
		p.pg.commit("later")
		p.Poison.Policy = DeadLetter
		seen, err := p.Run(p.Context(), st)
		if err != nil || !seen.Whole || seen.Events != 3 || seen.Poison != 1 || seen.UpTo != last.End {
			p.Errorf("%+v %v", seen, err)
		}
		p.shown("a", "b null_key dead_letter", "c")
	})
}

// Messages and updates are what they are to the daemon: events of the same ordinals, poison, or nothing.
func TestPeekMessagesAndUpdates(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		withMessages(p.bench)
		p.Router, p.MessagePrefix = p.relay.router, messagePrefix
		show := p.Show
		p.Show = func(v *Peeked) error {
			err := show(v)
			p.ids[len(p.ids)-1] += fmt.Sprint(" ", v.Position.Ordinal)
			return err
		}
		p.pg.begin("a", "^b", "*c", "*!d")
		p.pg.raw("", walsendertest.Message(true, "other", "{}"))
		p.pg.raw("", walsendertest.Message(false, messagePrefix, "{}"))
		p.pg.more("e")
		p.pg.finish()
		if seen, err := p.Run(p.Context(), p.open()); err != nil || !seen.Whole || seen.Events != 4 || seen.Poison != 1 {
			p.Errorf("%+v %v", seen, err)
		}
		p.shown("a 0", "c 2", " bad_payload stop 3", "e 4")
	})
}

// Foreign WAL at the end is passed by a keepalive that was asked for; a keepalive inside a transaction says nothing.
func TestPeekKeepalives(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		p.pg.begin("a")
		p.pg.edit(func() { p.pg.flushed = 0x9000 })
		st := p.open()
		done := make(chan Peeks, 1)
		go func() {
			seen, err := p.Run(p.Context(), st)
			if err != nil {
				p.Error(err)
			}
			done <- seen
		}()
		p.pg.edit(func() { st.push(replication.Message{ServerWALEnd: 0x9000}) }) // as a server never would
		p.sleep(3 * time.Second)
		p.shown("a")
		p.pg.finish()
		p.sleep(time.Second)
		if len(done) > 0 {
			p.Fatal("it ended in front of where the WAL ended")
		}
		for _, u := range st.updates() {
			if !u.reply {
				p.Error("a status update does not ask how far the server is")
			}
		}
		p.pg.edit(func() { p.pg.end = 0x9000 })
		p.pg.keepalive(0, false)
		if seen := <-done; !seen.Whole || seen.UpTo != 0x9000 {
			p.Errorf("%+v", seen)
		}
	})
}

// Nothing waits: it ends at once.
func TestPeekNothing(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		seen, err := p.Run(p.Context(), p.open())
		if err != nil || !seen.Whole || seen.Events != 0 {
			p.Errorf("%+v %v", seen, err)
		}
	})
}

func TestPeekLimit(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		p.pg.commit("a", "b", "c")
		p.Limit = 2
		seen, err := p.Run(p.Context(), p.open())
		if err != nil || seen.Whole || seen.Events != 2 {
			p.Errorf("%+v %v", seen, err)
		}
		p.shown("a", "b")
	})
}

// Whoever follows moves the copy to what was shown, and no further, and ends when told to.
func TestPeekFollows(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		p.pg.commit("a")
		st := p.open()
		p.Follow = true
		ctx, stop := context.WithCancel(p.Context())
		done := make(chan error, 1)
		go func() { _, err := p.Run(ctx, st); done <- err }()
		p.sleep(time.Minute)
		p.shown("a")
		at := p.pg.begin("b")
		p.ackAll()
		p.sleep(time.Minute)
		p.shown("a", "b")
		if got := st.position(); got > at.Commit {
			p.Errorf("the copy is at %s, inside the transaction at %s", got, at.Commit)
		}
		p.pg.finish()
		p.sleep(2 * time.Second)
		if got := st.position(); got != at.End {
			p.Errorf("the copy is at %s, want %s", got, at.End)
		}
		if looks := len(p.pg.looked()); looks < 7 {
			p.Errorf("the publication was looked at %d times in two minutes", looks)
		}
		stop()
		synctest.Wait()
		if err := <-done; err != nil {
			p.Error(err)
		}
	})
}

// Somebody reads the output slowly: the server hears of us all the same, and its silence is none.
func TestPeekSlowReader(t *testing.T) {
	peekBubble(t, func(p *peekBench) {
		p.pg.commit("a", "b")
		show := p.Show
		p.Show = func(v *Peeked) error {
			time.Sleep(time.Hour)
			return show(v)
		}
		st := p.open()
		if _, err := p.Run(p.Context(), st); err != nil {
			p.Fatal(err)
		}
		p.shown("a", "b")
		if most := slices.Max(gaps(st.updates())); most > 5*time.Second {
			p.Errorf("no status update for %s", most)
		}
	})
}

// What was shown may be too little: that is an error, of a class.
func TestPeekErrors(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*peekBench, *stream)
		class Class
	}{
		"silence":     {func(p *peekBench, st *stream) { st.silence(); st.id.WALEnd += 0x1000 }, Retry},
		"lost":        {func(_ *peekBench, st *stream) { st.fail(errGone) }, Retry},
		"columns":     {func(p *peekBench, _ *stream) { p.pg.missing = []string{"payload"} }, Wrong},
		"publication": {func(p *peekBench, _ *stream) { p.pg.checkErr = func(int) error { return alteredPublication } }, Lost},
		"output":      {func(p *peekBench, _ *stream) { p.Show = func(*Peeked) error { return errors.New("broken pipe") } }, Retry},
	} {
		t.Run(name, func(t *testing.T) {
			peekBubble(t, func(p *peekBench) {
				p.pg.commit("a")
				st := p.open()
				if name == "lost" { // with something still to come
					p.pg.edit(func() { st.id.WALEnd += 0x1000 })
				}
				c.spoil(p, st)
				_, err := p.Run(p.Context(), st)
				if err == nil || ClassOf(err) != c.class {
					p.Errorf("%v of class %v, want %v", err, ClassOf(err), c.class)
				}
			})
		})
	}
}

var alteredPublication = &replication.Error{Kind: replication.PublicationChanged, Op: "check publication", Err: errors.New("it was altered")}
