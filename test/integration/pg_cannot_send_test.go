package integration

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A row that the server cannot convert or print stops the stream at its transaction, at each try. The daemon names the
// transaction and is not ready; the test follows the remedy of docs/runbook.md step by step.
func TestServerCannotSend(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: postgresIn(t, "WIN1252"), payload: "text"})
	o.proves("F71", "a byte without a character in WIN1252 inside a transaction, which the server cannot convert; then the remedy of the runbook")
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("order", "before", 1, 20)
	o.awaitArrived(patience)
	bad := o.query(insertInto + `(gen_random_uuid(), 'order', 'bad', '', 'x' || chr(129), '{}', 1) RETURNING xmin::text`)
	o.insert("order", "after", 1, 20)

	var commit string
	await(t, patience, "/readyz to name the transaction that the server cannot send", func() error {
		code, body, err := r.get("/readyz")
		m := regexp.MustCompile(`xid ` + bad + `, committed at ([0-9A-F]+/[0-9A-F]+).*22P05`).FindSubmatch(body)
		if err != nil || code != 503 || m == nil {
			return errors.Join(err, fmt.Errorf("%d %s; %s", code, body, o.situation()))
		}
		commit = string(m[1])
		return nil
	})
	r.awaitReconnects("postgres_cannot_send", 3)
	is(t, "records", o.follow.records(), 20)

	r.signal(syscall.SIGTERM)
	r.awaitExit(patience) // with 1 where the server ended before it received the last status update
	out, notes, exit := o.runBinary(env, "peek")
	// The transaction before was delivered. Whether it was also confirmed depends on how long its delivery took.
	n := strings.Count(out, "key=before")
	if exit != 69 || n != 0 && n != 20 || n != strings.Count(out, "key=") || !strings.Contains(notes, "22P05") {
		t.Errorf("peek: exit code %d after %d events\n%s\n%s", exit, n, out, notes)
	}
	if n := o.query(`SELECT count(*)::text FROM outbox WHERE xmin = '` + bad + `'`); n != "1" {
		t.Errorf("%s rows of the transaction are found", n)
	}
	o.exec(`UPDATE outbox SET payload = 'x?' WHERE xmin = '` + bad + `'`)
	o.exec(`SELECT pg_replication_slot_advance($1, '`+commit+`'::pg_lsn + 1)`, o.name)
	r = o.start(env...)
	r.awaitStop(patience, 79, "outboxcdc recover")
	says(t, o.recover(env, 0), "1 record sent")
	r = o.startStreaming(env...)
	o.awaitHealed()
	o.repeatsAtMost(o.verify(patience), 0, "no delivered event is sent again")
	await(t, patience, "the daemon to be ready", func() error {
		if code, body, err := r.get("/readyz"); err != nil || code != 200 {
			return errors.Join(err, fmt.Errorf("%d %s", code, body))
		}
		return nil
	})
}
