package doctor

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/replication"
)

// newPartitions asks about publications as a server with SPLIT PARTITION would be asked, which has the same catalogs.
func newPartitions(t *testing.T, p *place) {
	p.exec("CREATE PUBLICATION by_table FOR TABLE outbox", "CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA public")
	defer p.exec("DROP PUBLICATION by_table", "DROP PUBLICATION by_schema")
	for _, c := range []struct {
		major       int
		partitioned bool
		pub         string
		all, warned bool
	}{
		{19, true, "by_schema", false, true},
		{20, true, "by_schema", false, true},
		{19, true, "by_table", true, true},
		{19, true, "by_table", false, false},
		{19, false, "by_schema", false, false},
		{18, true, "by_schema", false, false},
	} {
		e := &examination{Config: p.cfg, findings: newFindings(), conn: p.conn, pub: &replication.Publication{AllTables: c.all}}
		e.Publication, e.server.Version, e.tables = c.pub, c.major*10000, []tableFacts{{partitioned: c.partitioned}}
		e.checkSplit(t.Context())
		f := e.found[pubOthers]
		if warned := len(f) == 1 && f[0].Level == Warn && strings.Contains(f[0].Text, "SPLIT PARTITION") && len(f[0].Remedy) > 0; warned != c.warned || len(f) > 1 {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// repackSlots asks a server that has a slot of REPACK, which is not one of max_replication_slots.
func repackSlots(t *testing.T, p *place) {
	e := &examination{Config: p.cfg, conn: p.conn}
	must(t, e.readServer(t.Context()))
	before := e.server.slots.used
	p.exec("CREATE TEMP VIEW pg_replication_slots AS SELECT slot_name, plugin FROM pg_catalog.pg_replication_slots UNION ALL SELECT 'repack_1', 'pgrepack'")
	defer p.exec("DROP VIEW pg_temp.pg_replication_slots")
	must(t, e.readServer(t.Context()))
	if e.server.slots.used != before || before == 0 {
		t.Errorf("%d slots are counted, want %d", e.server.slots.used, before)
	}
}

// A partitioned outbox FOR ALL TABLES via the root: a walsender can crash while a partition is detached.
func TestAllTablesViaRoot(t *testing.T) {
	for pub, want := range map[replication.Publication]string{
		{AllTables: true, ViaRoot: true}: "the walsender crashes", {AllTables: true}: "under the names of its partitions", {ViaRoot: true}: "under the table's own name",
	} {
		e := &examination{findings: newFindings(), pub: &pub}
		e.checkViaRoot(&tableFacts{Table: &Table{Schema: "public", Name: "outbox"}, partitioned: true})
		f := e.found[pubViaRoot]
		if len(f) != 1 || !strings.Contains(f[0].Text, want) || (f[0].Level == Warn) == (pub == replication.Publication{ViaRoot: true}) || (f[0].Level == Warn) != (len(f[0].Remedy) > 0) {
			t.Errorf("%+v: %+v", pub, f)
		}
	}
}

// A publication FOR ALL TABLES that excludes the outbox: the server refuses ADD TABLE.
func TestExcludedFromAllTables(t *testing.T) {
	for _, all := range []bool{true, false} {
		e := &examination{Config: Config{Publication: "dbz"}, findings: newFindings(), pub: &replication.Publication{AllTables: all}}
		e.Tables = []Table{{Schema: "public", Name: "outbox"}}
		e.checkCarried(&tableFacts{Table: &e.Tables[0]})
		var remedies []string
		for _, r := range e.found[pubTables][0].Remedy {
			remedies = append(remedies, r.Text)
		}
		if text := strings.Join(remedies, "\n"); strings.Contains(text, "ADD TABLE") == all || strings.Contains(text, "EXCEPT") != all {
			t.Errorf("FOR ALL TABLES %v:\n%s", all, text)
		}
	}
}
