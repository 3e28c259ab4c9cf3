package sql

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// oddDatabase has a name with every character that a format may need to quote.
func oddDatabase() Params {
	p := defaults()
	p.Slot, p.Database = "s_1", "It's \"a\\b\" \nc"
	return p
}

func TestFailoverGolden(t *testing.T) {
	for name, p := range map[string]Params{"default": defaults(), "odd": oddDatabase()} {
		for _, platform := range FailoverPlatforms() {
			text, err := Failover(p, platform, 17)
			must(t, err)
			compareGolden(t, fmt.Sprintf("testdata/failover_%s_%s.txt", platform, name), text)
		}
	}
}

func TestFailoverRefuses(t *testing.T) {
	for _, c := range []struct {
		platform string
		major    int
		want     string
	}{
		{"other", 17, "only plain, patroni, cnpg, rds"},
		{"plain", 16, "PostgreSQL 16 does not copy slots"},
	} {
		if _, err := Failover(defaults(), "plain", NewestTested+1); err != nil {
			t.Error(err)
		}
		if _, err := Failover(defaults(), c.platform, c.major); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s on %d: %v", c.platform, c.major, err)
		}
	}
}

// A server takes the settings for postgresql.conf, and reads the database in primary_conninfo as it is called.
func TestFailoverSettingsAreTaken(t *testing.T) {
	p := oddDatabase()
	p.Database = strings.ReplaceAll(p.Database, "\n", "") // a line break cannot be written there
	text, err := Failover(p, "plain", 17)
	must(t, err)
	_, text, _ = strings.Cut(text, "# --- postgresql.conf of server_a ---\n")
	text, _, found := strings.Cut(text, "# --- postgresql.conf of server_b ---")
	if !found {
		t.Fatal("the settings of server_a were not found")
	}
	s := pgtest.ForTest(t, pgtest.Options{Major: "17"})
	must(t, s.AppendConf(text))
	must(t, s.Restart(t.Context()))
	conn := pgtest.Connect(t, s.SuperURL("postgres"))
	show := func(name string) (value string) {
		t.Helper()
		must(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
		return value
	}
	for name, want := range map[string]string{
		"wal_level": "logical", "hot_standby_feedback": "on", "sync_replication_slots": "on",
		"primary_slot_name": "server_a", "synchronized_standby_slots": "server_b",
	} {
		if got := show(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	c, err := pgx.ParseConfig(show("primary_conninfo"))
	if err != nil || c.Database != p.Database {
		t.Errorf("primary_conninfo is %s: %v", show("primary_conninfo"), err)
	}
}
