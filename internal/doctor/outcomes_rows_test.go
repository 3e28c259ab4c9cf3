package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/sql"
)

// text is the answer to a query of one value.
func (p *place) text(query string) (s string) {
	p.t.Helper()
	if err := p.conn.QueryRow(p.t.Context(), query).Scan(&s); err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return s
}

// rowOutcomes causes the outcomes about which rows are in the stream, and which rows the role can see. Each SQL
// remedy is executed.
func rowOutcomes(t *testing.T, w *world) {
	t.Run("inherited", func(t *testing.T) { inheritedOutcomes(t, w) })
	t.Run("foreign partition", func(t *testing.T) {
		p := w.newPlace(t, w.pg)
		p.exec("CREATE TABLE outbox "+strings.Replace(outboxColumns, "PRIMARY KEY", "", 1)+" PARTITION BY RANGE (aggregate_id)", "GRANT SELECT ON outbox TO "+roleName,
			"CREATE PUBLICATION "+p.name+" FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root)",
			"CREATE FOREIGN DATA WRAPPER nothing", "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
			`CREATE FOREIGN TABLE "a leaf" PARTITION OF outbox FOR VALUES FROM ('a') TO ('b') SERVER elsewhere`)
		p.makeSlot()
		p.wants(outcome{tableExists, "FAIL 79", `public."a leaf" is a foreign table`})
		p.apply(tableExists)
		p.exec("CREATE TABLE rest PARTITION OF outbox DEFAULT")
		p.wants(outcome{tableUnique, "WARN", "no unique index"})
		p.apply(tableUnique) // on id and the partition key
		p.wants()
	})
	t.Run("misspelt", func(t *testing.T) {
		p := w.newPlace(t, w.pg)
		p.exec(`CREATE TABLE "Out's_Boxes" `+outboxColumns, `GRANT SELECT ON "Out's_Boxes" TO `+roleName, "CREATE PUBLICATION "+p.name+` FOR TABLE "Out's_Boxes" WITH (publish = 'insert')`)
		p.makeSlot()
		p.cfg.Tables[0].Name = "outs_box"
		p.wants(outcome{tableExists, "FAIL 79", `no table public.outs_box (similar names: public."Out's_Boxes")`}, outcome{pubOthers, "WARN", "Out's_Boxes"})
		p.advises(tableExists, "setup apply --create-table")
		for _, f := range p.examine().Findings {
			for _, r := range f.Remedy {
				if f.Check == tableExists && r.Kind == Setting {
					file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
					must(t, os.WriteFile(file, []byte(r.Text), 0o600))
					cfg, err := config.Load([]string{file}, nil)
					must(t, err)
					p.cfg.Tables[0].Schema, p.cfg.Tables[0].Name = cfg.Sources()[0].Name()
				}
			}
		}
		p.wants()
		// The wrong table was created: it is empty, and no other finding says so.
		p.exec("CREATE TABLE outs_box "+outboxColumns, "GRANT SELECT ON outs_box TO "+roleName, "ALTER PUBLICATION "+p.name+" SET TABLE outs_box")
		p.cfg.Tables[0].Name = "outs_box"
		p.wants()
		for _, f := range p.examine().Findings {
			if f.Check == topicsKnown && !strings.Contains(f.Text, `a table with a similar name: public."Out's_Boxes"?`) {
				t.Errorf("of the empty table: %s", f.Text)
			}
		}
	})
	t.Run("inserts", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec(`CREATE TABLE elsewhere (LIKE outbox)`, `CREATE RULE "to %s" AS ON INSERT TO outbox WHERE aggregate_type = 'x' DO INSTEAD INSERT INTO elsewhere VALUES (NEW.*)`,
			`CREATE RULE also AS ON INSERT TO outbox DO ALSO NOTIFY outbox`,
			`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`, `CREATE TRIGGER kept BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION keep()`,
			`CREATE FUNCTION notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`, `CREATE TRIGGER after AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION notify()`)
		p.wants(outcome{tableInserts, "WARN", "rule to %s (ON INSERT DO INSTEAD)"})
		p.exec(`CREATE TRIGGER "go on" BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION notify()`)
		p.wants(outcome{tableInserts, "WARN", "rule to %s (ON INSERT DO INSTEAD), trigger go on (its function notify contains RETURN NULL)"})
		p.apply(tableInserts)
		p.wants()
		p.exec(`CREATE RULE off AS ON INSERT TO outbox DO INSTEAD NOTHING`, `ALTER TABLE outbox DISABLE RULE off`)
		p.wants()
	})
	t.Run("unique ids", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "CREATE UNIQUE INDEX ON outbox (id) WHERE aggregate_type = 'x'",
			"CREATE UNIQUE INDEX ON outbox (id, aggregate_type)", "CREATE UNIQUE INDEX ON outbox (lower(id::text))", "CREATE INDEX ON outbox (id)")
		p.wants(outcome{tableUnique, "WARN", "no unique index has id"})
		p.cfg.Tables[0].ID = []string{"id", "aggregate_type"}
		p.wants()
		p.cfg.Tables[0].ID = []string{"id"}
		p.apply(tableUnique)
		p.wants()
		p.exec("DROP TABLE outbox", "CREATE TABLE outbox "+strings.Replace(outboxColumns, "PRIMARY KEY", "", 1)+" PARTITION BY LIST ((aggregate_type || 'x'))",
			"CREATE TABLE one PARTITION OF outbox FOR VALUES IN ('orderx')", "CREATE TABLE two PARTITION OF outbox DEFAULT", "GRANT SELECT ON outbox TO "+roleName,
			"ALTER PUBLICATION "+p.name+" SET (publish_via_partition_root = true)", "ALTER PUBLICATION "+p.name+" ADD TABLE outbox", "CREATE UNIQUE INDEX ON one (id)")
		p.wants(outcome{tableUnique, "WARN", "no unique index has id"})
		p.advises(tableUnique, "of each partition")
		p.exec("CREATE UNIQUE INDEX ON two (id)")
		p.wants()
	})
	t.Run("ring", func(t *testing.T) { ringOutcomes(t, w) })
	t.Run("row-level security", func(t *testing.T) {
		p := w.newPlace(t, w.pg).make()
		p.exec("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "CREATE POLICY mine ON outbox USING (aggregate_id = current_setting('app.tenant', true))")
		want := outcome{tablePrivileges, "FAIL 77", "row-level security hides rows of public.outbox from role " + roleName}
		p.wants(want)
		for _, f := range p.examine().Findings {
			if f.Check == topicsKnown && (f.Level != NotChecked || !strings.Contains(f.Text, "row-level security hides rows of public.outbox")) {
				t.Errorf("the report says of a table with hidden rows: %s", f.Text)
			}
		}
		p.exec("ALTER TABLE outbox OWNER TO " + roleName)
		p.wants() // policies do not apply to the owner
		p.exec("ALTER TABLE outbox FORCE ROW LEVEL SECURITY")
		p.wants(want)
		p.exec("ALTER TABLE outbox OWNER TO postgres", "REVOKE SELECT ON outbox FROM "+roleName)
		defer p.exec("ALTER ROLE " + roleName + " NOBYPASSRLS")
		p.wants(outcome{tablePrivileges, "WARN", "may not read"})
		p.apply(tablePrivileges) // both at once
		p.wants()
		p.exec("ALTER ROLE " + roleName + " NOBYPASSRLS")
		p.wants(want)
		p.apply(tablePrivileges)
		p.wants()
	})
}

