package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// sources is an outbox with further sources of events, and the events that have to arrive.
type sources struct {
	*outbox
	truth []row
	seqs  map[string]int // of topic and key
	n     int
}

// configure writes a configuration file, and recreates publication and slot for it.
func (s *sources) configure(yaml string) {
	s.t.Helper()
	file := filepath.Join(testSuite.dir, s.name+".yaml")
	must(s.t, os.WriteFile(file, []byte(yaml), 0o600))
	s.args = []string{"-c", file}
	s.exec(`DROP PUBLICATION IF EXISTS outboxcdc`)
	s.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, s.name)
	if out, err := s.command(nil, "setup", "apply"); err != nil {
		s.t.Fatalf("setup apply: %v\n%s", err, out)
	}
}

// expect notes an event that has been written, in the order of its key.
func (s *sources) expect(typ, id, key, value string) {
	at := typ + "/" + key
	s.seqs[at]++
	s.truth = append(s.truth, row{Row: check.Row{ID: id, Topic: s.topic(typ), Key: []byte(key), Value: []byte(value), Seq: s.seqs[at]}, EventType: "added"})
}

// verifySources waits until everything has arrived and is confirmed, and judges it.
func (s *sources) verifySources() *verdict {
	s.t.Helper()
	s.awaitConfirmed(s.walFlushed(), patience)
	v := judge(s.truth, s.readAll())
	if err := v.err(); err != nil {
		s.t.Error(err)
	}
	return v
}

// checkPeeked compares what peek showed of some events, and maybe of earlier ones, with what was delivered.
func (s *sources) checkPeeked(out string, from, to int, v *verdict) {
	s.t.Helper()
	positions := map[string]string{}
	for _, p := range parseShownRecords(s.t, out) {
		positions[p.ID] = p.Position
		if _, is := v.at[p.ID]; !is {
			s.t.Errorf("peek shows %s, which is not an event", p.ID)
		}
	}
	for _, x := range s.truth[from:to] {
		if got, err := parsePosition(positions[x.ID]); err != nil || got != v.at[x.ID] {
			s.t.Fatalf("peek shows %s at %q, it was delivered at %v", x.ID, positions[x.ID], v.at[x.ID])
		}
	}
}

const twoOutboxes = `
outboxes:
- table: public.outbox
- table: sales.events
  columns: {id: "no", aggregate_type: kind, aggregate_id: who, event_type: what, payload: body, headers: ""}
  route: {id: "{table}:{no}", topic: "%s.{kind}"}
`

func newTwoTables(t *testing.T, major string) *sources {
	pg := sharedPostgres(t, major)
	t.Parallel()
	s := &sources{outbox: newOutbox(t, options{pg: pg}), seqs: map[string]int{}}
	s.exec(`CREATE SCHEMA sales`)
	s.exec(`CREATE TABLE sales.events (no bigint NOT NULL, kind text, who text, what text, body text) PARTITION BY RANGE (no)`)
	s.exec(`CREATE TABLE sales.low PARTITION OF sales.events FOR VALUES FROM (0) TO (50)`)
	s.exec(`CREATE TABLE sales.high PARTITION OF sales.events FOR VALUES FROM (50) TO (1000000)`)
	s.configure(fmt.Sprintf(twoOutboxes, s.name))
	return s
}

// insertBoth commits a transaction with rows of both tables, of one key and one topic.
func (s *sources) insertBoth() {
	s.t.Helper()
	key := fmt.Sprint("key-", s.n%3)
	s.inTx(func(ctx context.Context, tx pgx.Tx) error {
		for range 2 {
			s.n++
			var id string
			value := fmt.Sprintf(`{"n": %d}`, s.n)
			err := tx.QueryRow(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', $1, 'added', $2) RETURNING id::text`, key, value).Scan(&id)
			if err != nil {
				return err
			}
			s.expect("order", id, key, value)
			s.n++
			value = fmt.Sprintf(`as "text" %d`, s.n)
			if _, err := tx.Exec(ctx, `INSERT INTO sales.events VALUES ($1, 'order', $2, 'added', $3)`, s.n, key, value); err != nil {
				return err
			}
			s.expect("order", fmt.Sprint("events:", s.n), key, value)
		}
		return nil
	})
}

// inTx runs a transaction.
func (s *sources) inTx(f func(ctx context.Context, tx pgx.Tx) error) {
	s.t.Helper()
	must(s.t, s.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return f(ctx, tx) })
	}))
}

