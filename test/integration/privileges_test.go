package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A privilege missing at the first start is an error of the setup: exit 77, and the last line names it.
func TestRightsMissingAtStart(t *testing.T) {
	for _, major := range []string{"14", "18"} { // their messages differ
		t.Run(major, func(t *testing.T) {
			pg := sharedPostgres(t, major)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			login, env := o.ownRole("LOGIN")
			r := o.start(env)
			r.awaitStop(patience, 77, "REPLICATION", "remedy: ")

			o.exec(`ALTER ROLE ` + login + ` REPLICATION`)
			o.exec(`REVOKE CONNECT ON DATABASE ` + o.name + ` FROM PUBLIC`)
			r = o.start(env)
			r.awaitStop(patience, 77, "CONNECT", "remedy: ")

			o.exec(`GRANT CONNECT ON DATABASE ` + o.name + ` TO ` + login)
			o.startStreaming(env)
			o.insert("order", "k", 1, 3)
			o.verify(patience)
		})
	}
}

// A wrong password may be in the middle of a change: the daemon retries, with one line in the log and not one for each
// attempt.
func TestWrongPasswordIsRetried(t *testing.T) {
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F55", "the password is wrong at the start, and corrected later")
	o.sample()
	login, env := o.ownRole("LOGIN REPLICATION")
	o.exec(`ALTER ROLE ` + login + ` PASSWORD 'another'`)
	r := o.start(env)
	r.awaitState("reconnecting", patience)
	w := o.write(load{rand: rnd})
	w.awaitCommits(20)
	r.awaitReconnects("postgres_credentials", 4)
	if n := len(r.changesOfState()); n > 2 {
		t.Errorf("%d changes of state in the log, want starting and reconnecting at most: %s", n, states(r))
	}
	o.exec(`ALTER ROLE ` + login + ` PASSWORD '` + password + `'`)
	o.awaitHealed()
	r.awaitState("streaming", patience)
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, "nothing had been sent")
}

// An operator whose settings are wrong on both sides sees both errors in the log, and not one only after fixing the
// other.
func TestWrongPasswordWhileKafkaIsAway(t *testing.T) {
	o := newOutbox(t, options{})
	login, env := o.ownRole("LOGIN REPLICATION")
	o.exec(`ALTER ROLE ` + login + ` PASSWORD 'another'`)
	r := o.start(env, "OUTBOXCDC_KAFKA_BROKERS=127.0.0.1:1")
	const warning = "waiting for Kafka; Postgres cannot be used either"
	r.awaitLine(warning)
	if e := r.logged(warning)[0]; e["level"] != "WARN" || !strings.Contains(fmt.Sprint(e["error"]), "password authentication failed") {
		t.Errorf("%v", e)
	}
}

// awaitReconnects waits until so many sessions have ended for that reason in all. A test that causes further ones takes
// the count first ([relay.reconnects]).
func (r *relay) awaitReconnects(reason string, total int) {
	r.t.Helper()
	await(r.t, patience, fmt.Sprintf("%v reconnects for %s", total, reason), func() error {
		m, err := r.metrics()
		n := int(m[`outboxcdc_replication_reconnects_total{reason="`+reason+`"}`])
		if err == nil && n < total {
			err = fmt.Errorf("%v so far", n)
		}
		return errors.Join(err, r.o.checkRelays())
	})
}

// A privilege revoked from a process that has delivered may be granted again: the daemon retries.
func TestRightsTakenAwayLater(t *testing.T) {
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F55", "REPLICATION, and then CONNECT, revoked under load and granted again")
	o.sample()
	login, env := o.ownRole("LOGIN REPLICATION")
	r := o.startStreaming(env)
	w := o.write(load{rand: rnd})
	w.awaitDelivered(20)

	o.exec(`ALTER ROLE ` + login + ` NOREPLICATION`)
	o.endSessions()
	r.awaitReconnects("postgres_privilege", 2)
	w.awaitCommits(20)
	o.exec(`ALTER ROLE ` + login + ` REPLICATION`)
	o.awaitHealed()

	had := r.reconnects("postgres_privilege")
	o.exec(`REVOKE CONNECT ON DATABASE ` + o.name + ` FROM PUBLIC`)
	o.endSessions()
	r.awaitReconnects("postgres_privilege", had+2)
	o.exec(`GRANT CONNECT ON DATABASE ` + o.name + ` TO ` + login)
	w.awaitCommits(20)
	o.awaitHealed()
	r.awaitState("streaming", patience)
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, daemonRemembers)
}

