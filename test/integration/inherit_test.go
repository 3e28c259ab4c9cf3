package integration

import (
	"strings"
	"testing"
)

// remedies executes the SQL that doctor prints for a check, as an administrator.
func (o *outbox) remedies(env []string, check string) {
	o.t.Helper()
	n := 0
	for _, f := range o.doctor(env...).Findings {
		for _, r := range f.Remedy {
			if f.Check == check && r.Kind == "SQL" {
				o.exec(r.Text)
				n++
			}
		}
	}
	if n == 0 {
		o.t.Fatalf("doctor prints no SQL for %s", check)
	}
}

// A table that inherits from the outbox takes rows that are not in its stream: a trigger divides the outbox, as older
// versions of pg_partman do. The daemon stops, nothing says that nothing is missing, and doctor's remedy delivers
// every row.
func TestInherited(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.proves("F46", "a trigger takes rows to a table that inherits from the outbox")
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)
	o.exec(`CREATE TABLE outbox_2026 () INHERITS (outbox)`)
	o.exec(`CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO outbox_2026 SELECT NEW.*; RETURN NULL; END'`)
	o.exec(`CREATE TRIGGER redirect BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION redirect()`)
	r.endExpected = true
	o.insert("order", "k", 4, 3)
	end := o.walFlushed() // the trigger leaves nothing that the stream has
	checkStopBefore(t, o, r, end)
	r = o.start(env...)
	r.endExpected = true
	r.awaitStop(patience, 78, "outbox_2026 inherits", "remedy: ")
	for _, args := range [][]string{{"audit"}, {"recover", "--yes"}, {"replay", "--dry-run", "--type", "added"}} {
		if out, errs, exit := o.runBinary(env, args...); exit != 78 || !strings.Contains(errs, "outbox_2026 inherits from the outbox") {
			t.Errorf("%v: exit code %d\n%s%s", args, exit, out, errs)
		}
	}
	is(t, "table", o.doctor(env...).level("table"), "FAIL 78")
	o.remedies(env, "table")
	o.startStreaming(env...)
	o.insert("order", "k", 7, 3)
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "nothing failed")
	if v.Rows != 9 {
		t.Errorf("%d rows", v.Rows)
	}
	if _, sum := o.audit(env, 0); !sum.Summary.Clean || sum.Summary.Rows != 9 {
		t.Errorf("%+v", sum.Summary)
	}
}

// Row-level security hides rows from the role of the commands: they say so, with the exit code of a missing privilege.
func TestHiddenRows(t *testing.T) {
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.startStreaming(env...)
	o.exec(`ALTER TABLE outbox ENABLE ROW LEVEL SECURITY`)
	o.exec(`CREATE POLICY mine ON outbox USING (aggregate_id = current_setting('app.tenant', true))`)
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience) // the WAL knows no policies
	for _, args := range [][]string{{"audit"}, {"recover", "--yes"}, {"replay", "--dry-run", "--type", "added"}} {
		if out, errs, exit := o.runBinary(env, args...); exit != 77 || !strings.Contains(errs, "row-level security hides rows") || !strings.Contains(errs, "BYPASSRLS") {
			t.Errorf("%v: exit code %d\n%s%s", args, exit, out, errs)
		}
	}
	is(t, "table_privileges", o.doctor(env...).level("table_privileges"), "FAIL 77")
	t.Cleanup(func() { o.exec(`ALTER ROLE outboxcdc NOBYPASSRLS`) }) // the role of other tests, too
	o.remedies(env, "table_privileges")
	if _, sum := o.audit(env, 0); !sum.Summary.Clean || sum.Summary.Rows != 3 {
		t.Errorf("%+v", sum.Summary)
	}
}