// Two tables, each with its own mapping, into one topic and with the same keys: nothing is missing, the order of a key
// is kept across the tables, within transactions and across a kill -9.
func TestSeveralTables(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "16", "18"}, []string{"18"}) {
		t.Run(major, func(t *testing.T) {
			s := newTwoTables(t, major)
			r := s.startStreaming()
			for range 40 {
				s.insertBoth()
			}
			r.kill9()
			for range 20 {
				s.insertBoth()
			}
			waiting := len(s.truth)
			out, _ := s.mustRunBinary(nil, "peek", "-o", "json", "--limit", "0")
			r = s.startStreaming()
			for range 20 {
				s.insertBoth()
			}
			v := s.verifySources()
			r.term()
			s.checkPeeked(out, waiting-80, waiting, v)
			for i, x := range s.truth { // of a transaction of four events
				if p := v.at[x.ID]; p.ordinal != uint64(i%4) {
					t.Fatalf("the position of %s has ordinal %d", x.ID, p.ordinal)
				}
			}
		})
	}
}

// An alteration that removes the rows of one of two tables from the stream ends the daemon with 79, and nothing
// committed after it is confirmed.
func TestOneOfTwoTablesAltered(t *testing.T) {
	for name, ddl := range map[string]string{
		"second renamed":    `ALTER TABLE sales.events RENAME TO events_old`,
		"second removed":    `ALTER PUBLICATION outboxcdc DROP TABLE sales.events`,
		"first removed":     `ALTER PUBLICATION outboxcdc DROP TABLE outbox`,
		"second set filter": `ALTER PUBLICATION outboxcdc SET TABLE outbox, sales.events WHERE (no < 0)`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newTwoTables(t, "17")
			s.proves("F43", "two outbox tables, one altered: %s", name)
			r := s.startStreaming()
			for range 5 {
				s.insertBoth()
			}
			v := s.verifySources()
			s.proof.setVerdict(v)
			s.repeatsAtMost(v, 0, "nothing is sent again")
			r.endExpected = true
			s.exec(ddl)
			limit := walInsert(s.outbox)
			await(t, patience, "the daemon to end by itself", func() error {
				var table string
				must(t, s.admin.scan(`SELECT coalesce(to_regclass('sales.events'), to_regclass('sales.events_old'))::text`, &table))
				s.n++
				s.exec(`INSERT INTO `+table+` VALUES ($1, 'order', 'after', 'added', 'x')`, s.n)
				s.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'after', 'added')`)
				if !r.proc.Exited() {
					return errors.New("it runs")
				}
				return nil
			})
			r.awaitStop(0, 79, "remedy: ")
			if c := s.confirmed(); c > limit {
				t.Errorf("the slot confirms %s; the alteration was complete at %s, and rows committed after it", c, limit)
			}
			s.outcome("exit 79; nothing that committed after the alteration is confirmed")
		})
	}
}

// Ids that are not unique among tables, and unsuitable types, are refused at the start.
func TestTablesRefusedAtTheStart(t *testing.T) {
	s := newTwoTables(t, "17")
	s.exec(`ALTER TABLE outbox ALTER id DROP DEFAULT, ALTER id TYPE text`)
	file := s.args[1]
	refused := func(yaml string, words ...string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(yaml), 0o600))
		s.start().awaitStop(patience, 78, words...)
	}
	good := fmt.Sprintf(twoOutboxes, s.name)
	refused(strings.Replace(good, `id: "{table}:{no}", `, "", 1), "is not a uuid", "public.outbox", "sales.events", "{table}:{id}")
	s.exec(`ALTER TABLE sales.events ALTER what TYPE bytea USING what::bytea`)
	refused(good, `"what" (named by outbox.columns.event_type) is bytea`)
}

// message returns a body for pg_logical_emit_message.
func message(id, key, payload string) string {
	return fmt.Sprintf(`{"id":%q,"aggregate_type":"order","aggregate_id":%q,"event_type":"added","payload":%s,"headers":{"from": "message"}}`, id, key, payload)
}

// Messages beside a table: in the order of their transaction with its rows, only committed ones, never
// non-transactional ones, across a kill -9 and a restart.
func TestMessagesBesideATable(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "15", "16", "17", "18"}, []string{"14", "18"}) {
		pg := sharedPostgres(t, major)
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			s := &sources{outbox: newOutbox(t, options{pg: pg, types: []string{"order", "dead"}}), seqs: map[string]int{}}
			env := []string{"OUTBOXCDC_MESSAGES_PREFIX=" + s.name, "OUTBOXCDC_POISON_CAUSES=bad_payload=dead_letter", "OUTBOXCDC_POISON_TOPIC=" + s.topic("dead")}
			emit := func(ctx context.Context, tx pgx.Tx, transactional bool, prefix, body string) error {
				_, err := tx.Exec(ctx, `SELECT pg_logical_emit_message($1, $2, $3)`, transactional, prefix, body)
				return err
			}
			stray := 0
			write := func() {
				t.Helper()
				key := fmt.Sprint("key-", s.n%3)
				s.inTx(func(ctx context.Context, tx pgx.Tx) error {
					for i := range 3 {
						s.n++
						id, value := fmt.Sprint("m-", s.n), fmt.Sprintf(`{"n":%d,  "exact" : 1.50}`, s.n)
						if i == 1 { // a row between two messages
							value = fmt.Sprintf(`{"n": %d}`, s.n)
							err := tx.QueryRow(ctx, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', $1, 'added', $2) RETURNING id::text`, key, value).Scan(&id)
							if err != nil {
								return err
							}
						} else if err := emit(ctx, tx, true, s.name, message(id, key, value)); err != nil {
							return err
						}
						s.expect("order", id, key, value)
						if err := errors.Join(emit(ctx, tx, true, s.name+"2", message("phantom", key, "{}")), emit(ctx, tx, false, s.name, message("phantom", key, "{}"))); err != nil {
							return err
						}
						stray++
						sub, err := tx.Begin(ctx)
						if err != nil {
							return err
						}
						if err := errors.Join(emit(ctx, sub, true, s.name, message("phantom", key, "{}")), sub.Rollback(ctx)); err != nil {
							return err
						}
					}
					return nil
				})
				must(t, s.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
					tx, err := conn.Begin(ctx)
					if err != nil {
						return err
					}
					stray++
					return errors.Join(emit(ctx, tx, true, s.name, message("phantom", key, "{}")), emit(ctx, tx, false, s.name, message("phantom", key, "{}")), tx.Rollback(ctx))
				}))
			}
			r := s.startStreaming(env...)
			for range 20 {
				write()
			}
			s.awaitConfirmed(s.walFlushed(), patience)
			m, err := r.metrics()
			must(t, err)
			if n := m[`outboxcdc_events_skipped_total{reason="not_transactional"}`]; int(n) != stray {
				t.Errorf("%v messages without a transaction are counted, %d were written", n, stray)
			}
			is(t, "log lines", len(r.logged("skipping messages that are not transactional")), 1)
			for range 10 {
				write()
			}
			r.kill9()
			for range 10 {
				write()
			}
			out, _ := s.mustRunBinary(env, "peek", "-o", "json", "--limit", "0")
			r = s.startStreaming(env...)
			v := s.verifySources()
			s.checkPeeked(out, len(s.truth)-30, len(s.truth), v)
			for i, x := range s.truth {
				if p := v.at[x.ID]; p.ordinal != uint64(i%3) {
					t.Fatalf("the position of %s has ordinal %d", x.ID, p.ordinal)
				}
			}

			// A body that is no JSON object is handled by the poison policy, and the events around it arrive.
			s.exec(`SELECT pg_logical_emit_message(true, $1, 'no object')`, s.name)
			write()
			s.awaitConfirmed(s.walFlushed(), patience)
			r.term()
			dead, err := kafkatest.ReadAll(testContext(t), s.kafka.Brokers(), s.topic("dead"))
			must(t, err)
			if len(dead) != 1 || string(dead[0].Value) != "no object" {
				t.Fatalf("dead letters: %v", dead)
			}
			if cause, _ := headerOf(dead[0], "outboxcdc-error"); cause != "bad_payload" {
				t.Errorf("cause %s", cause)
			}
		})
	}
}

