package integration

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/replication"
)

// damage is a state about which doctor has a finding.
type damage struct {
	name, check string // check: the finding that has to be there
	major       string // default: the default one
	settings    map[string]string
	before      func(o *outbox) // before the daemon starts for the first time
	do          func(t *testing.T, o *outbox, p *patient)
	quiet       bool   // no row can be written in that state
	refused     string // see patient
}

func dropSlot(_ *testing.T, o *outbox, _ *patient) {
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
}

// alter damages by statements.
func alter(statements ...string) func(*testing.T, *outbox, *patient) {
	return func(_ *testing.T, o *outbox, _ *patient) {
		for _, s := range statements {
			o.exec(s)
		}
	}
}

// replaceSlot replaces the slot by something else of the same name.
func replaceSlot(statement string) func(*testing.T, *outbox, *patient) {
	return func(t *testing.T, o *outbox, p *patient) {
		dropSlot(t, o, p)
		o.exec(statement, o.name)
		p.settings["postgres: {slot: <another name>}"] = "OUTBOXCDC_POSTGRES_SLOT=" + o.name + "_2"
		t.Cleanup(func() {
			o.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.name+"_2")
		})
	}
}

// damages are the states about which doctor gives advice that concerns slot, publication, table or standbys. Those
// that are not here:
//
//   - an unfinished backfill, whose --where only its operator knows: TestRecoverKilledKeepsDaemonAway;
//   - a slot of a demoted primary on a standby: TestLeftover;
//   - settings of a standby, and hosts of postgres.standbys: they decide about the next failover, and no slot is
//     touched;
//   - a view, a partition or a missing column instead of the table or a column that the settings name: the remedy
//     asks which one is meant.
var damages = []damage{
	{name: "slot dropped", check: "slot", do: dropSlot},
	{name: "recover unfinished", check: "recovery", do: func(t *testing.T, o *outbox, p *patient) {
		dropSlot(t, o, p)
		o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, replication.RecoverySlot(o.name))
	}},
	{name: "slot and publication dropped", check: "publication", do: func(t *testing.T, o *outbox, p *patient) {
		dropSlot(t, o, p)
		o.exec(`DROP PUBLICATION outboxcdc`)
	}},
	{
		name: "slot lost", check: "wal_status", settings: map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"},
		do: func(_ *testing.T, o *outbox, _ *patient) { awaitLost(o) },
	},
	{
		name: "slot lost, publication dropped", check: "publication", settings: map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"},
		do: func(_ *testing.T, o *outbox, _ *patient) {
			awaitLost(o)
			o.exec(`DROP PUBLICATION outboxcdc`)
		},
	},
	{name: "physical slot", check: "plugin_and_database", do: replaceSlot(`SELECT pg_create_physical_replication_slot($1)`)},
	{name: "other plugin", check: "plugin_and_database", do: replaceSlot(`SELECT pg_create_logical_replication_slot($1, 'test_decoding')`)},
	{name: "temporary slot", check: "plugin_and_database", do: replaceSlot(`SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)`)},
	{name: "slot of another database", check: "plugin_and_database", do: func(t *testing.T, o *outbox, p *patient) {
		replaceSlot(`SELECT $1::text`)(t, o, p)
		must(t, o.pg.Exec(testContext(t), "postgres", `SELECT pg_create_logical_replication_slot('`+o.name+`', 'pgoutput')`))
		t.Cleanup(func() {
			must(t, o.pg.Exec(testContext(t), "postgres", `SELECT pg_drop_replication_slot('`+o.name+`')`))
		})
	}},
	{name: "slot about to be lost", check: "wal_status", settings: map[string]string{"max_slot_wal_keep_size": "96MB"}, do: func(_ *testing.T, o *outbox, p *patient) {
		for range 4 {
			o.exec(`INSERT INTO counter VALUES (gen_random_uuid()::text)`)
			o.exec(`SELECT pg_switch_wal()`)
		}
		o.exec(`ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'`)
		o.exec(`SELECT pg_reload_conf()`)
		o.awaitSetting("max_slot_wal_keep_size", "16MB")
		p.after = func() { o.exec(`CHECKPOINT`) } // which would remove the WAL
	}},
	{name: "no failover slot", check: "failover", before: func(o *outbox) {
		o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
		o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
	}, do: func(t *testing.T, o *outbox, p *patient) {
		p.manually["while the daemon is stopped, over a replication connection"] = func() {
			conn, err := pgconn.Connect(testContext(t), o.pg.SuperURL(o.name)+"&replication=database")
			must(t, err)
			defer conn.Close(testContext(t)) //nolint:errcheck // what was done is done
			_, err = conn.Exec(testContext(t), `ALTER_REPLICATION_SLOT `+o.name+` ( FAILOVER )`).ReadAll()
			must(t, err)
		}
	}},
	{name: "another client", check: "active", do: func(t *testing.T, o *outbox, p *patient) {
		conn, err := pgconn.Connect(testContext(t), o.pg.SuperURL(o.name)+"&replication=database&application_name=another")
		must(t, err)
		must(t, pglogrepl.StartReplication(testContext(t), conn, o.name, 0, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names 'outboxcdc'"},
		}))
		end := o.walFlushed()
		must(t, pglogrepl.SendStandbyStatusUpdate(testContext(t), conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: end})) // and delivers nothing
		o.awaitConfirmed(end, patience)
		p.manually["if it does not deliver the events of the outbox: stop it, and "+advice.Recover] = func() {
			must(t, conn.Close(testContext(t)))
			o.awaitSlotFree()
			p.shell("active", "outboxcdc recover")
		}
	}},
	{name: "publication dropped", check: "publication", do: alter(`DROP PUBLICATION outboxcdc`)},
	{name: "publication dropped on 14", check: "publication", major: "14", do: alter(`DROP PUBLICATION outboxcdc`)},
	{name: "publication renamed", check: "publication", do: alter(`ALTER PUBLICATION outboxcdc RENAME TO other`)},
	{name: "no inserts", check: "publish", do: alter(`ALTER PUBLICATION outboxcdc SET (publish = 'truncate')`)},
	{name: "updates", check: "publish", do: alter(`ALTER PUBLICATION outboxcdc SET (publish = 'insert, update')`)},
	{name: "not carried", check: "tables", do: alter(`ALTER PUBLICATION outboxcdc DROP TABLE outbox`)},
	{name: "row filter", check: "row_filter", do: alter(`ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (event_type <> 'added')`)},
	{name: "column list", check: "column_list", do: alter(`ALTER PUBLICATION outboxcdc SET TABLE outbox (id, aggregate_type, aggregate_id, event_type, headers)`)},
	{name: "other tables", check: "other_tables", do: alter(`ALTER PUBLICATION outboxcdc ADD TABLE counter`)},
	{name: "unlogged leaf", check: "table", before: func(o *outbox) {
		defer o.exec(`GRANT SELECT ON outbox TO ` + role)
		o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	}, do: alter(`ALTER TABLE leaf_1 SET UNLOGGED`)},
	{name: "unlogged, all tables", check: "table", before: func(o *outbox) {
		o.exec(`DROP PUBLICATION outboxcdc`)
		o.exec(`CREATE PUBLICATION outboxcdc FOR ALL TABLES WITH (publish = 'insert')`)
		recreateSlot(o)
	}, do: alter(`ALTER TABLE outbox SET UNLOGGED`)},
	{name: "table renamed", check: "table", quiet: true, refused: "exists, but table", do: func(_ *testing.T, o *outbox, p *patient) {
		o.exec(`ALTER TABLE outbox RENAME TO events`)
		p.manually["or set outbox.table to an existing table; or, if the table was renamed"] = func() { o.exec(`ALTER TABLE events RENAME TO outbox`) }
	}},
	{name: "table replaced", check: "tables", do: func(_ *testing.T, o *outbox, p *patient) {
		o.exec(`ALTER TABLE outbox RENAME TO former`)
		o.exec(`CREATE TABLE outbox (LIKE former INCLUDING ALL)`)
		o.exec(`GRANT SELECT ON outbox TO ` + role)
		p.former = func() { o.exec(`INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM former`) }
	}},
	{name: "no right to read", check: "table_privileges", do: alter(`REVOKE SELECT ON outbox FROM ` + role)},
	{name: "no replica identity", check: "replica_identity", do: alter(`ALTER PUBLICATION outboxcdc SET (publish = 'insert, delete')`, `ALTER TABLE outbox REPLICA IDENTITY NOTHING`)},
	{name: "generated column", check: "generated_columns", quiet: true, do: func(_ *testing.T, o *outbox, _ *patient) {
		o.exec(`ALTER TABLE outbox DROP COLUMN event_type`)
		o.exec(`ALTER TABLE outbox ADD COLUMN event_type text GENERATED ALWAYS AS ('added') STORED`)
		o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, payload, n) SELECT 'order', 'k', '{}', g FROM generate_series(41, 60) g`)
	}},
	{name: "one of two standbys away", check: "standby_slots", settings: map[string]string{}, do: func(t *testing.T, o *outbox, p *patient) {
		o.newStandby()
		var name string
		await(t, patience, "the standby", func() error {
			return o.admin.scan(`SELECT slot_name FROM pg_replication_slots WHERE slot_type = 'physical' AND active`, &name)
		})
		o.exec(`SELECT pg_create_physical_replication_slot('second', true)`)
		o.exec(`ALTER SYSTEM SET synchronized_standby_slots = '` + name + `,second'`)
		o.exec(`SELECT pg_reload_conf()`)
		o.awaitSetting("synchronized_standby_slots", name+",second")
		p.after = func() { o.awaitSetting("synchronized_standby_slots", name) } // the one that is there is still waited for
	}},
}
