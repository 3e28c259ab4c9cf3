package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxcdc/outboxcdc/sql"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// scaled is an outbox that several daemons share.
type scaled struct {
	*outbox
	env     []string
	daemons []*relay
	shards  int  // 0: one daemon, as without --shards
	beside  bool // setup creates a table that replaces the outbox
}

// newScaled sets one daemon up for a table with 16 partitions, and starts it.
func newScaled(t *testing.T) *scaled { return newScaledOn(t, defaultMajor) }

func newScaledOn(t *testing.T, major string) *scaled {
	pg := sharedPostgres(t, major)
	t.Parallel()
	o := newOutbox(t, options{pg: pg, partitions: 6})
	s := &scaled{outbox: o}
	s.env = o.deduplicating(steadyFence)
	t.Cleanup(s.dropSlots)
	o.exec(`DROP PUBLICATION outboxcdc`)
	o.exec(`DROP TABLE outbox`)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	s.setup(1, false)
	o.exec(`ALTER TABLE outbox ADD COLUMN n bigint`)
	s.startAll(1)
	return s
}

// The procedure of docs/scale.md, from one daemon to two, four and one, while writers write and, between two steps, a
// daemon is killed: nothing is missing, repeated, or in another order.
func TestScale(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "17", "18"}, []string{defaultMajor}) {
		t.Run(major, func(t *testing.T) { scaleRounds(t, newScaledOn(t, major)) })
	}
}

func scaleRounds(t *testing.T, s *scaled) {
	rnd := newRand(t)
	o := s.outbox
	w := o.write(load{rand: rnd, keys: 60})
	for round := range fullOrShort(5, 1) {
		for _, shards := range []int{2, 4, 1} {
			w.awaitCommits(50)
			s.setup(shards, true)
			s.kill(rnd.IntN(s.shards))
			s.handOver(shards)
			w.awaitCommits(20) // into the slots of daemons that do not run yet
			s.startNew(shards)
			t.Logf("round %d: %d daemons", round, shards)
			if round == 0 && shards == 2 {
				s.auditEach()
			}
		}
	}
	w.awaitCommits(50)
	w.stop()
	s.drain()
	if _, sum := o.audit(append(s.env, s.slot(0)), 0); !sum.Summary.Clean {
		t.Errorf("audit: %+v", sum.Summary)
	}
	v := judge(o.truth(), o.readAll())
	if err := v.err(); err != nil || v.Repeats > 0 {
		t.Errorf("%d repeats: %v", v.Repeats, err)
	}
	// The daemon does not start while the rows of a partition would be delivered by none.
	s.stop(s.daemons[0])
	o.exec(`CREATE PUBLICATION less FOR TABLE outbox_0 WITH (publish = 'insert')`)
	o.exec(`DROP PUBLICATION outboxcdc_0_of_1`)
	must(t, os.WriteFile(s.file(0), []byte("postgres: {publication: less}\noutboxes: [{table: public.outbox_0}]\n"), 0o600))
	o.args = []string{"-c", s.file(0)}
	lost := o.start(append(s.env, s.slot(0))...)
	lost.awaitStop(patience, 79, "no daemon delivers the rows of public.outbox_1, public.outbox_2")
}

// auditEach audits each daemon's part: the records of the other daemons, and of the earlier one, have no rows in it.
func (s *scaled) auditEach() {
	s.t.Helper()
	defer func(args []string) { s.args = args }(s.args)
	for n := range s.shards {
		s.args = []string{"-c", s.file(n)}
		if _, sum := s.audit(append(s.env, s.slot(n)), 0); !sum.Summary.Clean || sum.Summary.Foreign == 0 {
			s.t.Errorf("audit of daemon %d: %+v", n, sum.Summary)
		}
	}
}

