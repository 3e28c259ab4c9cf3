package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// wired is a bench with the real package replication and a scripted walsender as Postgres.
type wired struct {
	*bench
	srv    *walsendertest.Server
	table  *walsendertest.Table
	commit func(specs ...string) walsendertest.Tx
}

// source adapts replication.Source as cmd/outboxcdc does.
type source struct{ *replication.Source }

func (s source) Open(ctx context.Context) (Stream, error) {
	st, err := s.Source.Open(ctx)
	if err != nil {
		return nil, err
	}
	return st, nil
}

func newWired(t *testing.T, cfg Config, srv *walsendertest.Server, inMemory bool) *wired {
	t.Helper()
	b := newBench(t, cfg)
	cat := srv.Catalog()
	rc := replication.Config{
		URL: func() (string, error) { return srv.URL(), nil }, Slot: "outboxcdc", Publication: "outboxcdc",
		Tables: []replication.Table{{Schema: "public", Name: "outbox", Columns: cat.Outbox().Columns[:6]}}, WalSenderTimeout: cfg.WalSenderTimeout,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if inMemory {
		rc.Dial = srv.Dial
	}
	src, err := replication.NewSource(rc)
	must(t, err)
	b.reg = prometheus.NewRegistry()
	b.relay = New(cfg, source{src}, b.kafka, newRouter(t), NewMetrics(b.reg, "outboxcdc"), slog.New(slog.NewTextHandler(b.log, nil)))
	w := &wired{bench: b, srv: srv, table: cat.Outbox()}
	w.commit = func(specs ...string) walsendertest.Tx {
		var rows [][]byte
		for _, spec := range specs {
			rows = append(rows, b.pg.row(spec))
		}
		return srv.Commit(w.table, rows...)
	}
	return w
}

// wire runs f with a server in memory, in a bubble.
func wire(t *testing.T, change func(*walsendertest.Catalog), f func(*wired)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cat := walsendertest.NewCatalog()
		if change != nil {
			change(&cat)
		}
		w := newWired(t, testConfig(), walsendertest.NewInMemory(t, cat), true)
		defer w.finish()
		f(w)
	})
}

// overTCP runs f with a server on a port, in real time.
func overTCP(t *testing.T, cfg Config, f func(*wired)) {
	t.Helper()
	w := newWired(t, cfg, walsendertest.New(t, walsendertest.NewCatalog()), false)
	defer w.finish()
	f(w)
}

// run starts the relay, without waiting for it as bench.start does.
func (w *wired) run() {
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	w.done = make(chan error, 1)
	go func() { w.done <- w.relay.Run(ctx) }()
}

// TestProtocol: the messages of a session from first to last, once in real time over TCP and once in memory.
func TestProtocol(t *testing.T) {
	f := func(w *wired) {
		w.kafka.hold()
		w.run()
		x := w.srv.AwaitSession(1)
		if want := `START_REPLICATION SLOT outboxcdc LOGICAL 0/0 (proto_version '1', publication_names '"outboxcdc"')`; strings.TrimSpace(x.Command) != want {
			w.Errorf("%s\nwant %s", x.Command, want)
		}
		one, two := w.commit("a", "b"), w.commit("c")
		end := two.End + 0x10000
		x.AwaitSent(two.End)
		must(w, x.Keepalive(end, true))
		x.AwaitStatuses("an answer", func(all []walsendertest.Status) bool { return len(all) >= 2 })
		for _, s := range x.Statuses() {
			if s.Flushed != firstLSN {
				w.Errorf("confirmed %s with nothing acknowledged", s.Flushed)
			}
		}
		w.eventually("three events in flight", func() bool { return len(w.kafka.flying()) == 3 })
		w.kafka.ack("a", "b")
		w.srv.AwaitConfirmed(one.End)
		w.kafka.ack("c")
		w.srv.AwaitConfirmed(end)
		w.kafka.edit(func() { w.kafka.auto = time.Millisecond })
		three := w.commit("d")
		w.eventually("delivery", func() bool { return len(w.kafka.ids()) == 4 })
		if err := w.quit(); err != nil {
			w.Error(err)
		}
		x.AwaitCopyDone()
		w.delivered("a", "b", "c", "d")
		all := x.Statuses()
		if got := w.srv.Catalog().Slot.Confirmed; got != max(three.End, end) || all[len(all)-1].Flushed != got {
			w.Errorf("the slot is at %s in the end, want %s", got, three.End)
		}
		allowed := map[pglogrepl.LSN]bool{firstLSN: true, one.End: true, end: true, three.End: true}
		for _, s := range all {
			if s.Written != s.Flushed || s.Applied != s.Flushed || !allowed[s.Flushed] {
				w.Errorf("status update %+v", s)
			}
		}
		w.startups()
	}
	t.Run("tcp", func(t *testing.T) {
		cfg := testConfig()
		cfg.StatusInterval = 20 * time.Millisecond
		overTCP(t, cfg, f)
	})
	t.Run("in memory", func(t *testing.T) { wire(t, nil, f) })
}

