package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/retention"
	"github.com/outboxcdc/outboxcdc/test/debian"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// partmanPostgres starts a server that has pg_partman, of Debian's package for its version.
func partmanPostgres(t *testing.T) *pgtest.Server {
	t.Helper()
	const major = "15"
	bin, err := pgtest.Fetch(testContext(t), major)
	must(t, err)
	files, err := debian.Unpack(testContext(t), "postgresql-"+major+"-partman")
	must(t, err)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // the account of the server has to find it
		must(t, os.Chmod(d, 0o755))
	}
	for _, args := range [][]string{
		{"cp", "-r", filepath.Dir(bin), dir + "/postgres"},
		{"cp", "-r", filepath.Join(files, "usr/share/postgresql", major, "extension"), dir + "/postgres/share/postgresql/"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	s, err := pgtest.Start(testContext(t), pgtest.Options{Major: major, BinDir: dir + "/postgres/bin", Settings: withSettings(nil)})
	must(t, err)
	return forThisTest(t, s)
}

// TestRetainPgPartman has retain empty and drop the partitions of a table that pg_partman manages, beside a daemon and
// beside the maintenance of pg_partman, also with a retention of its own. The daemon runs on, pg_partman goes on
// creating partitions, and no young row goes.
func TestRetainPgPartman(t *testing.T) {
	skipUnlessProving(t)
	o := newOutbox(t, options{pg: partmanPostgres(t)})
	o.proves("F126", "retain and the maintenance of pg_partman, side by side")
	o.script(`CREATE TABLE managed (LIKE outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at);
		ALTER TABLE managed DROP COLUMN seq; GRANT SELECT ON managed TO PUBLIC; ALTER PUBLICATION outboxcdc SET TABLE managed;
		ALTER PUBLICATION outboxcdc SET (publish_via_partition_root = true);
		CREATE SCHEMA partman; CREATE EXTENSION pg_partman SCHEMA partman;
		SELECT partman.create_parent('public.managed', 'created_at', 'native', 'daily', p_premake := 2, p_start_partition := (now() - interval '9 days')::text)`)
	recreateSlot(o)
	env := append(o.deduplicating(steadyFence), "OUTBOXCDC_OUTBOX_TABLE=public.managed", "OUTBOXCDC_RETENTION_DROP_EMPTY=true")
	r := o.startStreaming(env...)
	insert := func() {
		o.exec(`INSERT INTO managed (aggregate_type, aggregate_id, event_type, payload, created_at)
			SELECT 'order', 'k' || n, 'added', '{"a": 1}', now() - interval '1 day' * n FROM generate_series(0, 8) n`)
	}
	retain := func() (emptied, dropped int) {
		cmd := o.retain("truncate")
		cmd.Env = append(cmd.Env, append(env, "OUTBOXCDC_RETENTION_KEEP=72h")...)
		out, err := cmd.Output()
		var res retention.TableResult
		must(t, json.Unmarshal(out, &res))
		for _, l := range res.Leaves {
			switch {
			case l.Outcome == retention.Emptied:
				emptied++
			case l.Outcome == retention.Dropped:
				dropped++
			case l.Reason != "" && l.Reason != retention.ByLock && l.Reason != retention.ByError: // pg_partman was there first
				t.Errorf("%+v", l)
			}
		}
		t.Logf("%d emptied, %d dropped, %v", emptied, dropped, err)
		return emptied, dropped
	}
	partitions := func() (n int) {
		must(t, o.admin.scan(`SELECT count(*) FROM pg_inherits WHERE inhparent = 'managed'::regclass`, &n))
		return n
	}
	insert()
	before := partitions()
	if emptied, _ := retain(); emptied < 5 {
		t.Errorf("%d partitions were emptied", emptied)
	}
	if _, dropped := retain(); dropped < 5 {
		t.Errorf("%d partitions were dropped", dropped)
	}
	left := partitions()
	o.exec(`UPDATE partman.part_config SET premake = 4`)
	o.exec(`SELECT partman.run_maintenance('public.managed')`)
	if after := partitions(); after <= left {
		t.Errorf("%d partitions at first, %d after retain, %d after the maintenance", before, left, after)
	}

	// Old rows go to the default partition now, and pg_partman drops partitions by itself.
	o.exec(`UPDATE partman.part_config SET retention = '2 days', retention_keep_table = false`)
	insert()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5 {
			o.exec(`SELECT partman.run_maintenance('public.managed')`)
		}
	}()
	for range 3 {
		retain()
	}
	<-done
	retain()
	var young int
	must(t, o.admin.scan(`SELECT count(*) FROM managed WHERE created_at > now() - interval '2 days'`, &young))
	if young != 4 {
		t.Errorf("%d young rows are left, want 4", young)
	}
	noReconnects(t, r)
	o.outcome("%d partitions at first, %d after retain, %d at the end; the daemon in one session", before, left, partitions())
}
