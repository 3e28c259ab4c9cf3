package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/pgtest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// tlsOutbox is an outbox on a server that requires TLS, and a certificate or a password in it.
type tlsOutbox struct {
	*outbox
	dir          string // of the daemon's certificates
	open, closed string // roles: without TLS only, and with TLS only
	certified    string // role that needs a certificate
}

// TestPostgresTLS uses one server for all subtests, whose certificate changes from one to the next.
func TestPostgresTLS(t *testing.T) {
	t.Parallel()
	pg := ownPostgres(t, defaultMajor, nil)
	a, b := newAuthority(t), newAuthority(t)
	must(t, pg.Certify(a, a))
	o := newOutbox(t, options{pg: pg})
	o.sample()
	e := &tlsOutbox{outbox: o, dir: t.TempDir(), open: o.name + "_open", closed: o.name + "_tls", certified: o.name + "_cert"}
	for _, name := range []string{e.open, e.closed, e.certified} {
		o.exec(`CREATE ROLE ` + name + ` LOGIN REPLICATION PASSWORD '` + password + `'`)
		o.exec(`GRANT USAGE ON SCHEMA public TO ` + name)
		o.exec(`GRANT SELECT ON outbox TO ` + name)
		t.Cleanup(func() { _ = pg.Exec(testContext(t), o.name, `DROP OWNED BY `+name, `DROP ROLE `+name) })
	}
	must(t, pg.OnlyHosts(
		"host all "+pgtest.Superuser+" 127.0.0.1/32 scram-sha-256", "host all "+role+" 127.0.0.1/32 scram-sha-256",
		"hostnossl all "+e.open+" 127.0.0.1/32 scram-sha-256",
		"hostssl all "+e.closed+" 127.0.0.1/32 scram-sha-256",
		"hostssl all "+e.certified+" 127.0.0.1/32 cert",
	))
	e.file("a.pem", a.PEM)
	e.file("b.pem", b.PEM)
	e.certify("own", a)
	e.certify("foreign", b)
	own, foreign := " sslcert=own.pem sslkey=own.key", " sslcert=foreign.pem sslkey=foreign.key"

	e.checkStreams(e.open, "sslmode=disable", "false")
	e.checkStreams(e.closed, "sslmode=require", "true")
	e.checkStreams(e.closed, "sslmode=prefer", "true")
	e.checkStreams(e.closed, "sslmode=verify-ca sslrootcert=a.pem", "true")
	e.checkStreams(e.closed, "sslmode=verify-full sslrootcert=a.pem", "true")
	e.checkStreams(e.certified, "sslmode=verify-full sslrootcert=a.pem"+own, "true")
	e.checkRefused(e.closed, "sslmode=disable", "no pg_hba.conf entry", "no encryption")
	e.checkRefused(e.open, "sslmode=require", "no pg_hba.conf entry", "SSL encryption")
	e.checkRefused(e.closed, "sslmode=verify-ca sslrootcert=b.pem", "certificate signed by unknown authority", "remedy: ")
	e.checkRefused(e.closed, "sslmode=verify-full sslrootcert=b.pem", "certificate signed by unknown authority", "remedy: ")
	e.checkRefused(e.certified, "sslmode=verify-full sslrootcert=a.pem", "certificate")
	e.checkRefused(e.certified, "sslmode=verify-full sslrootcert=a.pem"+foreign, "tls: ", "remedy: ")
	e.checkRefused(e.closed, "sslmode=verify-full sslrootcert=none.pem", "open ", "none.pem")
	e.checkRefused(e.closed, "sslmode=verify-full sslrootcert=a.pem sslcert=own.pem sslkey=foreign.key", "private key does not match")
	must(t, pg.Certify(a, a, "db.elsewhere"))
	e.checkRefused(e.closed, "sslmode=verify-full sslrootcert=a.pem", "cannot validate certificate for 127.0.0.1", "remedy: ")
	e.checkStreams(e.closed, "sslmode=verify-ca sslrootcert=a.pem", "true")

	must(t, pg.Certify(a, a))
	e.rotate(a, b)
}

