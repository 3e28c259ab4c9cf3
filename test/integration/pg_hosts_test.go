package integration

import (
	"fmt"
	"maps"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// standbyLimits are as large as those of the servers of ownPostgres, as a standby needs them.
var standbyLimits = map[string]string{"max_prepared_transactions": "10", "max_replication_slots": "20", "max_wal_senders": "20"}

// withStandby starts a primary and a standby with further settings, of a version that copies slots to standbys.
func withStandby(t *testing.T, ofPrimary, ofStandby map[string]string) (primary, standby *pgtest.Server) {
	t.Helper()
	primary = ownPostgres(t, "17", ofPrimary)
	settings := maps.Clone(standbyLimits)
	maps.Copy(settings, ofStandby)
	standby, err := primary.Standby(testContext(t), "standby", settings)
	must(t, err)
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	return primary, standby
}

// The URL names a standby and the primary. The daemon reads from the primary, in either order; with a standby alone it
// waits, with the reason; and when the standby is promoted, it continues there.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	primary, standby := withStandby(t, nil, nil)
	o := newOutbox(t, options{pg: primary})
	both := func(first, second *pgtest.Server) string {
		return fmt.Sprintf("OUTBOXCDC_POSTGRES_URL=postgres://%s:%s@%s,%s/%s?sslmode=disable&target_session_attrs=read-write",
			role, password, first.HostPort(), second.HostPort(), o.name)
	}
	alone := o.start("OUTBOXCDC_POSTGRES_URL=" + standby.URL(o.name, role, password))
	alone.awaitReconnects("postgres_unavailable", 3)
	alone.awaitReason("reconnecting", "the server is in recovery: a standby", "remedy: name the primary, or all hosts, in postgres.url")
	alone.term()

	r := o.startStreaming(both(standby, primary))
	o.insert("order", "a", 1, 20)
	last := o.insert("order", "b", 1, 20)
	o.awaitArrived(patience)
	o.awaitConfirmed(last, patience)
	// sync_replication_slots does this periodically. The slot's restart_lsn has to pass the beginning of the standby's
	// copy.
	await(t, patience, "the slot on the standby", func() error {
		o.exec(`SELECT pg_log_standby_snapshot()`)
		err := standby.Exec(testContext(t), "postgres", `SELECT pg_sync_replication_slots()`)
		if err == nil {
			err = standby.Exec(testContext(t), "postgres", `DO $$ BEGIN ASSERT EXISTS (SELECT FROM pg_replication_slots
				WHERE slot_name = '`+o.name+`' AND synced AND NOT temporary AND invalidation_reason IS NULL), 'not yet'; END $$`)
		}
		return err
	})
	_, err := primary.Stop(testContext(t), pgtest.Immediate)
	must(t, err)
	await(t, patience, "the daemon to notice", func() error { return waitFor(r.sessionsEnded() > 0) })
	must(t, standby.Exec(testContext(t), "postgres", `SELECT pg_promote()`))
	o.moveTo(standby)
	o.insert("order", "a", 21, 20)
	r.awaitState("streaming", patience)
	o.repeatsAtMost(o.verify(patience), 0, "the process remembers the acknowledged events")
}

// moveTo points the outbox to another server that has its database now.
func (o *outbox) moveTo(pg *pgtest.Server) {
	o.t.Helper()
	o.admin.close()
	o.pg = pg
	o.admin.url = pg.SuperURL(o.name)
	var ok bool
	must(o.t, o.admin.scan("SELECT NOT pg_is_in_recovery()", &ok))
}
