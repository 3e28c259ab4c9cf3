package integration

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// F51: the daemon does not read a slot with two_phase, which sends a prepared transaction before it is committed. The
// error and `doctor` name the remedy, which the test follows. Afterwards a transaction that was prepared is delivered
// when it is committed, and nothing is missing.
func TestTwoPhaseSlot(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"17", "18"} {
		t.Run(major, func(t *testing.T) {
			o := newOutbox(t, options{pg: ownPostgres(t, major, nil)})
			o.proves("F51", "a slot with two_phase, and a prepared transaction; then the remedy")
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)`, o.name)
			o.insert("order", "k", 1, 10)
			env := o.deduplicating(fence)
			r := o.start(env...)
			remedy := map[string]string{"17": "then run outboxcdc recover", "18": "ALTER_REPLICATION_SLOT " + o.name + " ( TWO_PHASE false )"}[major]
			r.awaitStop(patience, 78, "it has two_phase", remedy)
			out, notes, exit := o.runBinary(env, "doctor")
			if exit != 78 || !strings.Contains(out, "it has two_phase") || !strings.Contains(out, remedy) {
				t.Errorf("doctor: exit code %d\n%s\n%s", exit, out, notes)
			}
			if major == "17" {
				o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				o.recover(env, 0)
			} else {
				conn, err := pgconn.Connect(testContext(t), o.pg.SuperURL(o.name)+"&replication=database")
				must(t, err)
				_, err = conn.Exec(testContext(t), remedy).ReadAll()
				must(t, err)
				must(t, conn.Close(testContext(t)))
			}
			o.startStreaming(env...)
			o.insert("order", "k", 11, 10)
			must(t, o.pg.Exec(testContext(t), o.name, `BEGIN; `+insertInto+`(gen_random_uuid(), 'order', 'prepared', 'added', '{}', '{}', 1); PREPARE TRANSACTION 'p'`))
			o.insert("order", "k", 21, 10)
			o.awaitArrived(patience)
			is(t, "records", o.follow.records(), 30)
			o.exec(`COMMIT PREPARED 'p'`)
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, "no fault")
		})
	}
}
