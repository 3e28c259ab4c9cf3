package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// startStandby starts a standby that stores nothing: it receives the WAL and reports at once that it is on disk.
func startStandby(t *testing.T, pg *pgtest.Server, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := pgconn.Connect(ctx, pg.SuperURL("postgres")+"&replication=true&application_name="+name)
	must(t, err)
	sys, err := pglogrepl.IdentifySystem(ctx, conn)
	must(t, err)
	// From the beginning of a segment, as every standby.
	from := sys.XLogPos &^ (16<<20 - 1)
	_, err = pglogrepl.CreateReplicationSlot(ctx, conn, name, "", pglogrepl.CreateReplicationSlotOptions{Temporary: true, Mode: pglogrepl.PhysicalReplication})
	must(t, err)
	must(t, pglogrepl.StartReplication(ctx, conn, name, from, pglogrepl.StartReplicationOptions{Mode: pglogrepl.PhysicalReplication}))
	ended := make(chan error, 1)
	go func() { ended <- acknowledge(ctx, conn, from) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the standby: %v", err)
		}
	})
}

// acknowledge reads until ctx ends.
func acknowledge(ctx context.Context, conn *pgconn.PgConn, end pglogrepl.LSN) error {
	defer func() { _ = conn.Close(context.Background()) }()
	for {
		err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: end, WALFlushPosition: end, WALApplyPosition: end})
		var raw pgproto3.BackendMessage
		if err == nil {
			// As wal_receiver_status_interval: a standby that becomes synchronous reports that only with its next
			// update.
			next, cancel := context.WithTimeout(ctx, time.Second)
			raw, err = conn.ReceiveMessage(next)
			cancel()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case pgconn.Timeout(err):
			continue
		case err != nil:
			return err
		}
		m, ok := raw.(*pgproto3.CopyData)
		if !ok {
			return fmt.Errorf("the server sent %T", raw)
		}
		if m.Data[0] == pglogrepl.XLogDataByteID {
			x, err := pglogrepl.ParseXLogData(m.Data[1:])
			if err != nil {
				return err
			}
			end = max(end, x.WALStart+pglogrepl.LSN(len(x.WALData)))
		}
	}
}

// commits commits to an unpublished table repeatedly, and records how long each commit took.
type commits struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu      sync.Mutex
	count   int
	slowest time.Duration
	since   time.Time // start of the present one
	err     error
}

func (o *outbox) commits() *commits {
	ctx, cancel := context.WithCancel(context.Background())
	c := &commits{cancel: cancel, since: time.Now()}
	conn, err := pgx.Connect(ctx, o.pg.SuperURL(o.name))
	must(o.t, err)
	c.ended.Go(func() {
		defer func() { _ = conn.Close(context.Background()) }()
		for ctx.Err() == nil {
			c.note(conn.Exec(ctx, `INSERT INTO counter VALUES (gen_random_uuid()::text)`))
		}
	})
	o.t.Cleanup(c.stop)
	return c
}

func (c *commits) note(_ pgconn.CommandTag, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.err = err
		return
	}
	c.count++
	c.slowest = max(c.slowest, time.Since(c.since))
	c.since = time.Now()
}

func (c *commits) stop() {
	c.cancel()
	c.ended.Wait()
}

// take returns the number of commits since the last call, and the duration of the slowest, which may be unfinished.
func (c *commits) take() (count int, slowest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, slowest = c.count, max(c.slowest, time.Since(c.since))
	c.count, c.slowest = 0, 0
	return count, slowest
}

// awaitSome waits until commits continue.
func (c *commits) awaitSome(t *testing.T) {
	t.Helper()
	c.take()
	await(t, patience, "commits", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.count < 10 {
			return errors.New("too few commits")
		}
		return nil
	})
}

// One server for all tests of standbys: their settings are the server's.
func TestStandbysOfTheServer(t *testing.T) {
	t.Parallel()
	pg := ownPostgres(t, "17", map[string]string{"log_replication_commands": "on"})
	t.Run("synchronous from the start", func(t *testing.T) { synchronousAtStart(t, pg) })
	t.Run("synchronous while running", func(t *testing.T) { synchronousWhileRunning(t, pg) })
	t.Run("slots to wait for", func(t *testing.T) { synchronizedSlots(t, pg) })
}

