package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pollers"
)

// The commands that `config from-polling` prints for a table of a well-known library, executed as they are by a
// shell, send the rows that its poller has not sent, and no others. A condition that a person has to complete sends
// nothing.
func TestFromPollingTables(t *testing.T) {
	t.Parallel()
	const groups = 4 // of tables; the commands mostly wait
	for g := range groups {
		t.Run(fmt.Sprint(g), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{})
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			for i := g; i < len(pollers.Tables); i += groups {
				m := &move{outbox: o, table: &pollers.Tables[i], number: i, name: fmt.Sprintf("%s_%d", o.name, i)}
				t.Run(m.table.Library, func(t *testing.T) {
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
	table      *pollers.Table
	number     int
	name       string // of publication, slot and topics
	file, yaml string
	settings   *config.Config
}

func (m *move) run(t *testing.T) {
	for _, topic := range []string{m.name, "outbox.event." + m.name} {
		must(t, kafkatest.CreateTopic(testContext(t), m.kafka.Brokers(), topic, 1, nil))
	}
	must(t, kafkatest.CreateTopic(testContext(t), m.kafka.Brokers(), m.name+".positions", 1, map[string]string{"cleanup.policy": "compact"}))
	must(t, m.pg.Exec(testContext(t), m.outbox.name, m.table.SQL))
	m.write(t, m.table.Pending)
	m.exec("CREATE TABLE " + m.name + " AS SELECT * FROM " + m.table.Name)
	m.write(t, m.table.Other) // so that all values of a status are there

	args := []string{"config", "from-polling", "--table", m.table.Name}
	for _, arg := range m.table.Args {
		args = append(args, m.own(arg))
	}
	m.yaml, _ = m.mustRunBinary(nil, args...)
	m.file = filepath.Join(t.TempDir(), "outboxcdc.yaml")
	must(t, os.WriteFile(m.file, []byte(m.yaml), 0o600))
	var err error
	m.settings, err = config.Load([]string{m.file}, nil)
	must(t, err)

	var commands []string
	for line := range strings.Lines(m.yaml) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "#   outboxcdc "); ok {
			commands = append(commands, "outboxcdc "+command)
		}
	}
	if len(commands) != 5 || !strings.HasPrefix(commands[0], "outboxcdc setup apply --no-slot") || !strings.HasPrefix(commands[2], "outboxcdc backfill --dry-run") || commands[4] != "outboxcdc run" {
		t.Fatalf("commands %q", commands)
	}
	m.shellRun(t, 0, commands[0])
	partitioned := strings.Contains(m.table.SQL, "PARTITION BY LIST (status)")
	all := fullOrShort(true, partitioned || m.number%6 == 0) // doctor and run take most of the time
	if !all {
		commands[1] = "true"
	}
	if out := m.shellRun(t, map[bool]int{true: 79}[all], commands[1]); all && (strings.Count(out, "\n  FAIL ") != 1 || !strings.Contains(out, "no slot")) {
		t.Errorf("doctor:\n%s", out)
	} else if warns := strings.Contains(out, "WARN  partition_key"); warns != partitioned {
		t.Errorf("doctor warns about the key of the partitions: %v\n%s", warns, out)
	}
	if strings.Contains(m.table.Where, "…") {
		for _, command := range commands[2:4] {
			says(t, m.shellRun(t, 2, command+" --yes"), "wrong condition")
		}
		if got := m.sent(t); len(got) > 0 {
			t.Errorf("%d records sent", len(got))
		}
		return
	}
	pending := m.ids(t, "SELECT %s::text FROM "+m.name)
	exit := 0
	if len(pending) > 0 {
		exit = 1 // rows are missing in Kafka
	}
	m.shellRun(t, exit, commands[2])
	m.shellRun(t, 0, commands[3]+" --yes")
	m.expect(t, pending)
	if !all {
		m.exec(`SELECT pg_drop_replication_slot($1)`, m.name)
		return
	}

	// The daemon continues with the rows that are written after the slot, and with none before.
	r := m.startAs([]string{"-c", m.file, "run"}, m.environment())
	r.awaitState("streaming", patience)
	before := m.rows(t)
	m.write(t, strings.ReplaceAll(strings.ReplaceAll(m.table.Pending, "'p' ||", "'q' ||"), "SELECT g,", "SELECT 1000 + g,"))
	for id := range m.rows(t) {
		if !before[id] {
			pending = append(pending, id)
		}
	}
	m.expect(t, pending)
	r.signal(syscall.SIGTERM)
	is(t, "exit code", r.awaitExit(patience), 0)
	await(t, patience, "the slot to be free", func() error {
		return m.pg.Exec(testContext(t), m.outbox.name, "SELECT pg_drop_replication_slot('"+m.name+"')")
	})
}

// own replaces the topic and the aggregate type of the tables by those of this table.
func (m *move) own(text string) string {
	if text == "events" {
		return m.name
	}
	return strings.NewReplacer("'events'", "'"+m.name+"'", "'order'", "'"+m.name+"'").Replace(text)
}

func (m *move) write(t *testing.T, sql string) {
	t.Helper()
	if sql != "" {
		must(t, m.pg.Exec(testContext(t), m.outbox.name, m.own(sql)))
	}
}

func (m *move) environment() []string {
	return append(cleanEnv(),
		"OUTBOXCDC_POSTGRES_URL="+m.pg.URL(m.outbox.name, role, password), "OUTBOXCDC_SETUP_URL="+m.pg.SuperURL(m.outbox.name),
		"OUTBOXCDC_POSTGRES_SLOT="+m.name, "OUTBOXCDC_POSTGRES_PUBLICATION="+m.name, "OUTBOXCDC_KAFKA_BROKERS="+strings.Join(m.kafka.Brokers(), ","),
		"OUTBOXCDC_HTTP_LISTEN=127.0.0.1:0", "OUTBOXCDC_TUNING_FENCE_WAIT="+fence.String(), "OUTBOXCDC_DELIVERY_POSITION_TOPIC="+m.name+".positions",
	)
}

// shellRun executes a printed command.
func (m *move) shellRun(t *testing.T, exit int, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `outboxcdc() { "$BINARY" -c "$FILE" "$@"; }; `+command)
	cmd.Env = append(m.environment(), "BINARY="+testSuite.binary, "FILE="+m.file)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%s: %v", command, err)
	}
	if got := cmd.ProcessState.ExitCode(); got != exit {
		t.Fatalf("%s: exit code %d, want %d:\n%s\n%s", command, got, exit, out.String(), m.yaml)
	}
	return out.String()
}

// rows are the ids of all rows.
func (m *move) rows(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, id := range m.ids(t, "SELECT %s::text FROM "+m.table.Name) {
		all[id] = true
	}
	return all
}

func (m *move) ids(t *testing.T, sql string) []string {
	t.Helper()
	var all []string
	must(t, m.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, fmt.Sprintf(sql, pgx.Identifier{m.settings.Outbox.Columns.ID}.Sanitize()))
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}))
	return all
}

// sent are the ids of the records.
func (m *move) sent(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, topic := range []string{m.name, "outbox.event." + m.name} {
		records, err := kafkatest.ReadAll(testContext(t), m.kafka.Brokers(), topic)
		must(t, err)
		for _, r := range records {
			id, _ := headerOf(r, "id")
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// expect waits for records of these rows, each once, and of no others.
func (m *move) expect(t *testing.T, ids []string) {
	t.Helper()
	slices.Sort(ids)
	await(t, patience, "the records", func() error {
		if got := m.sent(t); !slices.Equal(got, ids) {
			return fmt.Errorf("records of %d rows, want %d:\n%q\n%q\n%s", len(got), len(ids), got, ids, m.yaml)
		}
		return nil
	})
}
