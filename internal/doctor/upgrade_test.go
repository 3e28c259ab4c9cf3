package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sql"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// TestUpgradeIsDocumented checks that docs/upgrade.md has the checks in their order, and no others.
func TestUpgradeIsDocumented(t *testing.T) {
	if got := documented(t, "upgrade.md"); !slices.Equal(got, UpgradeChecks()) {
		t.Errorf("docs/upgrade.md has\n%v, and the catalogue\n%v", got, UpgradeChecks())
	}
}

// upgradeOutcomes returns the outcomes that docs/upgrade.md gives a check.
func upgradeOutcomes(t *testing.T, check string) (all []string) {
	text, err := os.ReadFile("../../docs/upgrade.md")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if m := checkItem.FindStringSubmatch(line); m != nil && m[1] == check {
			all = strings.Split(strings.ReplaceAll(m[2], "FAIL", "FAIL 1"), ", ")
		}
	}
	return all
}

// consume advances the slot to the end of the WAL.
func (p *place) consume() {
	p.t.Helper()
	must(p.t, p.s.Exec(p.t.Context(), p.name, "SELECT pg_replication_slot_advance('"+p.name+"', pg_current_wal_lsn())"))
}

// awaitQuery waits until the check waits between two queries of these words, as it does every upgradePause.
func (p *place) awaitQuery(words string) {
	p.await("the wait after the query of "+words, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'idle' AND datname = '"+p.name+
		"' AND query LIKE '%"+words+"%' AND clock_timestamp() - state_change > interval '100 milliseconds')")
}

// confirmAll confirms whatever the server writes.
func confirmAll(ctx context.Context, conn *pgconn.PgConn) error {
	return pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: 1 << 62})
}

// upgradeChecked runs CheckUpgrade, and compares everything but OK with these outcomes. The server itself may write
// to its WAL after consume, and the slot then has not consumed everything. In that case it begins again.
func (p *place) upgradeChecked(patience time.Duration, all ...outcome) *Report {
	p.t.Helper()
	p.examine() // completes the configuration
	check := func() *Report {
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		defer cancel()
		return CheckUpgrade(ctx, p.cfg)
	}
	r := check()
	expected := slices.ContainsFunc(all, func(o outcome) bool { return o.check == upgradeConsumed })
	for range 9 {
		fell := func(f Finding) bool { return f.Check == upgradeConsumed && f.Level == Fail }
		if expected || !slices.ContainsFunc(r.Findings, fell) {
			break
		}
		p.consume()
		r = check()
	}
	if p.compare(r, all); p.t.Failed() {
		p.t.FailNow()
	}
	return r
}

