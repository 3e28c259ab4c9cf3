package sql

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// delivered checks that each row arrives once.
func (h *handedOver) delivered(keys ...string) {
	h.Helper()
	h.await("the rows to arrive", func() bool { return h.arrived.len() >= len(keys) })
	for slot := range h.readers { // all that they send has arrived
		end := h.text("pg_current_wal_insert_lsn()")
		h.await("the slots to confirm everything", func() bool {
			return h.text("SELECT confirmed_flush_lsn >= '"+end+"' FROM pg_replication_slots WHERE slot_name = '"+slot+"'") == "true"
		})
	}
	if got := h.arrived.sorted(); !slices.Equal(got, keys) {
		h.Errorf("arrived: %v; want %v", got, keys)
	}
}

// arrivals are the keys of the rows that readers have read.
type arrivals struct {
	mu   sync.Mutex
	keys []string
}

func (a *arrivals) add(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys = append(a.keys, key)
}

func (a *arrivals) len() int { return len(a.sorted()) }

func (a *arrivals) sorted() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(a.keys))
}

// reader reads a slot and confirms it, as a daemon does.
type reader struct {
	conn   *pgconn.PgConn
	cancel context.CancelFunc
	ended  chan struct{}
	silent atomic.Bool

	mu   sync.Mutex
	done pglogrepl.LSN // everything before has arrived
}

// readAll reads the slots of all daemons of p.
func (h *handedOver) readAll(p Params) {
	h.Helper()
	for n := range p.Shards {
		s := p.Shard(n)
		h.read(&s)
	}
}

func (h *handedOver) read(p *Params) {
	h.Helper()
	if h.readers[p.Slot] != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var conn *pgconn.PgConn
	h.await("the slot to be free", func() (free bool) {
		var err error
		conn, err = pgconn.Connect(ctx, h.server.SuperURL(h.p.Slot)+"&replication=database")
		must(h, err)
		err = pglogrepl.StartReplication(ctx, conn, p.Slot, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + p.Publication + "'"},
		})
		if err != nil {
			_ = conn.Close(ctx)
		}
		return err == nil
	})
	r := &reader{conn: conn, cancel: cancel, ended: make(chan struct{})}
	h.readers[p.Slot] = r
	go func() {
		defer close(r.ended)
		defer conn.Close(context.Background()) //nolint:errcheck // it ends
		open := false
		for {
			msg, err := conn.ReceiveMessage(ctx)
			if err != nil {
				return
			}
			data, is := msg.(*pgproto3.CopyData)
			if !is {
				continue
			}
			switch data.Data[0] {
			case pglogrepl.PrimaryKeepaliveMessageByteID:
				k, _ := pglogrepl.ParsePrimaryKeepaliveMessage(data.Data[1:])
				if !open {
					r.advance(k.ServerWALEnd)
				}
			case pglogrepl.XLogDataByteID:
				x, _ := pglogrepl.ParseXLogData(data.Data[1:])
				m, _ := pglogrepl.Parse(x.WALData)
				switch m := m.(type) {
				case *pglogrepl.BeginMessage:
					open = true
				case *pglogrepl.InsertMessage:
					h.arrived.add(string(m.Tuple.Columns[2].Data))
				case *pglogrepl.CommitMessage:
					open = false
					r.advance(m.TransactionEndLSN)
				}
			}
			if !r.silent.Load() && r.confirm() != nil {
				return
			}
		}
	}()
}

func (r *reader) advance(to pglogrepl.LSN) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = max(r.done, to)
}

func (r *reader) confirm() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return pglogrepl.SendStandbyStatusUpdate(context.Background(), r.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: r.done})
}

func (h *handedOver) stop(slot string) {
	r := h.readers[slot]
	delete(h.readers, slot)
	r.cancel()
	<-r.ended
}