// startups checks the startup messages of the connections.
func (w *wired) startups() {
	w.Helper()
	streams := 0
	for _, p := range w.srv.Startups() {
		if p["application_name"] != "outboxcdc-outboxcdc" || p["client_encoding"] != "UTF8" {
			w.Errorf("opened with %v", p)
		}
		if p["replication"] == "" {
			if p["default_transaction_read_only"] != "on" || p["statement_timeout"] == "" {
				w.Errorf("the ordinary connection was opened with %v", p)
			}
			continue
		}
		streams++
		for k, want := range map[string]string{
			"replication": "database", "DateStyle": "ISO", "IntervalStyle": "postgres", "extra_float_digits": "3", "TimeZone": "UTC",
			"bytea_output": "hex", "client_min_messages": "warning", "search_path": "pg_catalog", "quote_all_identifiers": "off", "lc_monetary": "C",
			"wal_sender_timeout": fmt.Sprintf("%dms", w.relay.cfg.WalSenderTimeout.Milliseconds()),
		} {
			if p[k] != want {
				w.Errorf("%s is %q, want %q", k, p[k], want)
			}
		}
	}
	if streams == 0 {
		w.Error("no replication connection")
	}
}

// eventually waits in real or in fake time.
func (w *wired) eventually(what string, ok func() bool) {
	w.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.Fatalf("not within 20 s: %s; state %+v", what, w.relay.Status())
}

// TestCrashOfPostgres: a crash takes the slot back to its saved position, and nothing is repeated.
func TestCrashOfPostgres(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.start()
		saved := w.commit("a")
		w.sleep(3 * time.Second)
		w.srv.Checkpoint()
		last := w.commit("b", "c")
		w.sleep(3 * time.Second)
		if got := w.srv.Catalog().Slot.Confirmed; got != last.End {
			w.Fatalf("the slot is at %s", got)
		}
		w.srv.Crash()
		w.sleep(20 * time.Second)
		w.want(Reconnecting)
		w.srv.Start()
		w.sleep(40 * time.Second)
		w.want(Streaming)
		next := w.commit("d")
		w.sleep(3 * time.Second)
		w.delivered("a", "b", "c", "d")
		if got := w.srv.Catalog().Slot.Confirmed; got != next.End {
			w.Errorf("the slot is at %s, want %s", got, next.End)
		}
		if x := w.srv.AwaitSession(2); x.Start != saved.End {
			w.Errorf("the second session began at %s, want %s", x.Start, saved.End)
		}
	})
}

