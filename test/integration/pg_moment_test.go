package integration

import (
	"strings"
	"testing"
)

// F111: rows that were hidden for a moment, while no daemon runs and under a daemon. It stops, and recover delivers
// them. What rewrites a partition and hides nothing does not stop it.
func TestHiddenForAMoment(t *testing.T) {
	t.Parallel()
	const (
		leaf        = `ALTER TABLE leaf_1 SET UNLOGGED; %s; ALTER TABLE leaf_1 SET LOGGED`
		publication = `ALTER PUBLICATION outboxcdc DROP TABLE outbox; %s; ALTER PUBLICATION outboxcdc ADD TABLE outbox`
	)
	for _, c := range []struct {
		name, major, ddl string
		down             bool
		env              []string
		cause            string // "": it does not stop
	}{
		{name: "unlogged, down", major: "18", ddl: leaf, down: true, cause: "public.leaf_1 was rewritten"},
		{name: "unlogged, running", major: "17", ddl: leaf, cause: "public.leaf_1 was rewritten"},
		{name: "altered while a setting changes", major: "17", ddl: publication, down: true, env: []string{"OUTBOXCDC_MESSAGES_PREFIX=outboxcdc"}, cause: "the publication was altered"},
		{name: "truncated, running", major: "18", ddl: `TRUNCATE leaf_1; %s; CLUSTER leaf_1 USING leaf_1_n`},
		{name: "truncated, down", major: "17", ddl: `TRUNCATE leaf_1; %s; VACUUM FULL leaf_1`, down: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, c.major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.proves("F111", "%s", c.name)
			o.partitionOutbox(`CREATE PUBLICATION outboxcdc FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
			o.exec(`CREATE INDEX leaf_1_n ON leaf_1 (n)`)
			o.exec(`GRANT SELECT ON outbox TO outboxcdc`)
			env := o.deduplicating(fence)
			r := o.startStreaming(env...)
			o.insert("order", "k", 1, 5)
			o.awaitArrived(patience)
			o.awaitSettled()
			if c.down {
				r.term()
			}
			r.endExpected = c.down || c.cause != ""
			ddl := strings.Replace(c.ddl, "%s", insertInto+`(gen_random_uuid(), 'order', 'k', 'moment', '{}', '{}', 50)`, 1)
			if c.down {
				for _, sql := range strings.Split(ddl, "; ") {
					o.exec(sql)
				}
			} else {
				o.exec(ddl) // one transaction
			}
			env = append(env, c.env...)
			if c.down {
				r = o.start(env...)
			}
			if c.cause == "" {
				o.awaitConfirmed(o.insert("order", "k", 60, 1), patience)
				return
			}
			r.awaitStop(patience, 79, c.cause, "outboxcdc recover")
			if _, notes, code := o.runBinary(env, "recover", "--yes"); code != 0 {
				t.Fatalf("recover: exit code %d:\n%s", code, notes)
			}
			o.startStreaming(env...)
			o.awaitConfirmed(o.insert("order", "k", 60, 1), patience)
			is(t, "records", o.follow.records(), 7)
			o.outcome("exit 79, and recover delivers the row")
		})
	}
}
