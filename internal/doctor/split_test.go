package doctor

import (
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/replication"
)

// newPartitions asks about publications as a server with SPLIT PARTITION would be asked, which has the same catalogs.
func newPartitions(t *testing.T, p *place) {
	p.exec("CREATE PUBLICATION by_table FOR TABLE outbox", "CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA public", "CREATE PUBLICATION of_all FOR ALL TABLES")
	defer p.exec("DROP PUBLICATION by_table", "DROP PUBLICATION by_schema", "DROP PUBLICATION of_all")
	for _, c := range []struct {
		major       int
		partitioned bool
		pub         string
		warned      bool
	}{
		{19, true, "by_schema", true},
		{20, true, "by_schema", true},
		{19, true, "of_all", true},
		{19, true, "by_table", false},
		{19, false, "by_schema", false},
		{18, true, "by_schema", false},
	} {
		e := &examination{Config: p.cfg, findings: newFindings(), conn: p.conn}
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
	p.exec("CREATE TEMP VIEW pg_replication_slots AS SELECT slot_name, plugin, restart_lsn, wal_status FROM pg_catalog.pg_replication_slots UNION ALL SELECT 'repack_1', 'pgrepack', NULL, 'reserved'")
	defer p.exec("DROP VIEW pg_temp.pg_replication_slots")
	must(t, e.readServer(t.Context()))
	if e.server.slots.used != before || before == 0 {
		t.Errorf("%d slots are counted, want %d", e.server.slots.used, before)
	}
}

// What a publication and a server do with the rows of a partitioned outbox.
func TestPublicationOfPartitions(t *testing.T) {
	for _, c := range []struct {
		pub        replication.Publication
		unattached bool
		major      int
		level      Level
		want       string
	}{
		{replication.Publication{AllTables: true, ViaRoot: true}, true, 18, Warn, "the walsender crashes"},
		{replication.Publication{AllTables: true}, true, 18, Fail, "nothing tells them apart"},
		{replication.Publication{}, true, 14, Fail, "nothing tells them apart"},
		{replication.Publication{}, false, 15, Warn, "the daemon stops"},
		{replication.Publication{ViaRoot: true}, false, 15, OK, "under the table's own name"},
		{replication.Publication{ViaRoot: true}, true, 14, OK, "under the table's own name"},
		{replication.Publication{ViaRoot: true}, false, 14, Warn, "PostgreSQL 14 does not send"},
	} {
		e := &examination{findings: newFindings(), pub: &c.pub, unattached: c.unattached}
		e.server.Version = c.major * 10000
		e.checkViaRoot(&tableFacts{Table: &Table{Schema: "public", Name: "outbox"}, partitioned: true})
		f := e.found[pubViaRoot]
		if len(f) != 1 || !strings.Contains(f[0].Text, c.want) || f[0].Level != c.level || (c.level == OK) != (len(f[0].Remedy) == 0) {
			t.Errorf("%+v: %+v", c, f)
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