// TestNotices: notices are distinguished by the function that sent them.
func TestNotices(t *testing.T) {
	ready := func(t *testing.T, f func(*wired, *walsendertest.Session)) {
		t.Helper()
		wire(t, nil, func(w *wired) {
			w.start()
			w.commit("a")
			w.sleep(3 * time.Second)
			f(w, w.srv.AwaitSession(1))
		})
	}
	t.Run("skipped publication", func(t *testing.T) {
		ready(t, func(w *wired, x *walsendertest.Session) {
			x.Notice(walsendertest.Warning("55000", "LoadPublications", "Laden der Publikation wird übersprungen"))
			w.ends(Lost, 10*time.Second)
		})
	})
	t.Run("skipped publication, with rows behind it", func(t *testing.T) {
		ready(t, func(w *wired, x *walsendertest.Session) {
			w.kafka.hold()
			w.commit("b")
			w.sleep(100 * time.Millisecond)
			x.Notice(walsendertest.Warning("55000", "LoadPublications", "skipped"))
			w.commit("c")
			w.ends(Lost, 10*time.Second)
			if got := w.srv.Catalog().Slot.Confirmed; got != 0x1030 {
				w.Errorf("the slot is at %s", got)
			}
		})
	})
	t.Run("standby", func(t *testing.T) {
		ready(t, func(w *wired, x *walsendertest.Session) {
			x.Notice(walsendertest.Warning("55000", "StandbySlotsHaveCaughtup", "replication slot has no active_pid"))
			w.sleep(10 * time.Second)
			w.want(WaitingForStandby)
			w.commit("b")
			w.sleep(3 * time.Second)
			w.want(Streaming)
			w.delivered("a", "b")
		})
	})
	t.Run("unknown", func(t *testing.T) {
		ready(t, func(w *wired, x *walsendertest.Session) {
			x.Notice(walsendertest.Warning("01000", "SomethingNew", "what is this"))
			x.AwaitCopyDone()
			w.sleep(time.Minute)
			w.want(Streaming)
			if w.metric("replication_reconnects_total", "reason=protocol") != 1 {
				w.Error("no reconnect")
			}
		})
	})
	t.Run("no warning", func(t *testing.T) {
		ready(t, func(w *wired, x *walsendertest.Session) {
			n := walsendertest.Warning("00000", "x", "by the way")
			n.SeverityUnlocalized = "NOTICE"
			x.Notice(n)
			w.commit("b")
			w.sleep(3 * time.Second)
			w.delivered("a", "b")
		})
	})
	t.Run("at connecting", func(t *testing.T) {
		wire(t, nil, func(w *wired) {
			n := walsendertest.Warning("01000", "CheckMyDatabase", "database has a collation version mismatch")
			w.srv.On(walsendertest.ConnectStream, 1000, walsendertest.Action{Notice: n})
			w.start()
			w.commit("a")
			w.sleep(time.Minute)
			w.delivered("a")
			if n := len(w.srv.Startups()); n > 8 {
				w.Errorf("%d connections", n)
			}
		})
	})
}

// TestErrorsOfTheServer: the class of errors, by SQLSTATE and phase.
func TestErrorsOfTheServer(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(*wired, *walsendertest.Session)
		class Class // Retry: it goes on
	}{
		{"terminated", func(_ *wired, x *walsendertest.Session) { x.Fail(walsendertest.Error("FATAL", "57P01", "terminating")) }, Retry},
		{"cut", func(_ *wired, x *walsendertest.Session) { x.Cut() }, Retry},
		{"end of copy", func(_ *wired, x *walsendertest.Session) { _ = x.Raw([]byte{'c', 0, 0, 0, 4}) }, Retry},
		{"nonsense", func(_ *wired, x *walsendertest.Session) { _ = x.Send([]byte("?")) }, Retry},
		{"publication of that time", func(_ *wired, x *walsendertest.Session) {
			x.Fail(walsendertest.Error("ERROR", "42704", "publication does not exist"))
		}, Lost},
		{"invalidated", func(w *wired, x *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Slot.WALStatus = "lost" })
			x.Fail(walsendertest.Error("ERROR", "55000", "can no longer access"))
		}, Lost},
		{"slot dropped", func(w *wired, x *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Slot.Missing = true })
			x.Cut()
		}, Lost},
		{"slot lost", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Slot.WALStatus = "lost" })
		}, Lost},
		{"recovery begins", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Slot.Unfinished = true })
		}, Lost},
		{"recovery begins between two sessions", func(w *wired, x *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Slot.Missing, c.Slot.Unfinished = true, true })
			x.Cut()
		}, Lost},
		{"publication altered", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Publication.RelXMin++ })
		}, Lost},
		{"publication altered between two sessions", func(w *wired, x *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Publication.XMin++ })
			x.Cut()
		}, Lost},
		{"publication dropped", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Publication.Missing = true })
		}, Lost},
		{"table renamed", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Tables[0].Name = "old" })
		}, Lost},
		{"table made unlogged", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Tables[0].Unlogged = true })
		}, Lost},
		{"synchronous standby", func(w *wired, _ *walsendertest.Session) {
			w.srv.Edit(func(c *walsendertest.Catalog) { c.SyncNames = "FIRST 1 (*)" })
		}, Wrong},
		{"check fails for now", func(w *wired, _ *walsendertest.Session) {
			w.srv.On("WITH RECURSIVE pub AS", 1, walsendertest.Action{Err: walsendertest.Error("ERROR", "57014", "statement timeout")})
		}, Retry},
		{"check hangs", func(w *wired, _ *walsendertest.Session) {
			w.srv.On("WITH RECURSIVE pub AS", 1, walsendertest.Action{Hang: true})
		}, Retry},
		{"ordinary connection cut", func(w *wired, _ *walsendertest.Session) {
			w.srv.On("WITH RECURSIVE pub AS", 1, walsendertest.Action{Cut: true})
		}, Retry},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire(t, nil, func(w *wired) {
				w.start()
				w.commit("a")
				w.sleep(3 * time.Second)
				c.do(w, w.srv.AwaitSession(1))
				if c.class != Retry {
					w.commit("b")
					w.ends(c.class, time.Minute)
					if got := w.srv.Catalog().Slot.Confirmed; got != 0x1030 {
						w.Errorf("the slot is at %s", got)
					}
					return
				}
				w.commit("b")
				w.sleep(2 * time.Minute)
				w.want(Streaming)
				w.srv.AwaitSession(2)
				w.delivered("a", "b")
			})
		})
	}
}

