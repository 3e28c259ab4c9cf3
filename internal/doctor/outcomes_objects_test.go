package doctor

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/replication"
)

func outboxOutcomes(t *testing.T, w *world) {
	lost := []outcome{{pubExists, "FAIL 79", "no publication"}, {slotExists, "FAIL 79", "no slot"}}
	empty := w.newPlace(t, w.pg)
	t.Run("nothing made", func(t *testing.T) {
		empty.in(t).wants(append(lost, outcome{tableExists, "FAIL 79", "no table"})...)
	})
	for name, c := range map[string]struct{ sql, words string }{
		"view":      {"CREATE VIEW outbox AS SELECT 1 AS id", "not a table"},
		"unlogged":  {"CREATE UNLOGGED TABLE outbox " + outboxColumns, "unlogged"},
		"partition": {"CREATE TABLE root (id int) PARTITION BY RANGE (id); CREATE TABLE outbox PARTITION OF root DEFAULT", "is a partition"},
	} {
		t.Run(name, func(t *testing.T) {
			p := empty.in(t)
			p.exec(c.sql)
			p.wants(append(lost, outcome{tableExists, "FAIL 79", c.words})...)
			if name == "unlogged" {
				p.exec("GRANT USAGE ON SCHEMA public TO "+roleName, "GRANT SELECT ON outbox TO "+roleName)
				p.apply(tableExists)
				p.wants(lost...)
			}
			p.exec("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
		})
	}
	t.Run("partitions", func(t *testing.T) {
		p := w.newPlace(t, w.pg)
		p.exec("CREATE TABLE outbox "+outboxColumns+" PARTITION BY RANGE (id)", "GRANT SELECT ON outbox TO "+roleName,
			`CREATE UNLOGGED TABLE "a leaf" PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`,
			"CREATE PUBLICATION "+p.name+" FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root)")
		p.makeSlot()
		p.wants(outcome{tableExists, "FAIL 79", `public."a leaf" is unlogged`})
		p.apply(tableExists)
		p.wants()
		p.exec("SET allow_system_table_mods = on",
			`UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = '"a leaf"'::regclass`) // as after a cancelled DETACH CONCURRENTLY
		p.wants(outcome{tableExists, "FAIL 79", `public."a leaf" is being detached CONCURRENTLY`})
		p.exec(`ALTER TABLE outbox DETACH PARTITION public."a leaf" FINALIZE`)
		p.wants()
	})
	// What is partitioned by its mark, also below the first level or in an expression, or by what is never updated.
	t.Run("partition key", func(t *testing.T) {
		for key, sub := range map[string]string{"LIST (status)": "", "RANGE (id)": "LIST (lower(status))", "RANGE (created)": "HASH (id)"} {
			p := w.newPlace(t, w.pg)
			if sub != "" {
				sub = " PARTITION BY " + sub + "; CREATE TABLE part_1 PARTITION OF part DEFAULT"
			}
			if strings.Contains(sub, "HASH") {
				sub = strings.Replace(sub, "DEFAULT", "FOR VALUES WITH (MODULUS 1, REMAINDER 0)", 1)
			}
			p.exec("CREATE TABLE outbox (id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, status text, created date) PARTITION BY "+key,
				"CREATE TABLE part PARTITION OF outbox DEFAULT"+sub, "GRANT SELECT ON outbox TO "+roleName,
				"CREATE PUBLICATION "+p.name+" FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root)")
			p.makeSlot()
			want := []outcome{{tableUnique, "WARN", "no unique index"}, {tableOrder, "WARN", "has no column seq"}}
			if strings.Contains(key+sub, "status") {
				want = append(want, outcome{tablePartitions, "WARN", "is partitioned by status: an UPDATE that moves a row"})
			}
			p.wants(want...)
		}
	})
	good := w.newPlace(t, w.pg).make()
	t.Run("column", func(t *testing.T) {
		p := good.in(t)
		p.cfg.Tables[0].Needs = append(p.cfg.Tables[0].Needs, "tenant")
		p.wants(outcome{tableColumns, "FAIL 78", "no tenant"})
	})
	t.Run("type", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("ALTER TABLE outbox DROP COLUMN headers", "ALTER TABLE outbox ADD COLUMN headers bigint")
		p.wants(outcome{tableColumns, "FAIL 78", "headers"})
	})
	t.Run("generated", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("ALTER TABLE outbox DROP COLUMN event_type", "ALTER TABLE outbox ADD COLUMN event_type text GENERATED ALWAYS AS ('x') STORED")
		p.wants(outcome{tableGenerated, "FAIL 78", "event_type"})
		p.exec("ALTER PUBLICATION " + p.name + " SET (publish_generated_columns = stored)")
		p.wants()
	})
	t.Run("privileges", func(t *testing.T) {
		p := good.in(t)
		p.exec("REVOKE SELECT ON outbox FROM "+roleName, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
		p.wants(outcome{tablePrivileges, "WARN", "may not read"})
		p.apply(tablePrivileges)
		p.wants()
	})
	rowOutcomes(t, w)
	t.Run("replica identity", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "ALTER PUBLICATION "+p.name+" SET (publish = 'insert, delete')")
		if _, err := p.conn.Exec(t.Context(), "DELETE FROM outbox"); err == nil {
			t.Error("the application can delete")
		}
		p.wants(outcome{tableIdentity, "FAIL 78", "cannot delete"}, outcome{pubInserts, "WARN", "delete"}, outcome{tableUnique, "WARN", "no unique index has id"})
	})
	t.Run("order", func(t *testing.T) { orderOutcomes(t, w) })
	t.Run("messages", func(t *testing.T) {
		p := good.in(t)
		p.cfg.Messages = "outbox"
		p.wants(outcome{messagesPrivilege, "WARN", "every role that can connect"})
		for _, f := range p.examine().Findings {
			for _, r := range f.Remedy {
				if f.Check == messagesPrivilege && r.Kind == SQL {
					p.exec(r.Text)
				}
			}
		}
		p.wants()
		// Without tables, logical messages are the only source.
		p.cfg.Tables = nil
		p.wants()
	})
}

