package standby

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// watched is a watcher whose hosts a test changes.
type watched struct {
	*Watcher
	reg *prometheus.Registry

	mu            sync.Mutex
	hosts, others []*replication.Host
	err           error
	log           bytes.Buffer
	rounds        int   // that have begun
	ended         error // what Run has returned
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *watched) set(hosts []*replication.Host, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts, w.err = hosts, err
}

// lines are the log lines about a host, as "level state".
func (w *watched) lines(t *testing.T, host string) (all []string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.log.String()) {
		var e struct{ Level, Host, State, Reason, Remedy string }
		must(t, json.Unmarshal([]byte(line), &e))
		if e.Host != host {
			continue
		}
		if e.Reason == "" || (e.Level == "WARN" && e.Remedy == "") {
			t.Errorf("no reason, or no remedy: %s", line)
		}
		all = append(all, e.Level+" "+e.State)
	}
	return all
}

func newWatched(primary func(context.Context) (*Server, string, error)) *watched {
	w := &watched{reg: prometheus.NewRegistry()}
	w.Watcher = NewWatcher(WatchConfig{
		Slot: slot, Primary: func(context.Context) (Question, error) { return primary, nil }, Logger: slog.New(slog.NewJSONHandler(w, nil)), interval: 50 * time.Millisecond,
		Hosts: func() (watched, others []*replication.Host, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.rounds++
			return w.hosts, w.others, w.err
		},
	}, w.reg)
	return w
}

// run runs the watcher until the function that it returns is called, which reports how long the end took.
func (w *watched) run() (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		err := w.Run(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = err
	})
	return func() time.Duration {
		begin := time.Now()
		cancel()
		ended.Wait()
		return time.Since(begin)
	}
}

// awaitRounds waits for whole rounds, or until the watcher has ended.
func (w *watched) awaitRounds(t *testing.T, more int) {
	t.Helper()
	w.mu.Lock()
	end := w.rounds + more + 1
	w.mu.Unlock()
	await(t, "further rounds", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.rounds < end && w.ended == nil {
			return fmt.Errorf("%d of %d", w.rounds, end)
		}
		return nil
	})
}

// samples are the metrics without HELP and TYPE.
func (w *watched) samples(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := w.reg.Gather()
	must(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "host" {
					out[strings.TrimPrefix(f.GetName(), "outboxcdc_standby_")+" "+l.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
	}
	return out
}

// A change of a state is logged once, with its metrics, and the series of a host that is not watched any more end.
func TestWatcher(t *testing.T) {
	t.Parallel()
	p := newPair(t, "17", standbySettings)
	must(t, p.primary.Exec(p.ctx, "postgres", "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput', false, false, true)"))
	p.awaitState(Ready)
	first, second := p.host(p.primary), p.host(p.standby)
	down, _, err := replication.Hosts([]string{"host=127.0.0.1 port=1 user=watcher password=secret"}, "test", nil)
	must(t, err)
	w := newWatched(func(ctx context.Context) (*Server, string, error) {
		s, err := Ask(ctx, first, slot)
		return s, first.Address, err
	})
	stop := w.run()
	state := func(host string) State {
		for _, r := range w.Reports() {
			if r.Host == host {
				return r.State
			}
		}
		return ""
	}
	awaitState := func(host string, want State) {
		t.Helper()
		await(t, host+" to be "+string(want), func() error {
			if got := state(host); got != want {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
	}
	w.set([]*replication.Host{first, second, down[0]}, nil)
	awaitState(second.Address, Ready)
	since := w.Reports()[1].Since
	got := w.samples(t)
	lag, known := got["slot_lag_bytes "+second.Address]
	delete(got, "slot_lag_bytes "+second.Address)
	want := map[string]float64{
		"up " + first.Address: 1, "up " + second.Address: 1, "up " + down[0].Address: 0,
		"slot_ready " + second.Address: 1, "slot_ready " + down[0].Address: 0, "slot_blocked " + second.Address: 0,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || !known || lag < 0 {
		t.Errorf("metrics %v, lag %v, %v; want %v", got, lag, known, want)
	}

	// Settings that cannot be read leave the hosts as they are.
	w.set(nil, errors.New("no such file"))
	await(t, "the error to be logged", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !strings.Contains(w.log.String(), "no such file") {
			return errors.New("it is not")
		}
		return nil
	})
	_, err = p.standby.Stop(p.ctx, pgtest.Immediate)
	must(t, err)
	awaitState(second.Address, Unreachable)
	w.set([]*replication.Host{second}, nil)
	await(t, "the others to be forgotten", func() error {
		if n := len(w.Reports()); n != 1 {
			return fmt.Errorf("%d hosts", n)
		}
		return nil
	})
	if w.Reports()[0].Since.Equal(since) {
		t.Error("a new state has the time of the old one")
	}
	if n, err := testutil.GatherAndCount(w.reg); err != nil || n != 2 {
		t.Errorf("%d series, %v; want up and ready of one host", n, err)
	}
	w.set(nil, nil)
	await(t, "all to be forgotten", func() error {
		if n := len(w.Reports()); n != 0 {
			return fmt.Errorf("%d hosts", n)
		}
		return nil
	})
	if n, err := testutil.GatherAndCount(w.reg); err != nil || n != 0 {
		t.Errorf("%d series without hosts, %v", n, err)
	}
	stop()
	for host, want := range map[string]string{
		first.Address: "[INFO primary]", second.Address: "[INFO ready WARN unreachable]", down[0].Address: "[WARN unreachable]",
	} {
		// A standby that has just got its copy can be without it for a moment: PostgreSQL drops and creates a copy that it
		// cannot synchronize yet.
		if got := strings.Replace(fmt.Sprint(w.lines(t, host)), "WARN missing ", "", 1); got != want {
			t.Errorf("%s: logged %s, want %s", host, got, want)
		}
	}
	if n := strings.Count(w.log.String(), "no such file"); n != 1 {
		t.Errorf("settings that cannot be read are logged %d times", n)
	}
}

// The process ends at once, even while servers do not answer.
func TestWatcherEndsAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c // and never answers
		}
	}()
	t.Cleanup(func() { must(t, l.Close()) })
	hung, _, err := replication.Hosts([]string{"host=127.0.0.1 port=" + fmt.Sprint(l.Addr().(*net.TCPAddr).Port) + " sslmode=disable user=watcher"}, "test", nil)
	must(t, err)
	w := newWatched(func(ctx context.Context) (*Server, string, error) {
		<-ctx.Done()
		return nil, "", ctx.Err()
	})
	w.set(hung, nil)
	stop := w.run()
	<-accepted
	w.AwaitOnePrimary(t.Context()) // nor does a start wait for them
	select {
	case <-w.asked:
		t.Error("the round has ended, so the wait was none")
	default:
	}
	if d := stop(); d > time.Second {
		t.Errorf("the end took %v", d)
	}
}

// Without the primary's answer, its system identifier still tells another cluster apart, but no server is called a
// second primary.
func TestPrimaryThatDoesNotAnswer(t *testing.T) {
	known := &Server{System: "1"}
	host := &Server{Version: 170000, System: "1", Started: time.Unix(1, 0)}
	if v := Judge(known, host, nil); v.State != IsPrimary {
		t.Errorf("the new primary of a failover: %+v", v)
	}
	host.System = "2"
	if v := Judge(known, host, nil); v.State != OtherCluster {
		t.Errorf("another cluster: %+v", v)
	}
}