// TestAlterationUnderWay: while an alteration of the publication is not committed, nothing more is confirmed, and the
// relay is not ready. Status updates and delivery continue.
func TestAlterationUnderWay(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.start()
		w.srv.Edit(func(c *walsendertest.Catalog) { c.Publication.Pending = true })
		last := w.commit("a")
		w.sleep(time.Minute)
		w.delivered("a")
		w.want(WaitingForPostgres)
		if lag := w.relay.Status().LagSeconds; lag < 50 {
			w.Errorf("the lag is %v", lag)
		}
		x := w.srv.AwaitSession(1)
		if got := w.srv.Catalog().Slot.Confirmed; got != firstLSN {
			w.Errorf("the slot is at %s", got)
		}
		if n := len(x.Statuses()); n < 12 {
			w.Errorf("%d status updates in a minute", n)
		}
		if n := w.log.count("confirmation paused"); n != 1 {
			w.Errorf("%d lines about it", n)
		}
		w.srv.Edit(func(c *walsendertest.Catalog) { c.Publication.Pending = false })
		w.sleep(10 * time.Second)
		if got := w.srv.Catalog().Slot.Confirmed; got != last.End {
			w.Errorf("the slot is at %s, want %s", got, last.End)
		}
	})
}

// TestRelations: OID and name must both be the outbox's, or both another table's.
func TestRelations(t *testing.T) {
	other := func(oid uint32, name string) *walsendertest.Table {
		cat := walsendertest.NewCatalog()
		t := *cat.Outbox()
		t.OID, t.Name = oid, name
		return &t
	}
	for _, c := range []struct {
		name  string
		table *walsendertest.Table
		cat   func(*walsendertest.Catalog)
		class Class
		rows  bool // are delivered
	}{
		{"name with another OID", other(5, "outbox"), nil, Lost, false},
		{"OID with another name", other(16390, "other"), nil, Lost, false},
		{"another table that is gone", other(5, "other"), nil, Retry, false},
		{"another table", other(5, "other"), func(c *walsendertest.Catalog) {
			c.Tables = append(c.Tables, *other(5, "other"))
		}, Retry, false},
		{"a partition that was there", other(5, "outbox_1"), func(c *walsendertest.Catalog) {
			c.Tables[0].Kind = "p"
			p := *other(5, "outbox_1")
			p.Partition = true
			c.Tables = append(c.Tables, p)
		}, Retry, true},
		{"another table beside leaves that are published by themselves", other(5, "other"), func(c *walsendertest.Catalog) {
			c.Tables[0].Kind = "p"
			c.Tables = append(c.Tables, *other(5, "other"))
		}, Lost, false},
		{"a partition that is not published", other(5, "outbox_1"), func(c *walsendertest.Catalog) {
			c.Tables[0].Kind = "p"
			p := *other(5, "outbox_1")
			p.Partition = true
			c.Tables = append(c.Tables, p)
			c.Publication.WithoutTables = []uint32{5}
		}, Lost, false},
		{"a table that is gone and may have been a partition", other(5, "outbox_1"), func(c *walsendertest.Catalog) {
			c.Tables[0].Kind = "p"
			p := *other(6, "outbox_2")
			p.Partition = true
			c.Tables = append(c.Tables, p)
		}, Lost, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire(t, c.cat, func(w *wired) {
				w.start()
				w.srv.Commit(c.table, walsendertest.Row(c.table, "x", "t", "k", "payload of x"))
				if c.class != Retry {
					w.ends(c.class, 10*time.Second)
					w.delivered()
					return
				}
				w.commit("a")
				w.sleep(3 * time.Second)
				if c.rows {
					w.delivered("x", "a")
				} else {
					w.delivered("a")
				}
			})
		})
	}
	t.Run("a partition attached meanwhile", func(t *testing.T) {
		wire(t, func(c *walsendertest.Catalog) { c.Tables[0].Kind = "p" }, func(w *wired) {
			w.start()
			p := *other(5, "outbox_1")
			p.Partition = true
			w.srv.Edit(func(c *walsendertest.Catalog) { c.Tables = append(c.Tables, p) })
			w.srv.Commit(&p, walsendertest.Row(&p, "x", "t", "k", "payload of x"))
			w.sleep(3 * time.Second)
			w.delivered("x")
		})
	})
}