// narrowed applies the remedy of the findings, which does not change the publication, because other clients may use it.
func (p *place) narrowed() {
	p.t.Helper()
	was, name := p.cfg.Publication, ""
	for _, f := range p.examine().Findings {
		for _, r := range f.Remedy {
			if r.Kind != SQL {
				continue
			}
			create, found := strings.CutPrefix(r.Text, "CREATE PUBLICATION ")
			if !found {
				p.t.Errorf("proposed: %s", r.Text)
				continue
			}
			name, _, _ = strings.Cut(create, " ")
			p.exec(r.Text)
		}
	}
	p.cfg.Publication, p.rcfg.Publication = name, name
	p.wants()
	p.cfg.Publication, p.rcfg.Publication = was, was
	p.exec("DROP PUBLICATION " + name)
}

func publicationOutcomes(t *testing.T, w *world) {
	good := w.newPlace(t, w.pg).make()
	t.Run("new partitions", func(t *testing.T) { newPartitions(t, good.in(t)) })
	t.Run("slots of REPACK", func(t *testing.T) { repackSlots(t, good.in(t)) })
	good.exec("CREATE TABLE audit (id int)")
	for name, c := range map[string]struct {
		sql  []string
		want []outcome
	}{
		"missing":      {[]string{"DROP PUBLICATION %s"}, []outcome{{pubExists, "FAIL 79", "no publication"}}},
		"no inserts":   {[]string{"ALTER PUBLICATION %s SET (publish = 'truncate')"}, []outcome{{pubInserts, "FAIL 79", "does not publish inserts"}}},
		"more":         {[]string{"ALTER PUBLICATION %s SET (publish = 'insert, update, truncate')"}, []outcome{{pubInserts, "WARN", "truncate, update"}}},
		"not carried":  {[]string{"ALTER PUBLICATION %s DROP TABLE outbox"}, []outcome{{pubTables, "FAIL 79", "does not carry"}}},
		"filter":       {[]string{"ALTER PUBLICATION %s SET TABLE outbox WHERE (event_type <> 'x')"}, []outcome{{pubFilter, "FAIL 79", "event_type"}}},
		"column list":  {[]string{"ALTER PUBLICATION %s SET TABLE outbox (id, aggregate_type, aggregate_id, event_type, headers)"}, []outcome{{pubColumns, "FAIL 78", "omits payload"}}},
		"other tables": {[]string{"ALTER PUBLICATION %s ADD TABLE audit"}, []outcome{{pubOthers, "WARN", "public.audit"}}},
		"all tables":   {[]string{"DROP PUBLICATION %s", "CREATE PUBLICATION %s FOR ALL TABLES WITH (publish = 'insert')"}, []outcome{{pubOthers, "WARN", "FOR ALL TABLES"}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := good.in(t)
			for _, s := range c.sql {
				p.exec(strings.ReplaceAll(s, "%s", p.name))
			}
			p.wants(c.want...)
			if c.want[0].outcome == "WARN" {
				p.narrowed()
			}
			p.exec("DROP PUBLICATION IF EXISTS "+p.name, "CREATE PUBLICATION "+p.name+" FOR TABLE outbox WITH (publish = 'insert')")
		})
	}
	t.Run("narrowed again", func(t *testing.T) { // a publication outboxcdc exists
		p := good.in(t)
		p.exec("CREATE PUBLICATION outboxcdc FOR TABLE outbox, audit WITH (publish = 'insert')")
		defer p.exec("DROP PUBLICATION outboxcdc")
		p.cfg.Publication, p.rcfg.Publication = "outboxcdc", "outboxcdc"
		p.wants(outcome{pubOthers, "WARN", "public.audit"})
		p.narrowed()
	})
	t.Run("partitions", func(t *testing.T) {
		p := w.newPlace(t, w.pg)
		columns := "(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, seq bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (id)) PARTITION BY RANGE (id);" +
			"CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (0) TO (10); CREATE TABLE outbox_2 PARTITION OF outbox DEFAULT"
		p.exec("CREATE TABLE outbox "+columns, "GRANT SELECT ON outbox TO "+roleName, "CREATE PUBLICATION "+p.name+" FOR TABLES IN SCHEMA public WITH (publish = 'insert')",
			"INSERT INTO outbox VALUES (1, 'order', '1', 'x')", "INSERT INTO outbox VALUES (11, 'order', '1', 'x')")
		p.makeSlot()
		p.wants(outcome{pubViaRoot, "FAIL 78", "nothing tells them apart"})
		p.apply(pubViaRoot)
		p.wants()
		p.exec("DROP PUBLICATION "+p.name, "CREATE PUBLICATION "+p.name+" FOR TABLE outbox WITH (publish = 'insert')")
		p.wants(outcome{pubViaRoot, "WARN", "names of its partitions"})
		p.narrowed()
	})
	t.Run("partitions of several daemons", func(t *testing.T) {
		p := w.newPlace(t, w.pg)
		second := p.cfg.Tables[0]
		p.cfg.Tables[0].Name, second.Name = "outbox_0", "outbox_2"
		p.cfg.Tables = append(p.cfg.Tables, second)
		p.exec("CREATE TABLE outbox (id uuid DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, created_at timestamptz,"+
			" seq bigint) PARTITION BY HASH (aggregate_id); CREATE SEQUENCE no; ALTER TABLE outbox ALTER seq SET DEFAULT nextval('no')",
			"CREATE PUBLICATION other WITH (publish = 'insert')", "CREATE PUBLICATION "+p.name+" WITH (publish = 'insert')")
		for _, n := range []string{"0", "1", "2"} {
			p.exec("CREATE TABLE outbox_"+n+" PARTITION OF outbox (PRIMARY KEY (id)) FOR VALUES WITH (MODULUS 3, REMAINDER "+n+")", "GRANT SELECT ON outbox_"+n+" TO "+roleName)
		}
		p.makeSlot()
		missing := func(n string) outcome {
			return outcome{tableExists, "FAIL 79", "public.outbox_" + n + " is a partition"}
		}
		p.wants(missing("0"), missing("2"), outcome{pubShards, "FAIL 79", "the rows of public.outbox_1: "})
		p.exec("ALTER PUBLICATION " + p.name + " ADD TABLE outbox_0, outbox_2")
		p.wants(outcome{pubShards, "FAIL 79", "public.outbox_1"})
		p.exec("ALTER PUBLICATION other ADD TABLE outbox_1")
		p.wants()
		p.exec("ALTER PUBLICATION other ADD TABLE outbox_2")
		p.wants(outcome{pubShards, "WARN", "public.outbox_2 is in more than one publication: " + p.name + ", other"})
		p.exec("ALTER PUBLICATION other DROP TABLE outbox_1, outbox_2", "ALTER TABLE outbox_1 SET UNLOGGED")
		p.wants(outcome{pubShards, "FAIL 79", "public.outbox_1 is unlogged"})
		p.apply(pubShards) // then a publication can name it
		p.exec("ALTER PUBLICATION other ADD TABLE outbox_1")
		p.wants()
		p.exec("DROP TABLE outbox_1", "CREATE FOREIGN DATA WRAPPER nothing", "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
			"CREATE FOREIGN TABLE outbox_1 PARTITION OF outbox FOR VALUES WITH (MODULUS 3, REMAINDER 1) SERVER elsewhere")
		p.wants(outcome{pubShards, "FAIL 79", "public.outbox_1 is a foreign table"})
		p.apply(pubShards)
		p.wants()
		// Other daemons may have taken over, or have not handed over yet.
		p.exec("CREATE PUBLICATION whole FOR TABLE outbox WITH (publish = 'insert')", "CREATE PUBLICATION later WITH (publish = 'update')", "ALTER PUBLICATION later ADD TABLE outbox_2",
			"DROP PUBLICATION "+p.name)
		p.advises(pubExists, "setup apply") // none names a partition and publishes inserts
		p.exec("ALTER PUBLICATION other ADD TABLE outbox_2", "SELECT pg_drop_replication_slot('"+p.name+"')")
		p.advisesOnly("publications name its partitions: other. If", pubExists, slotExists, tableExists)
		p.exec("CREATE PUBLICATION " + p.name + " FOR TABLE outbox_0, outbox_2 WITH (publish = 'insert')")
		p.advisesOnly("publications name its partitions: other. If", slotExists)
		p.exec("DROP PUBLICATION " + p.name)
		p.cfg.Tables = p.cfg.Tables[:1]
		p.cfg.Tables[0].Name = "outbox" // as before a table with partitions has taken the place
		p.advisesOnly("publications name its partitions: other. If", pubExists, slotExists)
	})
	t.Run("two outboxes", func(t *testing.T) {
		p := good.in(t)
		p.exec("CREATE TABLE billing "+outboxColumns, "GRANT SELECT ON billing TO "+roleName)
		second := p.cfg.Tables[0]
		second.Name = "billing"
		p.cfg.Tables = append(p.cfg.Tables, second)
		p.wants(outcome{pubTables, "FAIL 79", "public.billing"})
	})
}

