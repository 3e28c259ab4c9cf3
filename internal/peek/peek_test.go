package peek

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// bench is a Peek and the stream that it reads.
type bench struct {
	*testing.T
	Peek
	st  *stream
	ids []string
}

// bubble runs f in a bubble with a fake clock.
func bubble(t *testing.T, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, st: newStream(t)}
		rows, messages := router.DefaultConfig(), router.DefaultConfig()
		rows.Topic, messages.Topic, messages.Messages = "{aggregate_type}", "{aggregate_type}", true
		route, err := router.New(rows, messages)
		if err != nil {
			t.Fatal(err)
		}
		b.Peek = Peek{Router: route, WalSenderTimeout: 15 * time.Second, Show: func(v *Event) error {
			what := string(v.Record.ID)
			if v.Poison != nil {
				what += " " + string(v.Poison.Cause) + " " + string(v.Policy)
			}
			b.ids = append(b.ids, what)
			return nil
		}}
		f(b)
	})
}

// run runs the Peek to its end.
func (b *bench) run() (Summary, error) {
	b.st.open()
	return b.Peek.Run(b.Context(), b.st)
}

func (b *bench) shown(want ...string) {
	b.Helper()
	if !slices.Equal(b.ids, want) {
		b.Errorf("shown are %q, want %q", b.ids, want)
	}
}

func (b *bench) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestPeekEnds checks that Run ends where the WAL ended at the start, before later commits, and that a poison event is
// shown and does not end Run.
func TestPeekEnds(t *testing.T) {
	bubble(t, func(b *bench) {
		b.st.commit("a", "!b")
		last := b.st.commit("c")
		b.st.open()
		b.st.id.WALEnd += 0x10 // WAL of something else
		b.st.end += 0x20
		b.st.commit("later")
		b.Poison.Policy = relay.DeadLetter
		seen, err := b.Peek.Run(b.Context(), b.st)
		if err != nil || !seen.Whole || seen.Events != 3 || seen.Poison != 1 || seen.UpTo != last.End {
			b.Errorf("%+v %v", seen, err)
		}
		b.shown("a", "b null_key dead_letter", "c")
	})
}

// TestPeekMessagesAndUpdates: logical messages and updates are treated as in the daemon: events with the same ordinals,
// poison, or ignored.
func TestPeekMessagesAndUpdates(t *testing.T) {
	bubble(t, func(b *bench) {
		b.MessagePrefix = messagePrefix
		show := b.Show
		b.Show = func(v *Event) error {
			err := show(v)
			b.ids[len(b.ids)-1] += fmt.Sprint(" ", v.Position.Ordinal)
			return err
		}
		b.st.begin("a", "^b", "*c", "*!d")
		b.st.raw(walsendertest.Message(true, "other", "{}"))
		b.st.raw(walsendertest.Message(false, messagePrefix, "{}"))
		b.st.more("e")
		b.st.finish()
		if seen, err := b.run(); err != nil || !seen.Whole || seen.Events != 4 || seen.Poison != 1 {
			b.Errorf("%+v %v", seen, err)
		}
		b.shown("a 0", "c 2", " bad_payload stop 3", "e 4")
	})
}

// TestPeekKeepalives: a keepalive shows the end after WAL of other tables. Inside a transaction a keepalive is ignored.
func TestPeekKeepalives(t *testing.T) {
	bubble(t, func(b *bench) {
		b.st.begin("a")
		b.st.open()
		b.st.id.WALEnd = 0x9000
		done := make(chan Summary, 1)
		go func() {
			seen, err := b.Peek.Run(b.Context(), b.st)
			if err != nil {
				b.Error(err)
			}
			done <- seen
		}()
		b.st.push(replication.Message{ServerWALEnd: 0x9000}) // a real server does not send it here
		b.sleep(3 * time.Second)
		b.shown("a")
		b.st.finish()
		b.sleep(time.Second)
		if len(done) > 0 {
			b.Fatal("it ended before the end of the WAL")
		}
		for _, u := range b.st.updates() {
			if !u.reply {
				b.Error("a status update does not request a reply")
			}
		}
		b.st.keepalive(0x9000)
		if seen := <-done; !seen.Whole || seen.UpTo != 0x9000 {
			b.Errorf("%+v", seen)
		}
	})
}