// TestColumnGone: rows from before the column was removed are delivered first.
func TestColumnGone(t *testing.T) {
	wire(t, func(c *walsendertest.Catalog) { c.Publication.WithoutColumns = []string{"payload"} }, func(w *wired) {
		last := w.commit("a", "b")
		w.start()
		w.srv.AwaitSession(1).AwaitSent(last.End)
		s := w.ends(Lost, time.Minute)
		if !strings.Contains(s.Error(), "payload") {
			w.Errorf("ended with %v", s.Err)
		}
		w.delivered("a", "b")
	})
}

// TestFailover: the timeline of a position is that of its commit LSN. A server that branched off before delivered
// events has another history.
func TestFailover(t *testing.T) {
	for _, c := range []struct {
		name string
		fork pglogrepl.LSN // transactions committed at or after it are lost
		lost bool
		want string // position of the first event after the fork
	}{
		{"behind it", 0x1060, false, "1:7000000000000000001:2:0000000000001060:0"},
		{"within it", 0x1030, true, "1:7000000000000000001:2:0000000000001030:0"},
		{"before it", 0x1000, true, "1:7000000000000000001:2:0000000000001000:0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire(t, nil, func(w *wired) {
				w.start()
				w.commit("a")
				w.commit("b") // from 0/1030
				w.sleep(3 * time.Second)
				w.srv.Crash()
				w.srv.Edit(func(cat *walsendertest.Catalog) {
					cat.Timeline, cat.History = 2, fmt.Sprintf("1\t%s\tno recovery target specified\n", c.fork)
				})
				if c.lost {
					w.srv.Forget(c.fork)
				}
				w.commit("c")
				w.srv.Start()
				w.sleep(time.Minute)
				w.delivered("a", "b", "c")
				if got := w.kafka.log[2].position; got != c.want {
					w.Errorf("position of c: %s", got)
				}
				if logged := w.log.count("a failover lost their transactions") == 1; logged != c.lost {
					w.Errorf("the log says that something was lost: %v", logged)
				}
			})
		})
	}
	for _, refill := range []bool{false, true} {
		t.Run(fmt.Sprintf("to one without the last transaction, with another in its place: %v", refill), func(t *testing.T) {
			wire(t, nil, func(w *wired) {
				w.start()
				w.commit("a")
				last := w.commit("b")
				w.sleep(3 * time.Second)
				w.srv.Crash()
				w.srv.Forget(last.Commit)
				if refill {
					w.commit("x")
				}
				w.srv.Start()
				s := w.ends(Lost, time.Minute)
				if classify(s.Err, true).reason != "other_history" {
					w.Errorf("ended with %v", s.Err)
				}
				w.delivered("a", "b")
			})
		})
	}
	t.Run("historic rows at first start", func(t *testing.T) {
		wire(t, func(c *walsendertest.Catalog) { c.Timeline, c.History = 2, "1\t0/1030\tx\n" }, func(w *wired) {
			w.commit("a")
			w.commit("b")
			w.start()
			w.sleep(time.Second)
			if len(w.kafka.log) != 2 || !strings.Contains(w.kafka.log[0].position, ":1:0000000000001000:") ||
				!strings.Contains(w.kafka.log[1].position, ":2:0000000000001030:") {
				w.Errorf("%+v", w.kafka.log)
			}
		})
	})
}

