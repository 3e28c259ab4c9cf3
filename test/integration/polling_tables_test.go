package integration

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pollers"
)

// With the settings that docs/polling.md has for the table of a well-known library, setup and backfill send the rows
// that its poller has not sent, and no others.
func TestTablesOfPollers(t *testing.T) {
	t.Parallel()
	const groups = 4 // of tables; the commands mostly wait
	for g := range groups {
		t.Run(fmt.Sprint(g), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{})
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			for i := g; i < len(pollers.Tables); i += groups {
				m := &move{outbox: o, Table: &pollers.Tables[i], name: fmt.Sprintf("%s_%d", o.name, i)}
				t.Run(m.Library, func(t *testing.T) {
					o.t = t
					m.run(t)
				})
				o.t = t
			}
		})
	}
}

// move is the move of one table.
type move struct {
	*outbox
	*pollers.Table
	name string // of publication, slot and topics
}

func (m *move) run(t *testing.T) {
	topics := []string{m.name, "outbox.event." + m.name}
	for _, topic := range topics {
		must(t, kafkatest.CreateTopic(testContext(t), m.kafka.Brokers(), topic, 1, nil))
	}
	must(t, kafkatest.CreateTopic(testContext(t), m.kafka.Brokers(), m.name+".positions", 1, map[string]string{"cleanup.policy": "compact"}))
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	must(t, os.WriteFile(file, []byte(m.yaml()), 0o600))
	settings, err := config.Load([]string{file}, nil)
	must(t, err)

	for _, sql := range []string{m.SQL, m.own(m.Pending), "CREATE TABLE " + m.name + " AS SELECT * FROM " + m.Table.Name, m.own(m.Other)} {
		if sql != "" {
			must(t, m.pg.Exec(testContext(t), m.outbox.name, sql))
		}
	}
	m.args = []string{"-c", file}
	backfill := []string{"backfill", "--yes"}
	if m.Where != "" {
		backfill = append(backfill, "--where", m.Where)
	}
	m.mustRunBinary(m.environment(), "setup", "apply", "--no-slot")
	m.mustRunBinary(m.environment(), backfill...)
	m.exec(`SELECT pg_drop_replication_slot($1)`, m.name)

	var want, got []string
	must(t, m.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, fmt.Sprintf("SELECT %s::text FROM %s", pgx.Identifier{settings.Outbox.Columns.ID}.Sanitize(), m.name))
		if err != nil {
			return err
		}
		want, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}))
	for _, topic := range topics {
		records, err := kafkatest.ReadAll(testContext(t), m.kafka.Brokers(), topic)
		must(t, err)
		for _, r := range records {
			id, _ := headerOf(r, "id")
			got = append(got, id)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("records of %d rows, want %d:\n%q\n%q", len(got), len(want), got, want)
	}
}

// yaml are the settings of the outbox.
func (m *move) yaml() string {
	order := ""
	if m.Order != "" {
		order = ", order: [" + m.Order + "]"
	}
	return fmt.Sprintf("outbox: {table: %q, columns: {%s}%s}\n", m.Table.Name, m.Columns, order)
}

// own replaces the topic and the aggregate type of the tables by those of this table.
func (m *move) own(sql string) string {
	return strings.NewReplacer("'events'", "'"+m.name+"'", "'order'", "'"+m.name+"'").Replace(sql)
}

func (m *move) environment() []string {
	topic := cmp.Or(m.Topic, config.Default().Route.Topic)
	if topic == "events" {
		topic = m.name
	}
	return []string{
		"OUTBOXCDC_ROUTE_TOPIC=" + topic, "OUTBOXCDC_POSTGRES_SLOT=" + m.name, "OUTBOXCDC_POSTGRES_PUBLICATION=" + m.name,
		"OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + m.name + ".positions",
	}
}