// inheritedOutcomes: the remedy for children copies their rows into the outbox, in whose stream they are, and fails
// rather than lose one.
func inheritedOutcomes(t *testing.T, w *world) {
	p := w.newPlace(t, w.pg).make()
	into := func(end string) string {
		return `RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO "%s child" (id, aggregate_type, aggregate_id, event_type, headers, seq)
			VALUES (NEW.id, NEW.aggregate_type, NEW.aggregate_id, NEW.event_type, NEW.headers, NEW.seq); ` + end + `; END'`
	}
	p.exec(`ALTER TABLE outbox ADD COLUMN "%s 'odd'" text, ADD COLUMN twice text GENERATED ALWAYS AS (aggregate_id || aggregate_id) STORED`,
		`CREATE TABLE "%s child" () INHERITS (outbox)`, `CREATE TABLE "second" () INHERITS (outbox)`, `CREATE TABLE grandchild () INHERITS ("second")`,
		`CREATE FUNCTION redirect() `+into("RETURN NULL"),
		`CREATE TRIGGER redirect BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION redirect()`,
		"INSERT INTO outbox (aggregate_type, aggregate_id, event_type) SELECT 'order', 'c' || g, 'made' FROM generate_series(1, 3) g",
		`INSERT INTO grandchild (aggregate_type, aggregate_id, event_type, seq) VALUES ('order', 'g', 'made', 7)`)
	child := outcome{tableExists, "FAIL 78", "inherits from the outbox"}
	p.wants(child)
	// The function hides what it does. The statement notices that rows do not arrive, and changes nothing.
	p.exec(`CREATE OR REPLACE FUNCTION redirect() ` + into("NEW := NULL; RETURN NEW"))
	for _, f := range p.examine().Findings {
		for _, r := range f.Remedy {
			if f.Check == tableExists && r.Kind == SQL {
				if _, err := p.conn.Exec(t.Context(), r.Text); err == nil || !strings.Contains(err.Error(), "taken rows elsewhere") {
					t.Errorf("%s: %v", r.Text, err)
				}
			}
		}
	}
	p.wants(child)
	p.exec(`CREATE OR REPLACE FUNCTION redirect() ` + into("RETURN NULL"))
	const ids = "SELECT string_agg(aggregate_id || ' ' || seq, ',' ORDER BY aggregate_id) FROM ONLY outbox"
	if got := p.text(ids); got != "1 1" {
		t.Errorf("before, the outbox has %s", got)
	}
	p.apply(tableExists)
	p.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'n', 'made')")
	if got := p.text(ids); got != "1 1,c1 2,c2 3,c3 4,g 7,n 5" {
		t.Errorf("afterwards, the outbox has %s", got)
	}
	p.wants()

	// A child that is an outbox itself is no problem, and the statement leaves it alone.
	p.exec("CREATE TABLE kept () INHERITS (outbox)", "ALTER TABLE kept ADD PRIMARY KEY (id)", "GRANT SELECT ON kept TO "+roleName,
		"INSERT INTO kept (aggregate_type, aggregate_id, event_type, seq) VALUES ('order', 'k', 'made', 8)")
	p.wants(child)
	p.exec("ALTER PUBLICATION " + p.name + " ADD TABLE kept")
	second := p.cfg.Tables[0]
	second.Name = "kept"
	p.cfg.Tables = append(p.cfg.Tables, second)
	order := outcome{tableOrder, "WARN", "no sequence gives its default"} // of the child
	p.wants(order)
	p.exec(`CREATE TABLE "third" () INHERITS (outbox)`)
	p.wants(child, order)
	p.apply(tableExists)
	p.wants(order)
	if got := p.text("SELECT count(*) || ' ' || (SELECT count(*) FROM ONLY outbox) FROM kept"); got != "1 6" {
		t.Errorf("kept and the outbox have %s rows", got)
	}

	// The children of a hypertable cannot be detached from it.
	p.exec("CREATE SCHEMA _timescaledb_internal", "CREATE TABLE _timescaledb_internal._hyper_1_1_chunk () INHERITS (outbox)")
	p.wants(child, order)
	p.advises(tableExists, "a hypertable cannot be an outbox")
}