// orderOutcomes follows each remedy for a table that no column orders.
func orderOutcomes(t *testing.T, w *world) {
	p := w.newPlace(t, w.pg).make()
	follow := func() {
		t.Helper()
		for _, f := range p.examine().Findings {
			if f.Check == tableOrder && (len(f.Remedy) == 0 || f.Remedy[0].Kind != SQL) {
				t.Fatalf("no statement helps: %+v", f)
			}
			if f.Check == tableOrder {
				if _, err := p.conn.PgConn().Exec(t.Context(), f.Remedy[0].Text).ReadAll(); err != nil {
					t.Fatalf("%s: %v", f.Remedy[0].Text, err)
				}
			}
		}
	}
	p.exec("ALTER TABLE outbox DROP COLUMN seq")
	p.wants(outcome{tableOrder, "WARN", "it has no column seq: recover, backfill and replay send the rows in the order of created_at"})
	p.cfg.Tables[0].Order = []string{"event_type", "no"}
	p.wants(outcome{tableOrder, "WARN", "no column no, which outbox.order names"})
	p.cfg.Tables[0].Order = []string{"event_type"}
	p.wants()
	p.cfg.Tables[0].Order, p.cfg.Tables[0].CreatedAt = nil, "gone"
	p.wants(outcome{tableOrder, "WARN", "send the rows in the order of their place in the table"})
	follow()
	p.wants()
	p.exec("ALTER TABLE outbox ALTER seq SET CACHE 20")
	p.wants(outcome{tableOrder, "WARN", "each session takes 20 values at a time"})
	follow()
	p.wants()
	p.exec("ALTER TABLE outbox ALTER seq DROP IDENTITY")
	p.wants(outcome{tableOrder, "WARN", "no identity column"})
}