func (s *scaled) dropSlots() {
	s.t.Helper()
	await(s.t, patience, "the slots to be free", func() error { // their walsenders end after the daemons
		return s.pg.Exec(context.Background(), s.name, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`)
	})
}

// drain waits until the daemons have delivered everything.
func (s *scaled) drain() {
	s.t.Helper()
	end := s.walFlushed()
	await(s.t, patience, "the slots to confirm everything", func() error {
		var behind int
		err := s.admin.scan(fmt.Sprintf(`SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn < '%s'`, end), &behind)
		return errors.Join(err, s.checkRelays(), waitFor(behind == 0))
	})
}

func (s *scaled) file(n int) string {
	return filepath.Join(testSuite.dir, fmt.Sprintf("%s-%d.yaml", s.name, n))
}

func (s *scaled) slot(n int) string {
	return fmt.Sprintf("OUTBOXCDC_POSTGRES_SLOT=%s_%d_of_%d", s.name, n, s.shards)
}

// setup executes what `setup sql` prints, and writes the settings that it prints.
func (s *scaled) setup(shards int, noSlot bool) {
	s.t.Helper()
	s.args = nil
	args := []string{"setup", "sql", "--shards", fmt.Sprint(shards), "--server-version", s.pg.Major}
	if s.beside {
		args = append(args, "--beside")
	}
	if noSlot {
		args = append(args, "--no-slot")
	}
	out, _ := s.mustRunBinary(nil, append(args, "-o", "json")...)
	var statements sql.Statements
	must(s.t, json.Unmarshal([]byte(out), &statements))
	for _, st := range statements {
		if st.Name != sql.Role { // of all tests
			s.script(st.SQL)
		}
	}
	text, _ := s.mustRunBinary(nil, args...)
	for n, settings := range strings.Split(text, "\n-- Daemon ")[1:] {
		var yaml strings.Builder
		for _, line := range strings.Split(settings, "\n")[1:] {
			if line, is := strings.CutPrefix(line, "-- "); is {
				yaml.WriteString(line + "\n")
			} else {
				break
			}
		}
		must(s.t, os.WriteFile(s.file(n), []byte(yaml.String()), 0o600))
	}
}

// script executes statements in a session of its own.
func (s *scaled) script(text string) {
	s.t.Helper()
	conn := pgtest.Connect(s.t, s.pg.SuperURL(s.name))
	_, err := conn.PgConn().Exec(testContext(s.t), text).ReadAll()
	must(s.t, errors.Join(err, conn.Close(testContext(s.t))))
}

// handOverSQL is what `setup sql --from` prints.
func (s *scaled) handOverSQL(shards int) sql.Statements {
	s.t.Helper()
	s.args = nil
	out, _ := s.mustRunBinary(nil, "setup", "sql", "--shards", fmt.Sprint(shards), "--from", fmt.Sprint(s.shards), "-o", "json")
	var statements sql.Statements
	must(s.t, json.Unmarshal([]byte(out), &statements))
	return statements
}

// handOver executes the hand-over, again if a daemon that was killed does not deliver yet, and stops the daemons when
// it says so.
func (s *scaled) handOver(shards int) {
	s.t.Helper()
	await(s.t, 2*patience, "the hand-over", func() error { return s.tryHandOver(shards) })
}

func (s *scaled) tryHandOver(shards int) error {
	s.t.Helper()
	return s.try(s.handOverSQL(shards), func(*pgconn.PgConn) {
		for _, r := range s.daemons {
			s.stop(r)
		}
	})
}

// try executes the statements of a hand-over as psql does, and calls stop when they say that the daemons are to be
// stopped. The server writes meanwhile which transactions run, as it does every 15 seconds.
func (s *scaled) try(statements sql.Statements, stop func(*pgconn.PgConn)) error {
	s.t.Helper()
	ctx, cancel := context.WithCancel(testContext(s.t))
	defer cancel()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() {
		for ctx.Err() == nil {
			_ = s.pg.Exec(ctx, s.name, "SELECT pg_log_standby_snapshot()", "SELECT pg_sleep(0.2)")
		}
	})
	cc, err := pgx.ParseConfig(s.pg.SuperURL(s.name))
	must(s.t, err)
	notice := make(chan string, 1)
	cc.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.Contains(n.Message, "stop the old daemons") {
			notice <- n.Message
		}
	}
	conn, err := pgx.ConnectConfig(testContext(s.t), cc)
	must(s.t, err)
	done := make(chan error, 1)
	go func() {
		var err error
		for _, st := range statements { // after an error, too
			_, err = conn.PgConn().Exec(testContext(s.t), st.SQL).ReadAll()
		}
		done <- errors.Join(err, conn.Close(context.Background()))
	}()
	select {
	case <-notice:
		stop(conn.PgConn())
		return <-done
	case err := <-done:
		return err
	}
}

// stop ends a daemon as a supervisor does.
func (s *scaled) stop(r *relay) {
	s.t.Helper()
	r.signal(syscall.SIGTERM)
	if exit := r.awaitExit(patience); exit != 0 {
		s.t.Fatalf("exit code %d after SIGTERM", exit)
	}
}

// kill kills a daemon, and starts it again as a supervisor does.
func (s *scaled) kill(n int) {
	s.t.Helper()
	s.daemons[n].endExpected = true
	must(s.t, s.daemons[n].proc.Kill())
	s.daemons[n] = s.startShard(n)
}

func (s *scaled) startShard(n int) *relay {
	s.t.Helper()
	if s.shards == 0 {
		return s.start(s.env...)
	}
	return s.startAs([]string{"-c", filepath.Join(testSuite.dir, fmt.Sprintf("%s-%d-of-%d.yaml", s.name, n, s.shards)), "run"}, append(append(s.outbox.env(), s.env...), s.slot(n)))
}

// startNew starts the new daemons.
func (s *scaled) startNew(shards int) {
	s.t.Helper()
	s.beside = false
	s.startAll(shards)
}

// startAll starts the daemons with the settings that were printed.
func (s *scaled) startAll(shards int) {
	s.t.Helper()
	s.shards, s.daemons = shards, nil
	for n := range shards {
		settings, err := os.ReadFile(s.file(n))
		must(s.t, err)
		s.args = []string{"-c", s.file(n)}
		s.adopt(n)
		must(s.t, os.WriteFile(filepath.Join(testSuite.dir, fmt.Sprintf("%s-%d-of-%d.yaml", s.name, n, shards)), settings, 0o600))
		s.daemons = append(s.daemons, s.startShard(n))
	}
	for _, r := range s.daemons {
		r.awaitState("streaming", patience)
	}
	s.args = []string{"-c", filepath.Join(testSuite.dir, fmt.Sprintf("%s-0-of-%d.yaml", s.name, shards))}
}

// adopt runs `slot adopt` for a daemon, again if the servers were too slow for it.
func (s *scaled) adopt(n int) {
	s.t.Helper()
	await(s.t, 5*patience, "slot adopt", func() error {
		_, stderr, code := s.runBinary(append(s.env, s.slot(n)), "slot", "adopt")
		switch code {
		case 0:
			return nil
		case 69: // unavailable
			return errors.New(stderr)
		}
		return &finalError{fmt.Errorf("exit code %d: %s", code, stderr)}
	})
}
