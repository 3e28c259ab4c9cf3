package standby

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// Two primaries are two servers of one cluster, each of which was a primary in both rounds.
func TestTwoPrimariesInTwoRounds(t *testing.T) {
	at := func(address, system string, started int64, recovering bool) primary {
		return primary{address, &Server{System: system, Started: time.Unix(started, 0), InRecovery: recovering}}
	}
	a, b := at("a:1", "1", 1, false), at("b:1", "1", 2, false)
	for name, c := range map[string]struct {
		before, now []primary
		system      string
		want        string
	}{
		"two":                       {[]primary{a, b}, []primary{a, b}, "1", "a:1 b:1"},
		"the cluster is not known":  {[]primary{a, b}, []primary{b, a}, "", "b:1 a:1"},
		"three":                     {[]primary{a, b}, []primary{a, at("c:1", "1", 3, false), b}, "1", "a:1 b:1"},
		"another name in between":   {[]primary{a, b}, []primary{at("x:1", "1", 1, false), b}, "1", "x:1 b:1"},
		"one round":                 {[]primary{a}, []primary{a, b}, "1", ""},
		"the first round":           {nil, []primary{a, b}, "1", ""},
		"a switchover in a round":   {[]primary{a, b}, []primary{at("a:1", "1", 1, true), b}, "1", ""},
		"one does not answer":       {[]primary{a, b}, []primary{{"a:1", nil}, b}, "1", ""},
		"one was started again":     {[]primary{a, b}, []primary{at("a:1", "1", 9, false), b}, "1", ""},
		"two names of one server":   {[]primary{a, at("b:1", "1", 1, false)}, []primary{a, at("b:1", "1", 1, false)}, "1", ""},
		"a standby":                 {[]primary{a, at("b:1", "1", 2, true)}, []primary{a, at("b:1", "1", 2, true)}, "1", ""},
		"of two clusters":           {[]primary{a, at("b:1", "2", 2, false)}, []primary{a, at("b:1", "2", 2, false)}, "", ""},
		"of another cluster":        {[]primary{a, b}, []primary{a, b}, "2", ""},
		"of a cluster not known":    {[]primary{a, at("b:1", "", 2, false)}, []primary{a, at("b:1", "", 2, false)}, "", ""},
		"both of unknown clusters":  {[]primary{at("a:1", "", 1, false), at("b:1", "", 2, false)}, []primary{at("a:1", "", 1, false), at("b:1", "", 2, false)}, "", ""},
		"one became unknown, first": {[]primary{a, b}, []primary{at("a:1", "", 1, false), b}, "1", ""},
	} {
		got := ""
		if two := twoPrimaries(distinctPrimaries(c.before, c.system), distinctPrimaries(c.now, c.system)); two != nil {
			got = two.Hosts[0] + " " + two.Hosts[1]
			if text := two.Error(); !strings.Contains(text, two.Hosts[0]+" (started 1970-") || !strings.Contains(text, " and "+two.Hosts[1]+" (") || !strings.Contains(text, "remedy: ") {
				t.Errorf("%s: %s", name, text)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// watchAll watches both servers, each by two names, with the primary by one name more.
func (p *pair) watchAll() (w *watched, stop func() time.Duration) {
	p.t.Helper()
	var hosts, others []*replication.Host
	for _, s := range []*pgtest.Server{p.primary, p.standby} {
		again, _, err := replication.Hosts([]string{strings.Replace(s.URL("postgres", p.role, "secret"), "127.0.0.1", "localhost", 1)}, "test", nil)
		must(p.t, err)
		hosts, others = append(hosts, p.host(s)), append(others, again[0])
	}
	source, err := replication.NewSource(replication.Config{Slot: slot, WalSenderTimeout: time.Minute, URL: func() (string, error) {
		return fmt.Sprintf("postgres://watcher:secret@%s,%s/postgres?sslmode=disable", p.primary.HostPort(), p.standby.HostPort()), nil
	}})
	must(p.t, err)
	w = newWatched(func(ctx context.Context) (*Server, string, error) { return Primary(ctx, source, "test", slot) })
	w.hosts, w.others = hosts, others
	return w, w.run()
}

// awaitStates waits until two rounds have found the first host in the first state, and the second in the second.
func (w *watched) awaitStates(t *testing.T, states ...State) {
	t.Helper()
	await(t, fmt.Sprint(states), func() error {
		reports := w.Reports()
		if len(reports) != len(states) {
			return fmt.Errorf("%d reports", len(reports))
		}
		for i := range states {
			if reports[i].State != states[i] {
				return fmt.Errorf("%s is %s: %s", reports[i].Host, reports[i].State, reports[i].Text)
			}
		}
		return nil
	})
}

// The standby is promoted while the primary runs: the watcher ends and names both, by the names of the settings.
func TestWatcherEndsWithTwoPrimaries(t *testing.T) {
	t.Parallel()
	p := newPair(t, "17", nil)
	w, stop := p.watchAll()
	w.AwaitOnePrimary(p.ctx)
	w.awaitStates(t, IsPrimary, Missing)
	must(t, p.standby.Exec(p.ctx, "postgres", "SELECT pg_promote()"))
	await(t, "the watcher to end", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended == nil {
			return errors.New("it runs")
		}
		return nil
	})
	stop()
	two, ok := errors.AsType[*TwoPrimaries](w.ended)
	if !ok || two.Hosts != [2]string{p.primary.HostPort(), p.standby.HostPort()} || two.System == "" {
		t.Errorf("it ended with %v", w.ended)
	}

	// A start waits until the servers were asked twice, because the first answers name two primaries.
	w, stop = p.watchAll()
	ctx, cancel := context.WithCancel(p.ctx)
	waited := make(chan struct{})
	go func() {
		w.AwaitOnePrimary(ctx)
		close(waited)
	}()
	await(t, "the watcher to end", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		select {
		case <-waited:
			t.Fatal("the start did not wait")
		default:
		}
		if w.ended == nil {
			return errors.New("it runs")
		}
		return nil
	})
	cancel()
	<-waited
	stop()
}

// Two primaries that are seen in one round may be a switchover within that round.
func TestWatcherNeedsTwoRounds(t *testing.T) {
	t.Parallel()
	s := pgtest.ForTest(t, pgtest.Options{Major: "17"})
	hosts, _, err := replication.Hosts([]string{s.SuperURL("postgres")}, "test", nil)
	must(t, err)
	w := newWatched(func(ctx context.Context) (*Server, string, error) {
		server, err := Ask(ctx, hosts[0], slot)
		if err == nil {
			server.Started = time.Now() // another server in each round
		}
		return server, "db:5432", err
	})
	w.hosts = hosts
	stop := w.run()
	w.awaitRounds(t, 5)
	stop()
	if w.ended != nil {
		t.Error(w.ended)
	}
	if want := fmt.Sprintf(`"hosts":["%s","db:5432"]`, hosts[0].Address); !strings.Contains(w.log.String(), want) {
		t.Errorf("the log has no %s:\n%s", want, w.log.String())
	}
}

// Clean switchovers are no two primaries, however often the servers are asked, nor are two names of a server. Nor is a
// former primary that is being shut down while a session is still open there.
func TestWatcherThroughSwitchovers(t *testing.T) {
	t.Parallel()
	p := newPair(t, "17", standbySettings)
	first, second := p.primary, p.standby
	w, stop := p.watchAll()
	w.awaitStates(t, IsPrimary, Missing)
	p.switchOver("second")
	w.awaitStates(t, Missing, IsPrimary)
	p.switchOver("third")
	w.awaitStates(t, IsPrimary, Missing)

	// A smart shutdown waits for the session.
	session, err := pgx.Connect(p.ctx, first.SuperURL("postgres"))
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := first.Stop(p.ctx, pgtest.Smart)
		ended <- err
	}()
	w.awaitStates(t, Unreachable, Missing)
	must(t, second.Exec(p.ctx, "postgres", "SELECT pg_promote()"))
	w.awaitStates(t, Unreachable, IsPrimary)
	w.awaitRounds(t, 3)
	var recovering bool
	must(t, session.QueryRow(p.ctx, "SELECT pg_is_in_recovery()").Scan(&recovering))
	if recovering {
		t.Error("the former primary is none: this proved nothing")
	}
	must(t, session.Close(p.ctx))
	must(t, <-ended)
	stop()
	if w.ended != nil {
		t.Error(w.ended)
	}
}