func slotOutcomes(t *testing.T, w *world) {
	drop := func(p *place) { p.exec("SELECT pg_drop_replication_slot('" + p.name + "')") }
	t.Run("missing", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		drop(p)
		p.wants(outcome{slotExists, "FAIL 79", "no slot"})
	})
	t.Run("recovery", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		recovery := replication.RecoverySlot(p.name)
		p.exec("SELECT pg_create_logical_replication_slot('" + recovery + "', 'pgoutput')")
		p.wants(outcome{slotRecovery, "FAIL 79", recovery + " exists"})
		drop(p)
		p.wants(outcome{slotRecovery, "FAIL 79", recovery + " exists"}, outcome{slotExists, "FAIL 79", "no slot"})
		p.advises(slotExists, advice.RecoverAgain)
		p.exec("SELECT pg_drop_replication_slot('" + recovery + "')")
	})
	t.Run("what creates it", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		drop(p)
		p.advises(slotExists, advice.Recover) // the outbox has a row
		p.exec("DELETE FROM outbox")
		p.advises(slotExists, "outboxcdc setup apply")
		p.exec("REVOKE SELECT ON outbox FROM " + roleName) // nothing is known about its rows
		p.advises(slotExists, advice.Recover)
		p.exec("GRANT SELECT ON outbox TO "+roleName, "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')")
		p.advises(slotExists, advice.Recover) // the role does not see the row
		p.exec("DROP PUBLICATION " + p.name)
		p.advises(pubExists, "setup apply --no-slot")
	})
	t.Run("physical", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		drop(p)
		p.exec("SELECT pg_create_physical_replication_slot('" + p.name + "')")
		p.wants(outcome{slotFits, "FAIL 79", "physical"})
		drop(p)
	})
	t.Run("plugin", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		drop(p)
		p.exec("SELECT pg_create_logical_replication_slot('" + p.name + "', 'test_decoding')")
		p.wants(outcome{slotFits, "FAIL 78", "test_decoding"}, outcome{slotFailover, "WARN", "loses it"})
	})
	t.Run("database", func(t *testing.T) {
		p, other := w.newPlace(t, w.pg).make(), w.newPlace(t, w.pg).make()
		p.cfg.Slot, p.rcfg.Slot = other.name, other.name
		p.wants(outcome{slotFits, "FAIL 78", "belongs to database " + other.name})
	})
	t.Run("temporary", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		drop(p)
		p.exec("SELECT pg_create_logical_replication_slot('" + p.name + "', 'pgoutput', true)")
		p.wants(outcome{slotFits, "FAIL 69", "temporary"}, outcome{slotHolder, "WARN", "PID"}, outcome{slotFailover, "WARN", "loses it"})
		drop(p)
	})
	t.Run("two_phase", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("SELECT pg_drop_replication_slot('"+p.name+"')", "SELECT pg_create_logical_replication_slot('"+p.name+"', 'pgoutput', false, true, true)")
		p.wants(outcome{slotFits, "FAIL 78", "before it is committed"})
		for _, f := range p.examine().Findings {
			if f.Check == slotFits {
				_, command, _ := strings.Cut(f.Remedy[0].Text, "ALTER_REPLICATION_SLOT")
				_, err := p.replicate("remedy").Exec(t.Context(), "ALTER_REPLICATION_SLOT"+command).ReadAll()
				must(t, err)
			}
		}
		p.wants()
	})
	t.Run("another client reads it", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		// The same role may see the name of the client.
		conn := p.stream(roleName, "debezium", p.name)
		p.wants(outcome{slotHolder, "WARN", "debezium"})
		p.exec("ALTER PUBLICATION " + p.name + " SET (publish = 'truncate')")
		p.wants(outcome{slotHolder, "WARN", "debezium"}, outcome{pubInserts, "FAIL 79", "does not publish inserts"})
		if text := p.examine().String(); !strings.Contains(text, "stop the daemon first") {
			t.Errorf("this remedy stops a daemon:\n%s", text)
		}
		_ = conn.Close(context.Background())
	})
	t.Run("standbys", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("SELECT pg_create_physical_replication_slot('standby1')")
		p.setting("synchronized_standby_slots", "'standby1'")
		p.wants(outcome{slotStandby, "FAIL 69", "standby1"})
		p.advises(slotStandby, "synchronized_standby_slots = ''")
		p.exec("ALTER SYSTEM SET synchronized_standby_slots = ''", "SELECT pg_reload_conf()")
		p.await("the setting", "SELECT current_setting('synchronized_standby_slots') = ''")
		must(t, p.s.AllowHost("host replication all 127.0.0.1/32 scram-sha-256"))
		must(t, p.s.Reload())
		conn := p.streamPhysical("standby1")
		p.wants(outcome{slotStandby, "WARN", "standby1"})
		// One of two standbys is away: the other one is still waited for.
		p.exec("SELECT pg_create_physical_replication_slot('standby2')")
		p.setting("synchronized_standby_slots", "'standby2, standby1'")
		p.wants(outcome{slotStandby, "FAIL 69", "not connected: standby2 "})
		p.advises(slotStandby, "synchronized_standby_slots = 'standby1'")
		p.exec("ALTER SYSTEM SET synchronized_standby_slots = ''", "SELECT pg_reload_conf()", "SELECT pg_drop_replication_slot('standby2')")
		p.await("the setting", "SELECT current_setting('synchronized_standby_slots') = ''")
		_ = conn.Close(context.Background())
		p.await("the end of the standby", "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'standby1'")
		p.exec("SELECT pg_drop_replication_slot('standby1')")
	})
	// This case is the last one, because it removes WAL that every slot of the server needs.
	t.Run("held, in danger, lost", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.setting("max_slot_wal_keep_size", "'96MB'")
		small := outcome{pgKeepSize, "WARN", "96 MB"}
		for range 4 {
			p.exec("SELECT pg_switch_wal()", "CREATE TABLE t ()", "DROP TABLE t")
		}
		p.wants(small, outcome{slotRetained, "WARN", "more than half"})
		p.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
		p.await("the setting", "SELECT current_setting('max_slot_wal_keep_size') = '16MB'")
		small.words = "16 MB"
		p.wants(small, outcome{slotRetained, "WARN", "more than half"}, outcome{slotWAL, "FAIL 69", "about to be lost"})
		p.exec("CHECKPOINT")
		p.wants(small, outcome{slotWAL, "FAIL 79", "invalidated it (wal_removed)"})
		p.advises(slotWAL, advice.Recover)
	})
}

// stream reads a slot as another client.
func (p *place) stream(user, application, slot string) *pgconn.PgConn {
	p.t.Helper()
	conn := p.replicateAs(p.s.URL(p.name, user, rolePassword), application)
	must(p.t, pglogrepl.StartReplication(p.t.Context(), conn, slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + p.name + "'"},
	}))
	return conn
}

// streamPhysical reads a physical slot as a standby does.
func (p *place) streamPhysical(slot string) interface{ Close(context.Context) error } {
	p.t.Helper()
	conn := p.replicateAs(p.s.SuperURL(p.name), "standby")
	id, err := pglogrepl.IdentifySystem(p.t.Context(), conn)
	must(p.t, err)
	must(p.t, pglogrepl.StartReplication(p.t.Context(), conn, slot, id.XLogPos, pglogrepl.StartReplicationOptions{Mode: pglogrepl.PhysicalReplication}))
	p.await("the standby", "SELECT active FROM pg_replication_slots WHERE slot_name = '"+slot+"'")
	return conn
}
