package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// An old daemon that is started after the hand-over delivers nothing, and the hand-over that is repeated does nothing.
func TestScaleOldDaemon(t *testing.T) {
	rnd := newRand(t)
	s := newScaled(t)
	w := s.write(load{rand: rnd, keys: 60})
	s.setup(2, true)
	statements := s.handOverSQL(2)
	cutAt(t, statements, "before drops")
	s.cut(statements, func(*pgconn.PgConn) { s.stop(s.daemons[0]) })
	for _, slots := range []string{"old slot", "no slot"} {
		if slots == "no slot" {
			must(t, s.tryHandOver(2))
		}
		old := s.startShard(0)
		w.awaitCommits(20)
		old.awaitStop(patience, 79, elsewhere...)
		s.checkReplaced(0, elsewhere...)
	}
	s.startNew(2)
	s.deliveredOnce(w)
}

// deliveredOnce ends the load, and checks that the daemons deliver everything once and in order.
func (s *scaled) deliveredOnce(w *writer) {
	s.t.Helper()
	w.awaitCommits(20)
	w.stop()
	s.drain()
	if v := judge(s.truth(), s.readAll()); v.err() != nil || v.Repeats > 0 {
		s.t.Errorf("%d repeats: %v", v.Repeats, v.err())
	}
}

// A new daemon that is started before the hand-over delivers nothing, and what it and doctor say does not lead to
// commands that would have it deliver what the old one delivers. Once there are slots it starts.
func TestScaleEarlyDaemon(t *testing.T) {
	rnd := newRand(t)
	s := newScaled(t)
	w := s.write(load{rand: rnd, keys: 60})
	s.setup(2, true)
	old, env := s.daemons[0], []string{"OUTBOXCDC_POSTGRES_SLOT=" + s.name + "_1_of_2"}
	s.args = []string{"-c", s.file(1)}
	s.daemons = nil
	early := s.startAs([]string{"-c", s.file(1), "run"}, append(append(s.outbox.env(), s.env...), env...))
	w.awaitCommits(20)
	early.awaitStop(patience, 79, "publications name its partitions: outboxcdc_0_of_1. If daemons", "have not handed over yet")
	s.checkCreatesNothing(append(s.env, env...), "publications name its partitions: outboxcdc_0_of_1. If daemons", "have not handed over yet")
	s.args, s.daemons = nil, []*relay{old}
	s.handOver(2)
	s.startNew(2)
	s.deliveredOnce(w)
}

// The position record of a slot that once had the name of a new one ends the new daemon if `slot adopt` was forgotten.
// What it says as remedy lets it deliver: nothing is missing or repeated.
func TestScaleAdoptForgotten(t *testing.T) {
	rnd := newRand(t)
	s := newScaled(t)
	w := s.write(load{rand: rnd, keys: 60})
	for _, shards := range []int{2, 1} {
		s.setup(shards, true)
		s.handOver(shards)
		if shards == 2 {
			s.startNew(2)
			w.awaitCommits(20)
		}
	}
	w.awaitCommits(20)
	s.shards = 1
	s.as(0)
	s.startShard(0).awaitStop(patience, 79, "slot is at", "remedy: run outboxcdc recover: it")
	s.mustRunBinary(append(s.env, s.slot(0)), "recover", "--yes")
	s.daemons = []*relay{s.startShard(0)}
	s.deliveredOnce(w)
}

// elsewhere is what a daemon says whose publications were handed over.
var elsewhere = []string{"publications name its partitions: outboxcdc_0_of_2, outboxcdc_1_of_2. If daemons deliver from those", "create nothing"}

// as has commands use the settings of a daemon.
func (s *scaled) as(n int) {
	s.args = []string{"-c", filepath.Join(testSuite.dir, fmt.Sprintf("%s-%d-of-%d.yaml", s.name, n, s.shards))}
}

// checkReplaced checks what doctor and commands do with the settings of a daemon that was replaced.
func (s *scaled) checkReplaced(n int, words ...string) {
	s.t.Helper()
	s.as(n)
	s.checkCreatesNothing(append(s.env, s.slot(n)), words...)
}

// checkCreatesNothing checks that doctor has no statement or command for a missing slot or publication, and that the
// commands that create or accept a slot refuse.
func (s *scaled) checkCreatesNothing(env []string, words ...string) {
	t := s.t
	t.Helper()
	found := 0
	for _, f := range s.doctor(env...).Findings {
		for _, r := range f.Remedy {
			if f.Exit == 79 && r.Kind != "advice" {
				t.Errorf("doctor advises %s for %s", r.Text, f.Check)
			}
			if strings.Contains(r.Text, words[0]) {
				found++
			}
		}
	}
	if found == 0 {
		t.Error("doctor does not say which publications name the partitions")
	}
	refuses := func(env []string, command ...string) {
		t.Helper()
		out, stderr, code := s.runBinary(env, command...)
		if code == 0 {
			t.Errorf("%s has done something: %s", command, out)
		}
		says(t, stderr, words...)
	}
	refuses(env, "recover", "--yes")
	refuses(append(env, atLeastOnce), "recover", "--yes")
	refuses(env, "slot", "adopt")
}