// TestTakeOver: a standby has the slot within three seconds after it is free.
func TestTakeOver(t *testing.T) {
	wire(t, func(c *walsendertest.Catalog) { c.Slot.Holder, c.Slot.HolderName = 4711, "outboxcdc-outboxcdc" }, func(w *wired) {
		w.start()
		w.sleep(time.Minute)
		w.want(WaitingForSlot)
		if !strings.Contains(w.relay.Status().Reason, "4711") {
			w.Errorf("reason %q", w.relay.Status().Reason)
		}
		if n := len(w.srv.Startups()); n > 8 {
			w.Errorf("%d connections in a minute of waiting", n)
		}
		// The other instance confirms until the last moment. The session starts at its last position.
		w.commit("a")
		w.srv.Edit(func(c *walsendertest.Catalog) { c.Slot.Confirmed = 0x1030; c.Slot.Holder = 0 })
		w.commit("b")
		w.sleep(3 * time.Second)
		w.want(Streaming)
		w.delivered("b")
		if got := w.srv.AwaitSession(1).Statuses()[0].Flushed; got != 0x1030 {
			w.Errorf("the first status update says %s", got)
		}
	})
}

// TestSilentWalsender: the connection is open, but the server sends nothing.
func TestSilentWalsender(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.start()
		w.sleep(5 * time.Minute)
		x := w.srv.AwaitSession(1)
		if x.Statuses()[0].Reply != true || w.relay.Status().State != Streaming {
			w.Fatalf("state %s with an idle server", w.state())
		}
		x.Silence()
		w.sleep(w.relay.cfg.WalSenderTimeout + 15*time.Second)
		x.AwaitCopyDone()
		w.sleep(time.Minute)
		w.want(Streaming)
		w.commit("a")
		w.sleep(time.Second)
		w.delivered("a")
	})
}

// TestMessageInPieces: a read deadline in the middle of a message loses no bytes.
func TestMessageInPieces(t *testing.T) {
	wire(t, nil, func(w *wired) {
		w.start()
		x := w.srv.AwaitSession(1)
		at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
		var all []byte
		for _, msg := range [][]byte{
			walsendertest.Begin(0x1000, at, 1), walsendertest.Relation(w.table), w.pg.row("a"), w.pg.row("b"), walsendertest.Commit(0x1000, 0x1030, at),
		} {
			all = append(all, walsendertest.CopyData(walsendertest.XLogData(0x1000, msg))...)
		}
		x.Silence() // no keepalive may arrive between the pieces
		piece := len(all)/9 + 1
		for i := 0; i < len(all); i += piece {
			must(w, x.Raw(all[i:min(i+piece, len(all))]))
			w.sleep(1300 * time.Millisecond)
		}
		w.sleep(3 * time.Second)
		w.delivered("a", "b")
		w.srv.AwaitConfirmed(0x1030)
	})
}

// TestTouchOverTheWire: keepSlot opens the slot and closes it with CopyDone, without a status update.
func TestTouchOverTheWire(t *testing.T) {
	wire(t, func(c *walsendertest.Catalog) { c.IdleTimeout = 10 * time.Minute }, func(w *wired) {
		w.kafka.edit(func() { w.kafka.probeErr = errKafka })
		w.kafka.hold()
		w.start()
		w.commit("a")
		w.sleep(7 * time.Minute)
		w.want(Parked)
		x := w.srv.AwaitSession(2)
		x.AwaitCopyDone()
		if n := len(x.Statuses()); n != 0 {
			w.Errorf("%d status updates", n)
		}
		if got := w.srv.Catalog().Slot.Confirmed; got != firstLSN {
			w.Errorf("the slot is at %s", got)
		}
	})
}
