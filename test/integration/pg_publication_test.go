package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// alteration removes rows from the stream without an error of the server, or with one only much later.
type alteration struct {
	name   string
	fault  string   // "": F43
	majors []string // of the short form
	full   []string // of the long form; nil: majors
	ddl    []string // one transaction each
	table  string   // where later rows go; "": outbox
	cause  string   // in the last log line
	or     string   // an alternative to cause
}

var alterations = []alteration{
	// Up to 17 the server ends the stream, 18 sends a notice and skips the rows.
	{
		name: "dropped", fault: "F41", majors: []string{"17"}, full: []string{"14", "15", "16", "17"}, cause: "publication",
		ddl: []string{`DROP PUBLICATION outboxcdc`},
	},
	{name: "dropped", fault: "F42", majors: []string{"18"}, ddl: []string{`DROP PUBLICATION outboxcdc`}, cause: "publication"},
	{
		name: "renamed", majors: []string{"18"}, full: []string{"14", "17", "18"}, cause: "publication",
		ddl: []string{`ALTER PUBLICATION outboxcdc RENAME TO other`},
	},
	{
		name: "table removed", majors: []string{"14", "17"}, full: pgtest.Majors(), cause: "altered for table public.outbox",
		ddl: []string{`ALTER PUBLICATION outboxcdc DROP TABLE outbox`},
	},
	{
		name: "row filter", majors: []string{"17"}, full: []string{"15", "17", "18"}, cause: "altered for table public.outbox",
		ddl: []string{`ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (n % 2 = 0)`},
	},
	{
		name: "filter set and removed", majors: []string{"18"}, cause: "altered for table public.outbox",
		ddl: []string{`ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (n % 2 = 0)`, `ALTER PUBLICATION outboxcdc SET TABLE outbox`},
	},
	// Either the guard's catalog check or the relation message of the next row is first.
	{
		name: "column list", majors: []string{"18"}, full: []string{"15", "18"}, cause: `has no column "payload"`, or: "altered for table public.outbox",
		ddl: []string{`ALTER PUBLICATION outboxcdc SET TABLE outbox (id, aggregate_type, aggregate_id, event_type, headers)`},
	},
	{
		name: "no inserts", majors: []string{"17"}, full: []string{"14", "17"}, cause: "altered for table public.outbox",
		ddl: []string{`ALTER PUBLICATION outboxcdc SET (publish = 'delete')`},
	},
	{name: "table renamed", majors: []string{"17"}, ddl: []string{`ALTER TABLE outbox RENAME TO outbox_old`}, table: "outbox_old", cause: "outbox"},
	{
		name: "table replaced", majors: []string{"18"}, cause: "outbox",
		ddl: []string{`DO $$ BEGIN ALTER TABLE outbox RENAME TO outbox_old; CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL);
			ALTER PUBLICATION outboxcdc ADD TABLE outbox; END $$`},
	},
	// The daemon may or may not restart in between: it must stop either way.
	{
		name: "between sessions", majors: []string{"17"}, cause: "altered for table public.outbox",
		ddl: []string{
			`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active AND database = current_database()`,
			`ALTER PUBLICATION outboxcdc SET TABLE outbox WHERE (n % 2 = 0)`, `ALTER PUBLICATION outboxcdc SET TABLE outbox`,
		},
	},
}

// Any alteration that removes our rows from the publication ends the daemon with 79. The server continues as if nothing
// had happened, so nothing committed after the alteration may be confirmed: it stays in the slot for an operator.
func TestPublicationAltered(t *testing.T) {
	t.Parallel()
	for _, a := range alterations {
		majors := a.majors
		if a.full != nil {
			majors = fullOrShort(a.full, a.majors)
		}
		for _, major := range majors {
			t.Run(major+" "+a.name, func(t *testing.T) {
				pg := sharedPostgres(t, major)
				t.Parallel()
				alterUnderLoad(t, newOutbox(t, options{pg: pg}), a)
			})
		}
	}
}

func alterUnderLoad(t *testing.T, o *outbox, a alteration) {
	o.exec(`ALTER PUBLICATION outboxcdc ADD TABLE counter`) // not empty without the outbox
	recreateSlot(o)
	fault := a.fault
	if fault == "" {
		fault = "F43"
	}
	o.proves(fault, "publication or table altered under load: %s", a.name)
	o.sample()
	r := o.startStreaming()
	for n := 1; n <= 40; n++ {
		o.insert("order", fmt.Sprint("key-", n%4), n, 1)
	}
	o.awaitArrived(patience)
	ends := map[string]pglogrepl.LSN{} // of rows that the daemon may not have received before its check
	for n := 41; n <= 44; n++ {
		end := o.insert("order", fmt.Sprint("key-", n%4), n, 1)
		ends[fmt.Sprintf(`{"n": %d}`, n)] = end
	}
	truth := o.truth()

	r.endExpected = true
	for _, ddl := range a.ddl {
		o.exec(ddl)
	}
	// The alteration is visible and nothing has committed after it: the slot must not confirm more.
	limit := walInsert(o)
	table := a.table
	if table == "" {
		table = "outbox"
	}
	begin := time.Now()
	after := insertUntilEnd(o, r, table, 45)
	o.outcome("exit 79 after %v; %d events committed after the alteration, none confirmed", time.Since(begin).Round(100*time.Millisecond), len(after))

	cause := a.cause
	if a.or != "" && strings.Contains(lastLine(r.log), a.or) {
		cause = a.or
	}
	r.awaitStop(0, 79, cause, "remedy: ")
	confirmed := o.confirmed()
	if confirmed > limit {
		t.Errorf("the slot confirms %s; the alteration was complete at %s, and rows committed after it", confirmed, limit)
	}
	there := map[string]bool{}
	records := o.readAll()
	for _, rec := range records {
		id, _ := headerOf(rec, "id")
		there[id] = true
	}
	// Rows not received when the daemon stopped still wait in the slot.
	truth = slices.DeleteFunc(truth, func(row row) bool {
		end, late := ends[string(row.Value)]
		waits := late && !there[row.ID] && confirmed < end
		if waits {
			t.Logf("%s was not delivered; it ends at %s and %s is confirmed", row.Value, end, confirmed)
		}
		return waits
	})
	for _, row := range after {
		if there[row.ID] {
			truth = append(truth, row)
		}
	}
	v := judge(truth, records)
	if err := v.err(); err != nil {
		t.Error(err)
	}
	o.proof.setVerdict(v)
	o.repeatsAtMost(v, 0, "nothing is sent again")
}

// insertUntilEnd commits single rows until the daemon has ended. Their order is not checked.
func insertUntilEnd(o *outbox, r *relay, table string, n int) (rows []row) {
	o.t.Helper()
	await(o.t, patience, "the daemon to end by itself", func() error {
		x := row{Row: check.Row{Topic: o.topic("order"), Key: []byte("after"), Value: fmt.Appendf(nil, `{"n": %d}`, n)}, EventType: "added"}
		err := o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `INSERT INTO `+table+` (aggregate_type, aggregate_id, event_type, payload, n)
				VALUES ('order', 'after', 'added', jsonb_build_object('n', $1::bigint), $1) RETURNING id::text`, n).Scan(&x.ID)
		})
		if err != nil {
			return &finalError{err}
		}
		rows = append(rows, x)
		n++
		if !r.proc.Exited() {
			return errors.New("it runs")
		}
		return nil
	})
	return rows
}
