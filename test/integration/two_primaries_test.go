package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// F94: two servers of one cluster are primaries, and both have the slot. A start delivers nothing and ends with 79,
// names both servers and the remedy, although postgres.url alone names them. In full length: so does a daemon that
// runs meanwhile. When the second primary has been stopped, delivery continues, and nothing is missing.
func TestTwoPrimaries(t *testing.T) {
	t.Parallel()
	right, wrong := withStandby(t, nil, nil)
	o := newOutbox(t, options{pg: right, partitions: 6})
	o.proves("F94", "a standby promoted while its primary runs, at the start%s", fullOrShort(" and while the daemon runs", ""))
	o.createFailoverSlot()
	write := o.writer()
	env := append(o.deduplicating(fence), fmt.Sprintf("OUTBOXCDC_POSTGRES_URL=postgres://%s:%s@%s,%s/%s?sslmode=disable",
		role, password, right.HostPort(), wrong.HostPort(), o.name))
	r := o.startStreaming(env...)
	o.syncSlot(wrong, func() { write(1) })
	if !isProving() {
		r.term()
	}
	must(t, wrong.Exec(testContext(t), "postgres", "SELECT pg_promote()"))
	promoted := time.Now()
	if isProving() {
		write(20)
		r.awaitStop(patience, 79, "two primaries", right.HostPort(), wrong.HostPort(), "remedy: ")
		o.outcome("it ended %v after the promotion", time.Since(promoted).Round(100*time.Millisecond))
	}

	write(20)
	begun := time.Now()
	r = o.start(env...)
	r.awaitStop(patience, 79, "two primaries", right.HostPort(), wrong.HostPort(), "remedy: ")
	o.outcome("a start ended after %v, exit code 79", time.Since(begun).Round(100*time.Millisecond))
	for _, command := range [][]string{{"recover", "--yes"}, {"slot", "adopt"}} {
		if out, notes, code := o.runBinary(env, command...); code != 79 || !strings.Contains(notes, "has two primaries: ") {
			t.Errorf("%v: exit code %d: %s%s", command, code, out, notes)
		}
	}
	if r.hasBeenIn("streaming") {
		t.Error("the start has delivered, although its first answers named two primaries")
	}

	_, err := wrong.Stop(testContext(t), pgtest.Immediate)
	must(t, err)
	write(20)
	o.startStreaming(env...)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "each end was clean")
}