// ringOutcomes: a ring as setup creates it has no finding, and doctor says how large and how old it is, and when retain
// has emptied a partition.
func ringOutcomes(t *testing.T, w *world) {
	p := w.newPlace(t, w.pg)
	text := func() string {
		t.Helper()
		for _, f := range p.examine().Findings {
			if f.Check == tableRetention {
				return f.Text
			}
		}
		return ""
	}
	has := func(words ...string) {
		t.Helper()
		for _, word := range words {
			if got := text(); !strings.Contains(got, word) {
				t.Errorf("%s: %q is missing", got, word)
			}
		}
	}
	ring, err := sql.Setup(sql.Params{Role: roleName, Publication: p.name, Slot: p.name, Tables: []sql.Table{{Schema: "public", Name: "outbox", Ring: 8, Partitioned: true, Columns: sql.Columns{ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type", Payload: "payload", Headers: "headers"}}}}, 18)
	must(t, err)
	for _, step := range []string{sql.Outbox, sql.Grants, sql.Publication} {
		_, err := p.conn.PgConn().Exec(t.Context(), ring.Get(step)).ReadAll()
		must(t, err)
	}
	p.makeSlot()
	p.cfg.Retention = Retention{Mode: "truncate", Keep: 72 * time.Hour, Slots: []string{p.name}}
	p.wants()
	has("in 8 partitions", "no row has a time", "no partition has the note of retain", "retention.mode is truncate, and rows are kept for 3 days")
	p.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) VALUES ('order', '1', 'made', now() - interval '100 days')",
		"COMMENT ON TABLE outbox_3 IS 'outboxcdc retain emptied it at 2026-11-26T22:40:01Z'", "COMMENT ON TABLE outbox_4 IS 'outboxcdc retain emptied it at never'",
		"COMMENT ON TABLE outbox_5 IS E'of the shop\noutboxcdc retain emptied it at 2026-11-25T22:40:01Z'")
	p.wants()
	has("the oldest row is 100 days old", "retain emptied a partition last at 2026-11-26T22:40:01Z")
	p.exec("REVOKE SELECT ON outbox FROM " + roleName)
	has("the oldest row is not known, because the role cannot read all rows")
	p.exec("GRANT SELECT ON outbox TO " + roleName)
	p.cfg.Retention.Slots = []string{p.name, "gone"}
	p.wants(outcome{tableRetention, "WARN", "retention.slots has gone, which does not exist"})
	p.cfg.Retention = Retention{Mode: "off", Slots: []string{"gone"}}
	p.wants()
	has("retention.mode is off")

	plain := w.newPlace(t, w.pg).make()
	plain.cfg.Retention = Retention{Mode: "truncate", Keep: time.Hour}
	plain.wants(outcome{tableRetention, "WARN", "the table is not partitioned: retain refuses it"})
	plain.cfg.Retention.Mode = "delete"
	plain.wants()
}
