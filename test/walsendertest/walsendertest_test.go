package walsendertest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

func source(t *testing.T, s *walsendertest.Server, inMemory bool) *replication.Source {
	t.Helper()
	cfg := replication.Config{
		URL: func() (string, error) { return s.URL(), nil }, Slot: "outboxcdc", Publication: "outboxcdc",
		Tables: []replication.Table{{Schema: "public", Name: "outbox", Columns: []string{"id", "payload"}}}, WalSenderTimeout: 15 * time.Second,
	}
	if inMemory {
		cfg.Dial = s.Dial
	}
	src, err := replication.NewSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// read reads messages until a keepalive at end or later.
func read(t *testing.T, st *replication.Stream, end pglogrepl.LSN) (kinds []decoder.Kind) {
	t.Helper()
	dec := decoder.New(func(rel *decoder.Relation) (bool, error) {
		table, err := st.Resolve(t.Context(), &replication.Announced{OID: rel.OID, Schema: rel.Namespace, Name: rel.Name})
		return table == 0, err
	})
	st.SetDeadline(time.Now().Add(10 * time.Second))
	for {
		m, err := st.Receive()
		if err != nil {
			t.Fatalf("after %v: %v", kinds, err)
		}
		if m.Data == nil {
			if m.ServerWALEnd >= end {
				return kinds
			}
			continue
		}
		d, err := dec.Decode(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, d.Kind)
	}
}

// TestServer drives the server with the real client: slot and catalogs are read, a transaction is streamed, the slot
// moves, falls back at a crash, and streaming starts again from there.
func TestServer(t *testing.T) {
	for _, inMemory := range []bool{false, true} {
		run := func(t *testing.T) {
			cat := walsendertest.NewCatalog()
			s := walsendertest.NewInMemory(t, cat)
			if !inMemory {
				s = walsendertest.New(t, cat)
			}
			src := source(t, s, inMemory)
			open := func() *replication.Stream {
				t.Helper()
				st, err := src.Open(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				return st
			}
			one := s.Commit(cat.Outbox(), walsendertest.Row(cat.Outbox(), "a", "t", "k", "{}"))
			st := open()
			if st.Start() != cat.Slot.Confirmed || st.Identity().SystemID != cat.SystemID || st.Identity().WALEnd != one.End {
				t.Errorf("start %s, identity %+v", st.Start(), st.Identity())
			}
			two := s.Commit(cat.Outbox(), walsendertest.Row(cat.Outbox(), "b", "t", "k", "{}"))
			x := s.AwaitSession(1)
			x.AwaitSent(two.End)
			if err := st.Status(one.End, true, time.Now()); err != nil {
				t.Fatal(err)
			}
			if got := read(t, st, two.End); len(got) != 8 {
				t.Errorf("%v", got)
			}
			slot, err := st.Check(t.Context())
			if err != nil || slot.ConfirmedFlush != one.End || !slot.Active {
				t.Errorf("%+v, %v", slot, err)
			}
			if _, err := src.Open(context.Background()); replication.KindOf(err) != replication.SlotActive || err == nil {
				t.Errorf("a second one: %v", err)
			}
			if err := st.Close(two.End, time.Now()); err != nil {
				t.Error(err)
			}
			x.AwaitCopyDone()
			if got := x.Statuses(); len(got) != 2 || got[1].Written != two.End || got[1].Flushed != two.End || got[1].Applied != two.End || !got[0].Reply {
				t.Errorf("%+v", got)
			}
			s.Crash()
			if _, err := src.Look(context.Background()); err == nil {
				t.Error("a crashed server answers")
			}
			s.Start()
			st = open()
			if st.Start() != cat.Slot.Confirmed {
				t.Errorf("the slot is at %s after a crash", st.Start())
			}
			s.AwaitSession(2).AwaitSent(two.End)
			if err := st.Status(st.Start(), true, time.Now()); err != nil {
				t.Fatal(err)
			}
			if got := read(t, st, two.End); len(got) != 8 {
				t.Errorf("again: %v", got)
			}
			_ = st.Close(0, time.Now())
		}
		if inMemory {
			t.Run("in memory", func(t *testing.T) { synctest.Test(t, run) })
		} else {
			t.Run("tcp", run)
		}
	}
}

// TestScript covers scripted faults of a server.
func TestScript(t *testing.T) {
	removed := walsendertest.Error("ERROR", "58P01", "segment removed")
	removed.Routine = "WalSndSegmentOpen"
	for _, c := range []struct {
		part string
		act  walsendertest.Action
		want replication.Kind
	}{
		{walsendertest.Connect, walsendertest.Action{Err: walsendertest.Error("FATAL", "57P03", "starting up")}, replication.Unavailable},
		{walsendertest.Connect, walsendertest.Action{Err: walsendertest.Error("FATAL", "28P01", "password")}, replication.Credentials},
		{walsendertest.ConnectStream, walsendertest.Action{Err: walsendertest.Error("FATAL", "42501", "no REPLICATION")}, replication.PrivilegeMissing},
		{walsendertest.ConnectStream, walsendertest.Action{Hang: true}, replication.Unavailable},
		{"pg_replication_slots", walsendertest.Action{Cut: true}, replication.Unavailable},
		{"pg_publication_tables", walsendertest.Action{Err: walsendertest.Error("ERROR", "57014", "cancelled")}, replication.Unavailable},
		{"IDENTIFY_SYSTEM", walsendertest.Action{Cut: true}, replication.Unavailable},
		{"START_REPLICATION", walsendertest.Action{Err: removed}, replication.SlotLost},
		{"START_REPLICATION", walsendertest.Action{Err: walsendertest.Error("ERROR", "55006", "active")}, replication.SlotActive},
	} {
		t.Run(c.part+" "+c.want.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := walsendertest.NewInMemory(t, walsendertest.NewCatalog())
				s.On(c.part, 1, c.act)
				src := source(t, s, true)
				st, err := src.Open(context.Background())
				if err == nil {
					_ = st.Close(0, time.Now())
				}
				if err == nil || replication.KindOf(err) != c.want {
					t.Fatalf("%v, want %s", err, c.want)
				}
				st, err = src.Open(context.Background()) // the rule applies only once
				if err != nil {
					t.Fatal(err)
				}
				_ = st.Close(0, time.Now())
			})
		})
	}
}