func (e *tlsOutbox) file(name string, text []byte) {
	e.t.Helper()
	path := filepath.Join(e.dir, name)
	must(e.t, os.WriteFile(path+".new", text, 0o600))
	must(e.t, os.Rename(path+".new", path))
}

// certify gives the daemon a certificate for the certified role.
func (e *tlsOutbox) certify(name string, a *testcert.Authority) {
	e.t.Helper()
	certificate, key, err := a.Issue(e.certified)
	must(e.t, err)
	e.file(name+".pem", certificate)
	e.file(name+".key", key)
}

// startWith starts a daemon as that role; the files in settings are in dir.
func (e *tlsOutbox) startWith(login, settings string) *relay {
	e.t.Helper()
	words := strings.Fields(settings)
	for i, w := range words {
		if name, file, _ := strings.Cut(w, "="); name != "sslmode" {
			words[i] = name + "=" + filepath.Join(e.dir, file)
		}
	}
	return e.start(fmt.Sprintf("OUTBOXCDC_POSTGRES_URL=host=127.0.0.1 port=%d dbname=%s user=%s password=%s %s",
		e.pg.Port, e.name, login, password, strings.Join(words, " ")), "OUTBOXCDC_TUNING_STATUS_INTERVAL=50ms")
}

// checkStreams checks that both connections of the daemon are encrypted, or not, as wanted, and that an event arrives.
func (e *tlsOutbox) checkStreams(login, settings, encrypted string) {
	e.t.Helper()
	r := e.startWith(login, settings)
	r.awaitState("streaming", patience)
	await(e.t, patience, fmt.Sprintf("%s %s: two sessions, encrypted: %s", login, settings, encrypted), func() error { // an ended one may still be listed
		if got := e.query(`SELECT string_agg(DISTINCT ssl::text, ',') || ' ' || count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = $1`, login); got != encrypted+" 2" {
			return errors.New(got)
		}
		return nil
	})
	e.awaitConfirmed(e.insert("order", "k", len(e.relays), 1), patience)
	r.term()
}

// checkRefused checks that the daemon logs why, and retries.
func (e *tlsOutbox) checkRefused(login, settings string, words ...string) {
	e.t.Helper()
	r := e.startWith(login, settings)
	r.awaitState("reconnecting", patience)
	await(e.t, patience, "a second attempt", func() error { return waitFor(r.sessionsEnded() > 1) })
	var st status
	// Not each attempt has the reason: a server that hangs up at once may be quicker than its message.
	err := poll(patience, func() (err error) {
		if st, err = r.status(); err != nil {
			return err
		}
		for _, w := range words {
			if st.State != "reconnecting" || !strings.Contains(st.Reason, w) {
				return fmt.Errorf("%s: %s; it does not contain %q", st.State, st.Reason, w)
			}
		}
		return nil
	})
	if err != nil {
		e.t.Errorf("%s %s: %v", login, settings, err)
	}
	if strings.Contains(st.Reason, password) {
		e.t.Errorf("it prints the password: %s", st.Reason)
	}
	r.endExpected = true
	must(e.t, r.proc.Kill())
}

// rotate changes all certificates under load, the server's before the daemon knows its authority, and the daemon's own
// with its key a moment later.
func (e *tlsOutbox) rotate(a, b *testcert.Authority) {
	e.t.Helper()
	r := e.startWith(e.certified, "sslmode=verify-full sslrootcert=root.pem sslcert=own.pem sslkey=own.key")
	e.file("root.pem", a.PEM)
	r.awaitState("streaming", patience)
	w := e.write(load{rand: newRand(e.t)})
	w.awaitCommits(20)
	must(e.t, e.pg.Certify(b, b))
	must(e.t, poll(patience, func() error { // the server has read them
		e.endSessions()
		return waitFor(r.sessionsEnded() > 2)
	}))
	r.awaitReason("reconnecting", "certificate signed by unknown authority")
	certificate, key, err := b.Issue(e.certified)
	must(e.t, err)
	e.file("own.pem", certificate)
	e.file("root.pem", b.PEM)
	r.awaitReason("reconnecting", "private key does not match")
	e.file("own.key", key)
	r.awaitState("streaming", patience)
	w.awaitCommits(20)
	w.stop()
	e.repeatsAtMost(e.verify(patience), 0, daemonRemembers)
}
