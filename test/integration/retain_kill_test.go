package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sys/unix"
)

// archiveScript stores the rows under a name of its own, and then under one that counts. Its mode decides whether it
// fails, or hangs before or after it has read the rows. If it hangs, it names its process group, which outlives a
// killed retain.
const archiveScript = `case $MODE in silent|late) echo > "$DIR/group.$$";; esac
[ "$MODE" = silent ] && exec sleep 1000
cat > "$DIR/part.$$" || exit 4
[ "$MODE" = late ] && exec sleep 1000
[ "$MODE" = fails ] && exit 3
mv "$DIR/part.$$" "$DIR/stored.$$"`

// TestRetainKills kills retain at random steps, in some rounds while its archive hangs or the slot does not move. A row
// is gone only if the slot has confirmed it and the archive has it, and no lock and no session is left. At the end,
// everything can be removed.
func TestRetainKills(t *testing.T) {
	t.Parallel()
	const leaves = 8
	o := newOutbox(t, options{ring: leaves})
	kills := fullOrShort(100, 6)
	o.proves("F126", "retain is killed %d times at random steps, its archive hangs or fails in half of the rounds, and the slot does not move in a quarter", kills)
	rnd := newRand(t)
	k := &retainKills{outbox: o, dir: t.TempDir(), end: map[string]pglogrepl.LSN{}, archived: map[string]bool{}}
	t.Cleanup(k.endArchives)
	var at [5]int // how many rounds ended how
	for n := 0; n < kills; n++ {
		for range 1 + rnd.IntN(4) {
			k.write(rnd.IntN(leaves))
		}
		at[k.round(rnd, rnd.IntN(4) > 0)]++
	}
	t.Logf("killed before it worked %d, at work %d, while the archive got rows %d, after that %d; ended before %d; %d rows removed", at[0], at[1], at[2], at[3], at[4], k.removed)
	if at[4] == kills || isProving() && k.removed == 0 {
		t.Errorf("%d rows were removed, and it was killed %v: this tests nothing", k.removed, at)
	}
	stop := k.confirmAlways()
	await(t, patience, "everything to be removed", func() error {
		out, err := k.command("ok").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	stop()
	k.check(k.confirmed())
	if left := k.idSet(); len(left) > 0 {
		t.Errorf("%d rows are left", len(left))
	}
	o.outcome("%d rows removed, each confirmed and archived before; no lock left", k.removed)
}

// retainKills has what was written and what the archive has taken.
type retainKills struct {
	*outbox
	dir      string
	end      map[string]pglogrepl.LSN // by row: a position after its commit
	archived map[string]bool
	removed  int
}

// write commits old rows in a partition.
func (k *retainKills) write(lap int) {
	k.t.Helper()
	var ids []string
	var end string
	must(k.t, k.admin.scan(fmt.Sprintf(`WITH new AS (INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at, lap)
		SELECT 'order', 'k', 'added', jsonb_build_object('x', repeat('y', 1000)), now() - interval '3 hours', %d FROM generate_series(1, 200) RETURNING id::text)
		SELECT array_agg(id) FROM new`, lap), &ids))
	must(k.t, k.admin.scan(`SELECT pg_current_wal_insert_lsn()::text`, &end))
	lsn, err := pglogrepl.ParseLSN(end)
	must(k.t, err)
	for _, id := range ids {
		k.end[id] = lsn
	}
}

func (k *retainKills) command(mode string) *exec.Cmd {
	cmd := exec.Command(testSuite.binary, "retain")
	cmd.Env = append(k.env(), "DIR="+k.dir, "MODE="+mode, "OUTBOXCDC_RETENTION_MODE=truncate", "OUTBOXCDC_RETENTION_KEEP=1h",
		"OUTBOXCDC_POSTGRES_URL="+k.admin.url, "OUTBOXCDC_RETENTION_ARCHIVE=sh,-c,"+archiveScript)
	return cmd
}

// round starts retain, kills it, and checks what is gone. confirming is whether the slot moves meanwhile. It returns
// where retain was killed.
func (k *retainKills) round(rnd *rand.Rand, confirming bool) (at int) {
	k.t.Helper()
	stop := func() int { return 0 }
	if confirming {
		stop = k.confirmAlways()
	}
	mode := []string{"ok", "ok", "ok", "silent", "late", "fails"}[rnd.IntN(6)]
	cmd := k.command(mode)
	must(k.t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	const busy = `FROM pg_stat_activity WHERE application_name = 'outboxcdc-retain' AND datname = current_database()`
	// The step at which it is killed is one that was seen, and a random moment after it.
	step := rnd.IntN(4)
	switch {
	case !confirming:
		step = min(step, 1)
	case mode != "ok":
		step = min(step, 2)
	}
	await(k.t, patience, "retain to work", func() error {
		select {
		case <-ended:
			at = 4
			return nil
		default:
		}
		var seen bool
		switch step {
		case 0:
			return nil
		case 1:
			must(k.t, k.admin.scan(`SELECT EXISTS (SELECT `+busy+`)`, &seen))
		case 2:
			must(k.t, k.admin.scan(`SELECT EXISTS (SELECT `+busy+` AND query LIKE 'COPY%')`, &seen))
		case 3:
			stored, err := filepath.Glob(filepath.Join(k.dir, "stored.*"))
			must(k.t, err)
			seen = len(stored) > 0
		}
		if !seen {
			return fmt.Errorf("step %d was not reached", step)
		}
		at = step
		return nil
	})
	if at != 4 {
		time.Sleep(time.Duration(rnd.IntN(60)) * time.Millisecond) // to a random moment
		switch err := cmd.Process.Kill(); {
		case errors.Is(err, os.ErrProcessDone):
			at = 4
		default:
			must(k.t, err)
		}
	}
	<-ended
	stop()
	k.endArchives()
	await(k.t, patience, "the locks to be released", func() error {
		var sessions, locks int
		must(k.t, k.admin.scan(`SELECT (SELECT count(*) `+busy+`), (SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid() AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, &sessions, &locks))
		if sessions+locks > 0 {
			return fmt.Errorf("%d sessions, %d locks", sessions, locks)
		}
		return nil
	})
	k.check(k.confirmed())
	return at
}

// endArchives ends the process groups of archives that hang.
func (k *retainKills) endArchives() {
	groups, err := filepath.Glob(filepath.Join(k.dir, "group.*"))
	must(k.t, err)
	for _, file := range groups {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(file), "."))
		must(k.t, err)
		_ = unix.Kill(-pid, unix.SIGKILL) // retain may have stopped it
		must(k.t, os.Remove(file))
	}
}

// check checks that each row that is gone was confirmed up to a position, and is in the archive.
func (k *retainKills) check(confirmed pglogrepl.LSN) {
	k.t.Helper()
	files, err := filepath.Glob(filepath.Join(k.dir, "stored.*"))
	must(k.t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(k.t, err)
		for line := range strings.Lines(string(text)) {
			id, _, _ := strings.Cut(line, "\t")
			k.archived[id] = true
		}
		must(k.t, os.Remove(file))
	}
	left := k.idSet()
	for id, end := range k.end {
		if left[id] {
			continue
		}
		k.removed++
		delete(k.end, id)
		if end > confirmed || !k.archived[id] {
			k.t.Fatalf("row %s was removed: committed before %s, the slot had confirmed %s, archived: %v", id, end, confirmed, k.archived[id])
		}
	}
	for id := range left {
		if _, known := k.end[id]; !known {
			k.t.Fatalf("row %s has come back", id)
		}
	}
}