// TestUpgradeOutcomes causes every outcome of the catalogue on a real server.
func TestUpgradeOutcomes(t *testing.T) {
	w := &world{t: t, seen: map[string]bool{}}
	w.pg = pgtest.ForTest(t, pgtest.Options{Major: "17", Settings: map[string]string{
		"max_prepared_transactions": "5", "autovacuum": "off", "max_slot_wal_keep_size": "50GB", "fsync": "off",
	}})
	w.kafka = newKafka(t, 1)
	w.makeRole(w.pg)
	p := w.newPlace(t, w.pg).make()
	_ = p.conn.Close(t.Context()) // it may write
	p.conn = pgtest.Connect(t, w.pg.SuperURL("postgres"))
	const soon, later = 2500 * time.Millisecond, 20 * time.Second
	idle := outcome{slotHolder, "WARN", "no daemon"}
	inDatabase := func(statements ...string) {
		t.Helper()
		must(t, p.s.Exec(t.Context(), p.name, statements...))
	}

	t.Run("an event waits", func(t *testing.T) {
		p.in(t).upgradeChecked(soon, idle, outcome{upgradeConsumed, "FAIL 1", "no daemon reads"})
	})
	consume := p.consume
	recreate := func() {
		t.Helper()
		inDatabase("SELECT pg_drop_replication_slot('"+p.name+"')", "SELECT pg_create_logical_replication_slot('"+p.name+"', 'pgoutput')")
	}
	t.Run("everything is consumed", func(t *testing.T) {
		consume()
		r := p.in(t).upgradeChecked(soon, idle)
		if text := r.String(); !strings.Contains(text, "max_replication_slots to at least 1") || strings.Contains(text, "slot adopt") {
			t.Errorf("without a position record:\n%s", text)
		}
	})
	t.Run("prepared", func(t *testing.T) {
		inDatabase("BEGIN", "CREATE TABLE t ()", "PREPARE TRANSACTION 'p'")
		consume()
		p.in(t).upgradeChecked(soon, idle, outcome{upgradePrepared, "FAIL 1", "'p'"})
		inDatabase("ROLLBACK PREPARED 'p'")
		consume()
	})
	t.Run("a transaction is open", func(t *testing.T) {
		q := p.in(t)
		conn := pgtest.Connect(t, q.s.SuperURL(q.name))
		_, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'open')")
		must(t, err)
		writes := outcome{upgradeSessions, "WARN", "postgres"}
		consume()
		q.upgradeChecked(soon, idle, writes, outcome{upgradeOpen, "FAIL 1", "of postgres in database " + q.name})
		// A transaction that ends is waited for, and what it has written is not consumed.
		ended := make(chan error, 1)
		go func() {
			q.awaitQuery("pg_locks")
			_, err := conn.Exec(context.Background(), "ROLLBACK")
			ended <- err
		}()
		q.upgradeChecked(later, idle, writes)
		must(t, <-ended)
		_ = conn.Close(context.Background())
		q.await("the end of the session", "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '"+q.name+"')")
		consume()
	})
	t.Run("another client", func(t *testing.T) {
		q := p.in(t)
		conn := q.stream(roleName, "debezium", q.name)
		must(t, confirmAll(t.Context(), conn))
		q.upgradeChecked(soon, outcome{slotHolder, "WARN", "debezium"})
		_ = conn.Close(context.Background())
		q.await("the end of the stream", "SELECT NOT active FROM pg_replication_slots")
		recreate()
	})
	t.Run("the daemon confirms late", func(t *testing.T) {
		q := p.in(t)
		inDatabase("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'late')")
		q.examine() // completes the configuration
		conn := q.stream(roleName, q.cfg.Source.ApplicationName(), q.name)
		q.await("the stream", "SELECT active FROM pg_replication_slots")
		q.upgradeChecked(soon, outcome{upgradeConsumed, "FAIL 1", "is not confirmed after"})
		confirmed := make(chan error, 1)
		go func() {
			q.awaitQuery("confirmed_flush_lsn")
			confirmed <- confirmAll(context.Background(), conn)
		}()
		q.upgradeChecked(later)
		must(t, <-confirmed)
		_ = conn.Close(context.Background())
		q.await("the end of the stream", "SELECT NOT active FROM pg_replication_slots")
		recreate()
	})
	t.Run("position record", func(t *testing.T) { positionOutcomes(t, p.in(t), idle) })
	t.Run("other slots", func(t *testing.T) {
		q := p.in(t)
		consume()
		q.exec("SELECT pg_create_logical_replication_slot('behind', 'pgoutput')", "CREATE TABLE t ()")
		consume()
		q.upgradeChecked(soon, idle, outcome{upgradeOthers, "WARN", "behind of database postgres"})
	})
	t.Run("lost", func(t *testing.T) {
		q := p.in(t)
		q.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
		q.await("the setting", "SELECT current_setting('max_slot_wal_keep_size') = '16MB'")
		for range 4 {
			q.exec("SELECT pg_switch_wal()", "CREATE TABLE u ()", "DROP TABLE u")
		}
		q.exec("CHECKPOINT")
		q.upgradeChecked(soon, idle, outcome{slotWAL, "FAIL 1", "invalidated it"}, outcome{upgradeConsumed, "FAIL 1", "no daemon reads"},
			outcome{upgradeOthers, "FAIL 1", "behind of database postgres"})
	})
	t.Run("no slot", func(t *testing.T) {
		q := p.in(t)
		q.exec("SELECT pg_drop_replication_slot('" + q.name + "')")
		q.upgradeChecked(soon, outcome{slotExists, "FAIL 1", "no slot"})
		q.exec("SELECT pg_create_physical_replication_slot('" + q.name + "')")
		q.upgradeChecked(soon, outcome{slotFits, "FAIL 1", "physical"})
	})
	t.Run("no connection", func(t *testing.T) {
		q := p.in(t)
		q.rcfg.URL = func() (string, error) { return q.s.URL(q.name, roleName, "wrong"), nil }
		q.upgradeChecked(soon, outcome{pgConnect, "FAIL 1", "password"})
	})
	t.Run("old version, standby", func(t *testing.T) {
		e := &examination{findings: newFindings()}
		e.server.Version, e.server.VersionText, e.server.Standby = 160010, "16.10", true
		e.checkKeepsSlot()
		e.checkPrimary()
		if f := e.found[upgradeVersion][0]; f.Level != Warn || !strings.Contains(f.Remedy[0].Text, "steps") {
			t.Errorf("%+v", f)
		}
		e.Command = "outboxcdc"
		if _, steps := e.steps(7, 1); !strings.HasPrefix(steps[4], "outboxcdc recover --this-server: ") {
			t.Errorf("the steps are %q", steps)
		}
		e.Receiver = func(context.Context) error { return nil }
		if text, steps := e.steps(7, 1); !strings.HasPrefix(steps[4], "outboxcdc setup apply: ") || strings.Contains(fmt.Sprint(text, steps), "recover") {
			t.Errorf("the steps for another sink are %s: %q", text, steps)
		}
		e.found[upgradeVersion], e.server.Version = nil, (sql.NewestTested+1)*10000
		e.checkKeepsSlot()
		if f := e.found[upgradeVersion][0]; f.Level != Warn || !strings.Contains(f.Text, "is newer than") {
			t.Errorf("%+v", f)
		}
		w.seen[upgradeVersion+" WARN"], w.seen[pgPrimary+" FAIL 1"] = true, e.has(pgPrimary, Fail)
	})
	if t.Failed() {
		return
	}
	for _, c := range UpgradeChecks() {
		for _, o := range upgradeOutcomes(t, c.Name) {
			if !w.seen[c.Name+" "+o] && o != string(OK) {
				t.Errorf("no case reaches %s of %s", o, c.Name)
			}
		}
	}
}