// An administrator ends the daemon's connections repeatedly, the walsender, the ordinary one, or both; then the
// walsender every second, whatever the daemon has reached. There is progress all the same, and a process sends nothing
// twice.
func TestConnectionsEndedUnderLoad(t *testing.T) {
	t.Parallel()
	rounds, seconds := fullOrShort(12, 6), fullOrShort(60, 5)
	rnd := newRand(t)
	o := newOutbox(t, options{})
	o.proves("F25", "%d connections ended at random moments under load, then pg_terminate_backend(walsender) every second for %d s", rounds, seconds)
	o.sample()
	r := o.startStreaming()
	w := o.write(load{rand: rnd, pause: 20 * time.Millisecond})
	for range rounds {
		w.awaitCommits(10 + rnd.Int64N(40))
		which := []string{"walsender", "client backend", "%"}[rnd.IntN(3)]
		o.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND backend_type LIKE $2`, "outboxcdc-"+o.name, which)
		w.awaitDelivered(1)
	}
	ended, moved := 0, 0
	for n := range seconds + 6 {
		if n >= seconds && ended > 0 && moved > 0 {
			break
		}
		if o.query(`SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_replication WHERE application_name = $1`, "outboxcdc-"+o.name) != "0" {
			ended++
		}
		count := w.countFromNow()
		// The duration is the fault. On a busy machine a second may be too short for a session: then it gets longer.
		time.Sleep(time.Duration(max(1, 2+n-seconds)) * time.Second)
		if _, arrived := count(); arrived > 0 {
			moved++
		}
	}
	if moved == 0 {
		t.Errorf("no row written after an end arrived before the next; %s", o.situation())
	}
	o.awaitHealed()
	w.stop()
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, daemonRemembers)
	m, err := r.metrics()
	must(t, err)
	n := m[`outboxcdc_replication_reconnects_total{reason="postgres_unavailable"}`]
	o.outcome("%v reconnects; records of new rows arrived in %d of the %d s; %d events sent again by the server, skipped by the daemon", n, moved, seconds, r.skippedResends())
	if n < float64(rounds)/4 || ended == 0 {
		t.Errorf("%v sessions ended, %d of them in %d s: this run proved little", n, ended, seconds)
	}
}

// While Kafka has never answered, the daemon does not connect to the server: no walsender holds anything up. The
// process lives, is not ready, logs why, and recovers by itself.
func TestKafkaUnreachableAtStart(t *testing.T) {
	t.Parallel()
	k := ownKafka(t)
	o := newOutbox(t, options{kafka: k})
	o.insert("order", "k", 1, 5)
	must(t, k.Kill())
	r := o.start()
	r.awaitState("parked", patience) // until a probe of Kafka succeeds
	db := session{url: o.pg.SuperURL("postgres")}
	defer db.close()
	looks := 0
	await(t, patience, "many looks", func() error {
		var senders int
		if err := db.scan(`SELECT count(*) FROM pg_stat_replication WHERE application_name = 'outboxcdc-`+o.name+`'`, &senders); err != nil {
			return err
		}
		looks++
		if senders > 0 {
			return &finalError{fmt.Errorf("%d walsenders while Kafka is away", senders)}
		}
		if looks < 50 {
			return fmt.Errorf("%d queries so far", looks)
		}
		return o.checkRelays()
	})
	t.Logf("%d queries of pg_stat_replication", looks)
	checkEndpoint(t, r, "/livez", 200)
	checkEndpoint(t, r, "/readyz", 503)
	st, err := r.status()
	must(t, err)
	if st.Reason == "" {
		t.Error("no reason in /status")
	}
	if n := len(r.changesOfState()); n > 3 {
		t.Errorf("%d changes of state in the log", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must(t, k.StartAgain(ctx))
	r.awaitState("streaming", patience)
	checkEndpoint(t, r, "/readyz", 200)
	if v := o.verify(patience); v.Repeats != 0 {
		t.Errorf("%d repeats", v.Repeats)
	}
}

// A daemon that delivers at least once needs no position topic, also to leave the state parked.
func TestParkedWithoutThePositionTopic(t *testing.T) {
	t.Parallel()
	k := ownKafka(t)
	o := newOutbox(t, options{kafka: k})
	if err := kafkatest.DeleteTopic(testContext(t), k.Brokers(), "outboxcdc.positions"); err != nil {
		t.Logf("delete the position topic: %v", err)
	}
	r := o.startStreaming(atLeastOnce, "OUTBOXCDC_TUNING_PARK_AFTER=2s")
	must(t, k.Kill())
	o.insert("order", "k", 1, 5)
	r.awaitState("parked", patience)
	must(t, k.StartAgain(testContext(t)))
	r.awaitState("streaming", patience)
	o.repeatsAtMost(o.verify(patience), 5, "those in flight when Kafka was killed")
}

// Role and database may have timeouts meant for people and applications: none may end our connections.
func TestTimeoutsOfTheRole(t *testing.T) {
	o := newOutbox(t, options{})
	login, env := o.ownRole("LOGIN REPLICATION")
	for _, s := range []string{
		`idle_session_timeout = '1s'`, `statement_timeout = '2s'`, `lock_timeout = '1s'`,
		`idle_in_transaction_session_timeout = '1s'`, `transaction_timeout = '1s'`, `default_transaction_isolation = 'serializable'`,
		`default_transaction_deferrable = on`, `search_path = nowhere`, `tcp_user_timeout = '1s'`,
	} {
		o.exec(`ALTER ROLE ` + login + ` SET ` + s)
	}
	r := o.startStreaming(env, steady)
	o.insert("order", "k", 1, 3)
	o.verify(patience)
	begin := time.Now()
	await(t, patience, "an idle time", func() error {
		if d := time.Since(begin); d < 3*time.Second {
			return fmt.Errorf("%v have passed", d)
		}
		return o.checkRelays()
	})
	o.insert("order", "k", 4, 3) // so that the guard checks
	o.verify(patience)
	if r.hasBeenIn("reconnecting") {
		t.Error("a session has ended")
	}
}
