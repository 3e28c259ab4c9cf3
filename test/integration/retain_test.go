package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboxcdc/outboxcdc/internal/retention"
)

// While a daemon delivers under load, retain empties the partitions of a ring whose laps take five seconds. The daemon
// runs on in one session, nothing is missing or repeated, audit finds nothing, and each row is in the table or in the
// archive.
func TestRetainBesideDaemon(t *testing.T) {
	t.Parallel()
	for mode, settings := range map[string]string{"deduplicated": "OUTBOXCDC_DELIVERY_MODE=deduplicated", "at_least_once": atLeastOnce} {
		t.Run(mode, func(t *testing.T) { t.Parallel(); retainBesideDaemon(t, settings) })
	}
}

func retainBesideDaemon(t *testing.T, mode string) {
	o := newOutbox(t, options{ring: 4})
	o.proves("F126", "retain empties a ring of four partitions beside a daemon and writers")
	o.exec(`ALTER TABLE outbox ALTER lap SET DEFAULT (extract(epoch FROM now())::bigint / 5 % 4)::smallint`)
	o.exec(`CREATE TABLE written (LIKE outbox)`)
	o.exec(`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO written SELECT NEW.*; RETURN NULL; END'`)
	o.exec(`CREATE TRIGGER note AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION note()`)
	env := append(o.deduplicating(steadyFence), mode)
	r := o.startStreaming(env...)
	w := o.write(load{rand: newRand(t)})

	dir := t.TempDir()
	archive, output := filepath.Join(dir, "rows"), filepath.Join(dir, "output")
	out, err := os.Create(output)
	must(t, err)
	defer out.Close() //nolint:errcheck // only the child writes to it
	retain := exec.Command(testSuite.binary, "retain", "--every", "1s", "--yes", "-o", "json", "--listen", "127.0.0.1:0")
	settings := append(env, "OUTBOXCDC_RETENTION_MODE=truncate", "OUTBOXCDC_RETENTION_KEEP=10s")
	retain.Env = append(append(o.env(), settings...), "OUTBOXCDC_POSTGRES_URL="+o.admin.url, "OUTBOXCDC_RETENTION_ARCHIVE=sh,-c,cat >> "+archive)
	retain.Stdout, retain.Stderr = out, os.Stderr
	must(t, retain.Start())
	t.Cleanup(func() { _ = retain.Process.Kill() })

	emptied, audits, audited, want := 0, 0, time.Now(), fullOrShort(5, 3)
	await(t, 2*patience, "emptied partitions", func() error {
		if strings.HasPrefix(mode, "OUTBOXCDC_DELIVERY_MODE=dedup") && time.Since(audited) > time.Second {
			if findings, sum := o.audit(settings, 0); !sum.Summary.Clean {
				t.Fatalf("audit beside retain: %+v %+v", findings, sum.Summary)
			}
			audits++
			audited = time.Now()
		}
		text, err := os.ReadFile(output)
		must(t, err)
		emptied = 0
		for line := range strings.Lines(string(text)) {
			var res retention.TableResult
			if json.Unmarshal([]byte(line), &res) == nil { // the last line may be a part of one
				emptied += res.Removed()
			}
		}
		if emptied < want {
			return errors.Join(fmt.Errorf("%d emptied: %s", emptied, text[max(0, len(text)-1000):]), o.checkRelays())
		}
		return nil
	})
	must(t, retain.Process.Signal(unix.SIGTERM))
	must(t, retain.Wait())
	w.stop()
	noReconnects(t, r)
	rows, err := os.ReadFile(archive)
	must(t, err)
	// The archive may have rows more than once, and rows that are still in the table: an audit's lock comes after it.
	archived := map[string]bool{}
	for line := range strings.Lines(string(rows)) {
		id, _, _ := strings.Cut(line, "\t")
		archived[id] = true
	}
	var removed []string
	var left int
	must(t, o.admin.scan("SELECT ARRAY(SELECT id::text FROM written EXCEPT SELECT id::text FROM outbox), (SELECT count(*) FROM outbox)", &removed, &left))
	if len(removed) == 0 {
		t.Error("no row was removed")
	}
	for _, id := range removed {
		if !archived[id] {
			t.Fatalf("row %s was removed, and is not in the archive", id)
		}
	}
	o.awaitArrived(patience)
	r.term()
	t.Logf("%d partitions were emptied, %d audits, %d rows were removed, %d are left", emptied, audits, len(removed), left)
	o.exec(`ALTER TABLE outbox RENAME TO emptied`)
	o.exec(`ALTER TABLE written RENAME TO outbox`)
	o.repeatsAtMost(o.verify(patience), 0, "no fault")
}