// positionOutcomes are the outcomes of a position record.
func positionOutcomes(t *testing.T, q *place, idle outcome) {
	q.cfg.Positions, q.cfg.EventSources = "positions", "sources"
	q.upgradeChecked(20*time.Second, idle, outcome{upgradeRecord, "WARN", "cannot be read"})
	q.examine()
	_, err := q.cfg.Kafka.CreateTopic(t.Context(), "positions", kafka.PositionTopic(1))
	must(t, err)
	q.upgradeChecked(20*time.Second, idle, outcome{upgradeRecord, "WARN", "has no position record"})

	id, err := q.cfg.Source.Identify(t.Context(), "test")
	must(t, err)
	var at string
	must(t, q.conn.QueryRow(t.Context(), "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", q.name).Scan(&at))
	confirmed, err := pglogrepl.ParseLSN(at)
	must(t, err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(q.w.kafka.ListenAddrs()...))
	must(t, err)
	defer cl.Close()
	store := func(rec checkpoint.PositionRecord) {
		t.Helper()
		text, err := rec.MarshalText()
		must(t, err)
		must(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: "positions", Key: []byte(q.name), Value: text}).FirstErr())
	}
	rec := checkpoint.PositionRecord{Slot: q.name, Generation: 1, SystemID: id.SystemID, Timeline: id.Timeline, Confirm: confirmed + 1<<20, Sources: "sources"} // upgradeChecked may advance the slot
	store(rec)
	q.upgradeChecked(20*time.Second, idle, outcome{upgradeRecord, "WARN", "without the version of the server"})
	if id.Major != 17 {
		t.Errorf("the server is PostgreSQL %d", id.Major)
	}
	rec.ServerMajor = id.Major
	store(rec)
	if r := q.upgradeChecked(20*time.Second, idle); !strings.Contains(r.String(), fmt.Sprintf("slot adopt --upgraded-from %d: ", id.SystemID)) {
		t.Errorf("the steps do not name slot adopt:\n%s", r)
	}
	rec.Generation, rec.Published = 2, "0123456789abcdef"
	store(rec)
	q.upgradeChecked(20*time.Second, idle, outcome{upgradeRecord, "FAIL 1", "publication"})
	rec.Generation, rec.Published, rec.Confirm = 3, "", confirmed-1
	rec.Adopted = true // what was stored before does not count
	store(rec)
	q.upgradeChecked(20*time.Second, idle, outcome{upgradeRecord, "FAIL 1", "contradicts the slot: "})
}