// The daemon is never a synchronous standby: every commit would wait for Kafka. It checks the setting before the stream
// is started, so that it does not delay a commit even for a moment.
func synchronousAtStart(t *testing.T, pg *pgtest.Server) {
	o := newOutbox(t, options{pg: pg})
	startStandby(t, pg, "mirror")
	c := o.commits()
	t.Cleanup(func() { setSystem(o, "synchronous_standby_names", "") })
	for _, names := range []string{"*", `ANY 1 (mirror, "OUTBOXCDC-` + o.name + `")`} {
		setSystem(o, "synchronous_standby_names", names)
		c.awaitSome(t)
		r := o.start()
		r.awaitStop(patience, 78, "synchronous_standby_names", "remedy: ", names)
		count, slowest := c.take()
		t.Logf("%d commits meanwhile, the slowest took %v", count, slowest.Round(time.Millisecond))
		if count == 0 || slowest > busyAllowance {
			t.Errorf("commits were held: %d, the slowest took %v", count, slowest)
		}
		server, err := os.ReadFile(pg.LogFile)
		must(t, err)
		if strings.Contains(string(server), `START_REPLICATION SLOT "`+o.name) || strings.Contains(string(server), `START_REPLICATION SLOT `+o.name) {
			t.Error("replication was started")
		}
	}
	// With the real standby named the setting does not concern the daemon.
	setSystem(o, "synchronous_standby_names", "mirror")
	r := o.startStreaming()
	o.insert("order", "k", 1, 5)
	o.verify(patience)
	server, err := os.ReadFile(pg.LogFile)
	must(t, err)
	if !strings.Contains(string(server), `START_REPLICATION SLOT `) || !strings.Contains(string(server), o.name) {
		t.Error("the server does not log the commands that this test expects")
	}
	r.term()
}

// Set while the daemon streams, the setting makes it a synchronous standby until the next check: commits wait for that
// long, and not longer.
func synchronousWhileRunning(t *testing.T, pg *pgtest.Server) {
	o := newOutbox(t, options{pg: pg})
	r := o.startStreaming()
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)
	startStandby(t, pg, "mirror")
	c := o.commits()
	c.awaitSome(t)
	r.endExpected = true
	t.Cleanup(func() { setSystem(o, "synchronous_standby_names", "") })
	begin := time.Now()
	setSystem(o, "synchronous_standby_names", "*")
	r.awaitStop(patience, 78, "synchronous_standby_names", "remedy: ")
	ended := time.Since(begin)
	_, slowest := c.take()
	t.Logf("it ended %v after the setting; the slowest commit took %v", ended.Round(time.Millisecond), slowest.Round(time.Millisecond))
	if ended > 5*time.Second+busyAllowance || slowest > 5*time.Second+busyAllowance {
		t.Error("commits waited for too long")
	}
	c.awaitSome(t)
}

// synchronized_standby_slots withholds rows until a standby has them. That is a state, neither an end nor a reason to
// confirm anything.
func synchronizedSlots(t *testing.T, pg *pgtest.Server) {
	o := newOutbox(t, options{pg: pg})
	if failover := o.query(o.slotSQL("failover::text")); failover != "true" {
		t.Fatalf("failover is %s: setup apply makes failover slots on 17", failover)
	}
	r := o.startStreaming()
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)
	o.exec(`SELECT pg_create_physical_replication_slot($1)`, o.name+"_phys")
	t.Cleanup(func() { o.exec(`SELECT pg_drop_replication_slot($1)`, o.name+"_phys") })
	setSystem(o, "synchronized_standby_slots", o.name+"_phys")
	t.Cleanup(func() { setSystem(o, "synchronized_standby_slots", "") }) // before the slot is dropped
	// The walsender may read the setting last: what it still sends is sent.
	var limit pglogrepl.LSN
	sent := 3
	for waits := false; !waits; sent++ {
		limit = walInsert(o)
		o.insert("order", "k", sent+1, 1)
		await(t, patience, "the row to arrive, or a reason to wait", func() error {
			st, err := r.status()
			waits = st.State == "waiting_for_standby"
			if err == nil && !waits && o.follow.records() < sent+1 {
				err = errors.New("the reason is " + st.State)
			}
			return errors.Join(err, o.checkRelays())
		})
		if sent == 20 {
			t.Fatal("the server does not wait for the slot")
		}
	}
	sent-- // the last one waits
	o.insert("order", "k", sent+2, 20)
	st, err := r.status()
	must(t, err)
	says(t, st.Reason, o.name+"_phys")
	checkEndpoint(t, r, "/readyz", http.StatusServiceUnavailable)
	checkEndpoint(t, r, "/livez", http.StatusOK)

	// A daemon that starts meanwhile behaves the same.
	r.term()
	const timeout = 6 * time.Second
	r = o.start(fmt.Sprintf("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=%v", timeout))
	r.awaitState("waiting_for_standby", patience)
	begin := time.Now()
	await(t, patience, "wal_sender_timeout to pass", func() error { // nor is the silence mistaken for a dead server
		if d := time.Since(begin); d < timeout*5/4 {
			return fmt.Errorf("%v have passed", d)
		}
		return o.checkRelays()
	})
	r.awaitState("waiting_for_standby", patience)
	m, err := r.metrics()
	must(t, err)
	for name, n := range m {
		if strings.HasPrefix(name, "outboxcdc_replication_reconnects_total") && n > 0 {
			t.Errorf("%s is %v: it did not wait", name, n)
		}
	}
	if c := o.confirmed(); c > limit {
		t.Errorf("the slot confirms %s, after %s, where sending stopped", c, limit)
	}
	is(t, "records", o.follow.records(), sent)
	setSystem(o, "synchronized_standby_slots", "")
	r.awaitState("streaming", patience)
	if v := o.verify(patience); v.Repeats != 0 {
		t.Errorf("%d repeats", v.Repeats)
	}
}
