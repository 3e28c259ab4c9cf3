package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// walInsert returns a position after everything that has committed and not beyond anything that has not begun.
func walInsert(o *outbox) pglogrepl.LSN {
	o.t.Helper()
	lsn, err := o.admin.lsn("SELECT pg_current_wal_insert_lsn()::text")
	must(o.t, err)
	return lsn
}

// recreateSlot drops and recreates the slot, so that it begins after the changes to table and publication.
func recreateSlot(o *outbox) {
	o.t.Helper()
	o.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.name)
	o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
}

// awaitStop waits until the daemon has ended by itself, and checks its exit code and its last log line, which says what
// is wrong and what to do.
func (r *relay) awaitStop(d time.Duration, code int, words ...string) {
	r.t.Helper()
	if exit := r.awaitExit(max(d, time.Second)); exit != code {
		r.t.Fatalf("exit code %d, want %d: %s", exit, code, lastLine(r.log))
	}
	var last struct {
		Level, Msg, Error string
		Exit              int
	}
	text := lastLine(r.log)
	if err := json.Unmarshal([]byte(text), &last); err != nil {
		r.t.Fatalf("the last line is no log entry: %s", text)
	}
	if last.Msg != "stopped" || last.Level != "ERROR" || last.Exit != code {
		r.t.Errorf("the last line is not about the stop: %s", text)
	}
	says(r.t, last.Error, words...)
	r.t.Logf("last line: %s", last.Error)
}

// lastLine returns the last complete line of a file.
func lastLine(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(b))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// The guard compares identities and not meaning, so a publication that was altered and restored stops the daemon too. A
// standby must decide the same: otherwise it would confirm, seconds later, what the first refused to.
func TestAlteredWhileAStandbyWaits(t *testing.T) {
	o := newOutbox(t, options{})
	first := o.startStreaming()
	standby := o.start()
	standby.awaitState("waiting_for_slot", patience)
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)

	first.endExpected, standby.endExpected = true, true
	o.exec(`ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (false)`)
	limit := walInsert(o)
	end := o.insert("order", "lost", 4, 1)
	o.exec(`ALTER PUBLICATION outboxcdc SET TABLE outbox`)
	first.awaitStop(patience, 79, "altered")
	await(t, patience, "the standby to end", func() error {
		if c := o.confirmed(); c > limit {
			return &finalError{fmt.Errorf("the slot confirms %s; a row that was filtered out ends at %s, the alteration at %s", c, end, limit)}
		}
		if !standby.proc.Exited() {
			return errors.New("it runs")
		}
		return nil
	})
	standby.awaitStop(0, 79, "altered")
}