// Messages instead of a table, written by outbox_emit: byte for byte the same records as its table form. The
// publication, which is empty, is guarded all the same.
func TestMessagesInsteadOfATable(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "16", "18"}, []string{"18"}) {
		pg := sharedPostgres(t, major)
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			calls := []string{
				`outbox_emit('order', 'k', 'added', '{"b":1.50,   "a":[12345678901234567890.1234567890,true,"é\u20ac\n"]}')`,
				`outbox_emit('order', E'q"\\/\n\t€', 'added', '"text"', '{"trace": "ü \"x\"", "n": 1.50, "nul": null}')`,
				`outbox_emit('order', '', 'added', 'null')`,
				`outbox_emit('order', 'k', 'added', NULL, NULL)`,
				`outbox_emit('order', 'k', 'added', 'true', '{}')`,
				`outbox_emit('order', 'k', 'added', to_jsonb((SELECT string_agg(sha256(g::text::bytea)::text, '') FROM generate_series(1, 3000) g)))`,
			}
			delivered := func(o *outbox, env ...string) (records []string) {
				t.Helper()
				r := o.startStreaming(append(env, "OUTBOXCDC_ROUTE_TIMESTAMP=created_at")...)
				var ids []string
				for _, call := range calls {
					var id string
					must(t, o.admin.scan(`SELECT `+call, &id))
					ids = append(ids, id)
				}
				o.awaitConfirmed(o.walFlushed(), patience)
				r.term()
				for _, rec := range o.readAll() {
					id, _ := headerOf(rec, "id")
					i := slices.Index(ids, id)
					if age := time.Since(rec.Timestamp); i < 0 || age < 0 || age > patience {
						t.Errorf("id %q, time %s", id, rec.Timestamp)
					}
					headers := headersOf(rec)
					headers = slices.DeleteFunc(headers, func(h string) bool { return strings.HasPrefix(h, "id=") })
					records = append(records, fmt.Sprintf("%d %q %q null:%v %q", i, rec.Key, rec.Value, rec.Value == nil, headers))
				}
				return records
			}
			table := newOutbox(t, options{pg: pg})
			out, err := table.command(nil, "setup", "apply", "--function")
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			rows := delivered(table)

			o := newOutbox(t, options{pg: pg})
			o.exec(`DROP PUBLICATION outboxcdc`)
			o.exec(`DROP TABLE outbox`)
			o.exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.name)
			env := []string{"OUTBOXCDC_OUTBOX_TABLE=", "OUTBOXCDC_MESSAGES_PREFIX=events"}
			if out, err := o.command(env, "setup", "apply", "--function"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			messages := delivered(o, env...)
			slices.Sort(rows)
			slices.Sort(messages)
			if len(rows) != len(calls) || !slices.Equal(rows, messages) {
				a, _ := json.MarshalIndent(rows, "", " ")
				b, _ := json.MarshalIndent(messages, "", " ")
				t.Errorf("by rows %.3000s\nby messages %.3000s", a, b)
			}

			r := o.startStreaming(env...)
			o.exec(`DROP PUBLICATION outboxcdc`)
			r.awaitStop(patience, 79, "publication", "remedy: ")
			o.start(env...).awaitStop(patience, 79, "the database has no publication of that name")
		})
	}
}