// TestPeekNothing: it ends at once if no event waits.
func TestPeekNothing(t *testing.T) {
	bubble(t, func(b *bench) {
		seen, err := b.run()
		if err != nil || !seen.Whole || seen.Events != 0 {
			b.Errorf("%+v %v", seen, err)
		}
	})
}

func TestPeekLimit(t *testing.T) {
	bubble(t, func(b *bench) {
		b.st.commit("a", "b", "c")
		b.Limit = 2
		seen, err := b.run()
		if err != nil || seen.Whole || seen.Events != 2 {
			b.Errorf("%+v %v", seen, err)
		}
		b.shown("a", "b")
	})
}

// TestPeekFollows: it advances the copy to what was shown, and no further, and ends with its context.
func TestPeekFollows(t *testing.T) {
	bubble(t, func(b *bench) {
		b.st.commit("a")
		b.st.open()
		b.Follow = true
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { _, err := b.Peek.Run(ctx, b.st); done <- err }()
		b.sleep(time.Minute)
		b.shown("a")
		at := b.st.begin("b")
		b.sleep(time.Minute)
		b.shown("a", "b")
		if got := b.st.position(); got > at.Commit {
			b.Errorf("the copy is at %s, inside the transaction at %s", got, at.Commit)
		}
		b.st.finish()
		b.sleep(2 * time.Second)
		if got := b.st.position(); got != at.End {
			b.Errorf("the copy is at %s, want %s", got, at.End)
		}
		if checks := b.st.checks.Load(); checks < 7 {
			b.Errorf("the publication was checked %d times in two minutes", checks)
		}
		stop()
		synctest.Wait()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
}

// TestPeekSlowReader: while Show blocks, status updates are sent, and the server is not considered silent.
func TestPeekSlowReader(t *testing.T) {
	bubble(t, func(b *bench) {
		b.st.commit("a", "b")
		show := b.Show
		b.Show = func(v *Event) error {
			time.Sleep(time.Hour)
			return show(v)
		}
		b.st.open()
		if _, err := b.Peek.Run(b.Context(), b.st); err != nil {
			b.Fatal(err)
		}
		b.shown("a", "b")
		if most := slices.Max(gaps(b.st.updates())); most > 5*time.Second {
			b.Errorf("no status update for %s", most)
		}
	})
}

// TestPeekErrors: if events may be missing from what was shown, that is an error with a class.
func TestPeekErrors(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*bench)
		class relay.Class
	}{
		"silence":     {func(b *bench) { b.st.mute = true; b.st.id.WALEnd += 0x1000 }, relay.Retry},
		"lost":        {func(b *bench) { b.st.id.WALEnd += 0x1000; b.st.err = errGone }, relay.Retry},
		"columns":     {func(b *bench) { b.st.missing = []string{"payload"} }, relay.Wrong},
		"publication": {func(b *bench) { b.st.checkErr = errAltered }, relay.Lost},
		"output":      {func(b *bench) { b.Show = func(*Event) error { return errors.New("broken pipe") } }, relay.Retry},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.st.commit("a")
				b.st.open()
				c.spoil(b)
				_, err := b.Peek.Run(b.Context(), b.st)
				if err == nil || relay.ClassOf(err) != c.class {
					b.Errorf("%v of class %v, want %v", err, relay.ClassOf(err), c.class)
				}
			})
		})
	}
}

var (
	errGone    = &replication.Error{Kind: replication.Unavailable, Op: "read the stream", Err: errors.New("unexpected EOF")}
	errAltered = &replication.Error{Kind: replication.PublicationChanged, Op: "check publication", Err: errors.New("it was altered")}
)