// An ALTER PUBLICATION whose commit waits for a synchronous standby is in the WAL, and the walsender applies it, but it
// is not visible in the catalogs yet. So the guard must not conclude that nothing has changed when a row that it reads
// is about to change (its xmax is in progress).
func TestAlterationNotYetVisible(t *testing.T) {
	t.Parallel()
	pg := ownPostgres(t, "17", nil)
	o := newOutbox(t, options{pg: pg})
	r := o.startStreaming()
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)
	t.Cleanup(func() { setSystem(o, "synchronous_standby_names", "") })
	setSystem(o, "synchronous_standby_names", "absent")
	// It takes effect once the checkpointer has read it, which only a commit shows.
	probing, endProbe := context.WithCancel(context.Background())
	defer endProbe()
	probed := make(chan error, 1)
	go func() {
		var err error
		for err == nil { // until one waits, and is cancelled
			err = pg.Exec(probing, o.name, `INSERT INTO counter VALUES (gen_random_uuid()::text)`)
		}
		probed <- err
	}()
	awaitSyncRep(o, 1)
	endProbe()
	if err := <-probed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	awaitSyncRep(o, 0)
	done := make(chan error, 1)
	go func() {
		db := session{url: pg.SuperURL(o.name)}
		defer db.close()
		done <- db.do(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (false)`)
			return err
		})
	}()
	awaitSyncRep(o, 1)
	r.endExpected = true
	limit := walInsert(o)
	o.exec(`SET synchronous_commit = local`)
	end := o.insert("order", "lost", 4, 1)
	// Give the daemon the time to confirm the row that was never sent.
	err := poll(3*time.Second, func() error {
		o.exec(`INSERT INTO counter VALUES (gen_random_uuid()::text)`)
		if o.confirmed() >= end {
			return nil
		}
		return errors.New("not confirmed")
	})
	if err == nil {
		t.Errorf("the slot confirms %s; a row that was filtered out ends at %s, the alteration at %s", o.confirmed(), end, limit)
	}
	setSystem(o, "synchronous_standby_names", "")
	must(t, <-done)
	r.awaitStop(patience, 79, "altered")
}

// awaitSyncRep waits until so many commits wait for a synchronous standby.
func awaitSyncRep(o *outbox, want int) {
	o.t.Helper()
	await(o.t, patience, fmt.Sprintf("%d commits to wait for a standby", want), func() error {
		var n int
		err := o.admin.scan(`SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`, &n)
		if err == nil && n != want {
			err = fmt.Errorf("%d wait", n)
		}
		return err
	})
}

// setSystem sets a setting of the whole server and waits until sessions know it; "" is the default. Only for servers
// that the test has for itself. It uses another session than exec, and does not wait for a synchronous standby.
func setSystem(o *outbox, name, value string) {
	o.t.Helper()
	sql := "ALTER SYSTEM RESET " + name
	if value != "" {
		sql = "ALTER SYSTEM SET " + name + " = '" + value + "'"
	}
	db := session{url: o.pg.SuperURL("postgres")}
	defer db.close()
	must(o.t, db.do(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	}))
	must(o.t, o.pg.Reload())
	await(o.t, patience, "the reload", func() error {
		var now string
		err := db.scan("SELECT current_setting('"+name+"')", &now)
		if err == nil && value != "" && now != value {
			err = fmt.Errorf("it is %q", now)
		}
		if err == nil && value == "" && strings.Contains(name, "standby") && now != "" {
			err = fmt.Errorf("it is %q", now)
		}
		return err
	})
}

// How soon acknowledged events are confirmed does not depend on the ratio of other intervals: the guard checks when
// there is something to confirm, also where status updates are due more often than status_interval.
func TestConfirmedSoonWhateverTheIntervals(t *testing.T) {
	o := newOutbox(t, options{})
	o.startStreaming("OUTBOXCDC_TUNING_WAL_SENDER_TIMEOUT=2s")
	o.insert("order", "k", 1, 1)
	o.awaitArrived(patience)
	if took := o.awaitConfirmed(o.walFlushed(), patience); took > 8*time.Second+busyAllowance {
		t.Errorf("confirmed after %v", took.Round(time.Millisecond))
	}
}

// Changes of publication, table and catalogs that do not concern the events must not stop the daemon or hold up the
// slot.
func TestHarmlessAlterations(t *testing.T) {
	o := newOutbox(t, options{pg: sharedPostgres(t, "18")})
	o.sample()
	r := o.startStreaming(steady)
	for n, ddl := range []string{
		`CREATE TABLE other (id int PRIMARY KEY)`,
		`ALTER PUBLICATION outboxcdc ADD TABLE other`,
		`INSERT INTO other VALUES (1)`,
		`ALTER PUBLICATION outboxcdc DROP TABLE other`,
		`CREATE PUBLICATION another FOR TABLE outbox WHERE (n > 1000000)`,
		`DROP PUBLICATION another`,
		`GRANT SELECT ON outbox TO PUBLIC`,
		`CREATE INDEX ON outbox (aggregate_id)`,
		`CREATE INDEX CONCURRENTLY ON outbox (n)`,
		`ALTER TABLE outbox REPLICA IDENTITY FULL`,
		`ALTER TABLE outbox SET (autovacuum_enabled = false)`,
		`COMMENT ON TABLE outbox IS 'events'`,
		`ANALYZE outbox`,
		`VACUUM (FREEZE) outbox`,
		`VACUUM FULL outbox`, // changes the file
		`CLUSTER outbox USING outbox_pkey`,
		`VACUUM (FULL, FREEZE) pg_publication`,
		`VACUUM (FULL, FREEZE) pg_publication_rel`,
		`VACUUM (FULL, FREEZE) pg_class`,
		`UPDATE outbox SET event_type = event_type`,
		`ALTER PUBLICATION outboxcdc OWNER TO CURRENT_USER`, // the same owner
	} {
		o.exec(ddl)
		o.insert("order", "k", n+1, 1)
	}
	// Two catalog checks of the guard that began after the last change.
	for n := range 2 {
		o.insert("order", "last", n+1, 1)
		o.awaitConfirmed(o.walFlushed(), patience)
	}
	if v := o.verify(patience); v.Repeats != 0 {
		t.Errorf("%d repeats", v.Repeats)
	}
	is(t, "log lines", len(r.changesOfState()), 1)
}

// A mismatch at the start ends the daemon at once, with a remedy, and does not move the slot.
func TestUnfitAtStart(t *testing.T) {
	o := newOutbox(t, options{})
	o.insert("order", "k", 1, 1)
	before := o.confirmed()
	for _, c := range []struct {
		name string
		ddl  string
		env  string
		exit int
		says string
	}{
		{"row filter", `ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (n > 0)`, "", 79, "row filter"},
		{"no inserts", `ALTER PUBLICATION outboxcdc SET TABLE outbox; ALTER PUBLICATION outboxcdc SET (publish = 'truncate')`, "", 79, "inserts"},
		{"without the table", `ALTER PUBLICATION outboxcdc SET (publish = 'insert'); ALTER PUBLICATION outboxcdc SET TABLE counter`, "", 79, "does not carry table public.outbox"},
		{"no publication", `DROP PUBLICATION outboxcdc`, "", 79, "no publication of that name"},
		{"no table", `CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert')`, "OUTBOXCDC_OUTBOX_TABLE=public.outbux", 79, "public.outbux"},
		{"a slot of another database", `SELECT 1`, "OUTBOXCDC_POSTGRES_URL=" + o.pg.URL("postgres", role, password), 78, "belongs to database " + o.name},
		{"no such slot", `SELECT 1`, "OUTBOXCDC_POSTGRES_SLOT=" + o.name + "x", 79, "slot " + o.name + "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.exec(c.ddl, pgx.QueryExecModeSimpleProtocol)
			env := []string{}
			if c.env != "" {
				env = append(env, c.env)
			}
			r := o.start(env...)
			r.awaitStop(patience, c.exit, c.says, "remedy: ")
			if now := o.confirmed(); now != before {
				t.Errorf("the slot confirms %s, was %s", now, before)
			}
		})
	}
}
