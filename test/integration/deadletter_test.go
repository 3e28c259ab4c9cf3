package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// secret is part of every poison payload and must not be in any log.
const secret = "geheim"

// wideBytes is larger than the limit of a topic called narrow.
const wideBytes = 300_000

// poisonRow is a row that cannot be delivered, described by the columns that differ from a good one.
type poisonRow struct {
	cause           string
	columns, values string
	topic           string // aggregate type of the topic where it was to go; "": none was found
	noKey, noID     bool
	noValue         bool
	large           bool
}

var (
	nullKey  = poisonRow{cause: "null_key", columns: "aggregate_id", values: "NULL", topic: "order", noKey: true}
	badTime  = poisonRow{cause: "bad_timestamp", columns: "ts", values: "-1", topic: "order"}
	oldTime  = poisonRow{cause: "rejected", columns: "ts", values: "1000000000", topic: "order"} // of 2001
	noKeyIn  = poisonRow{cause: "rejected", columns: "aggregate_type, aggregate_id", values: "'compacted', NULL", topic: "compacted", noKey: true}
	tooLarge = poisonRow{
		cause: "too_large", columns: "aggregate_type, payload", topic: "narrow", large: true,
		values: fmt.Sprintf(`'narrow', (SELECT to_jsonb(string_agg(encode(sha256(g::text::bytea), 'hex'), '')) FROM generate_series(1, %d) g)`, wideBytes/64+1),
	}
	allPoison = []poisonRow{
		{cause: "no_route", columns: "aggregate_type", values: "NULL"},
		nullKey,
		{cause: "null_id", columns: "id", values: "NULL", topic: "order", noID: true},
		{cause: "null_payload", columns: "payload", values: "NULL", topic: "order", noValue: true},
		{cause: "illegal_topic", columns: "aggregate_type", values: "'b@d'"},
		{cause: "bad_headers", columns: "headers", values: `'["` + secret + `"]'`, topic: "order"},
		{cause: "bad_partition", columns: "part", values: "3", topic: "order"},
		{cause: "bad_partition", columns: "part", values: "-1", topic: "order"},
		badTime,
		tooLarge,
	}
)

// writtenPoison is a committed poison row.
type writtenPoison struct {
	poisonRow
	id         string
	older, end pglogrepl.LSN // of its transaction, see [outbox.tx]
	ordinal    uint64        // in it
}

// poisonOutbox is an outbox whose constraints allow poison rows, with a dead-letter topic.
type poisonOutbox struct {
	*outbox
	n       int // number of the last good row
	written []writtenPoison
}

func newPoisonOutbox(t *testing.T, opt options) *poisonOutbox {
	t.Helper()
	opt.types = []string{"order", "dead"}
	o := newOutbox(t, opt)
	o.exec(`ALTER TABLE outbox DROP CONSTRAINT outbox_pkey`)
	o.exec(`ALTER TABLE outbox ALTER id DROP NOT NULL, ALTER aggregate_type SET DEFAULT 'order', ALTER aggregate_type DROP NOT NULL,
		ALTER aggregate_id SET DEFAULT 'bad', ALTER aggregate_id DROP NOT NULL, ALTER event_type SET DEFAULT 'poison',
		ALTER payload SET DEFAULT '{"is": "` + secret + `"}', ADD part int, ADD ts bigint`)
	return &poisonOutbox{outbox: o}
}

// policy returns the settings of a daemon with that policy.
func (o *poisonOutbox) policy(policy string, more ...string) []string {
	return append([]string{
		"OUTBOXCDC_POISON_POLICY=" + policy, "OUTBOXCDC_POISON_TOPIC=" + o.topic("dead"), "OUTBOXCDC_ROUTE_PARTITION=part", "OUTBOXCDC_ROUTE_TIMESTAMP=ts",
		"OUTBOXCDC_ROUTE_NULL_PAYLOAD=poison",
	}, more...)
}

// insertMixed commits one transaction of good rows (ints are counts) and poison rows. It deletes the poison rows at
// once, which is not published: the remaining table is what has to arrive.
func (o *poisonOutbox) insertMixed(parts ...any) {
	o.t.Helper()
	var added []writtenPoison
	var ordinal uint64
	end := o.tx(func(ctx context.Context, tx pgx.Tx) error {
		for _, part := range parts {
			switch part := part.(type) {
			case int:
				for range part {
					if err := insertRows(ctx, tx, "order", fmt.Sprint("k", o.n%7), o.n, 1); err != nil {
						return err
					}
					o.n++
				}
				ordinal += uint64(part)
			case poisonRow:
				w := writtenPoison{poisonRow: part, ordinal: ordinal}
				sql := "INSERT INTO outbox (" + part.columns + ") VALUES (" + part.values + ") RETURNING coalesce(id::text, '')"
				if err := tx.QueryRow(ctx, sql).Scan(&w.id); err != nil {
					return err
				}
				added = append(added, w)
				ordinal++
			}
		}
		return nil
	})
	for i := range added {
		added[i].older, added[i].end = o.older, end
	}
	o.written = append(o.written, added...)
	o.exec(`DELETE FROM outbox WHERE event_type = 'poison'`)
}

// verifyGood waits until all good rows have arrived and everything is confirmed, and judges all topics except the
// dead-letter topic.
func (o *poisonOutbox) verifyGood(repeats int) {
	o.t.Helper()
	o.repeatsAtMost(o.awaitGood(), repeats, "")
}

// awaitGood is healthy without a bound on repeats.
func (o *poisonOutbox) awaitGood() *verdict {
	o.t.Helper()
	o.awaitArrived(patience)
	o.awaitSettled()
	h := o.history()
	h.Looks = nil // the sampler judges by all topics at the end
	h.Records = slices.DeleteFunc(h.Records, func(r kafkatest.Record) bool { return r.Topic == o.topic("dead") })
	v := h.judge()
	must(o.t, v.err())
	return v
}

func (o *poisonOutbox) deadLetters() []kafkatest.Record {
	return slices.DeleteFunc(o.readAll(), func(r kafkatest.Record) bool { return r.Topic != o.topic("dead") })
}

// verifyDeadLetters compares the dead letters with the poison rows: each once, plus so many repeats in all; complete,
// and those of a key in order.
func (o *poisonOutbox) verifyDeadLetters(repeats int) {
	o.t.Helper()
	found := map[int]int{}
	last := position{}
	for _, rec := range o.deadLetters() {
		text, _ := headerOf(rec, "outboxcdc-position")
		at, err := parsePosition(text)
		must(o.t, err)
		i := slices.IndexFunc(o.written, func(w writtenPoison) bool {
			return w.ordinal == at.ordinal && at.commit >= w.older && at.commit < w.end
		})
		if i < 0 {
			o.t.Errorf("a dead letter without a poison row: %s", text)
			continue
		}
		if string(rec.Key) == "bad" && found[i] == 0 {
			if at.before(last) {
				o.t.Errorf("the dead letters of one key are not in order: %v after %v", at, last)
			}
			last = at
		}
		found[i]++
		for _, what := range o.letterProblems(o.written[i], rec) {
			o.t.Errorf("dead letter %s (%s): %s", o.written[i].cause, text, what)
		}
	}
	all := 0
	for i, w := range o.written {
		if all += found[i]; found[i] == 0 {
			o.t.Errorf("no dead letter for %s %s, event %d of the transaction that ends at %s", w.cause, w.id, w.ordinal, w.end)
		}
	}
	if all > len(o.written)+repeats {
		o.t.Errorf("%d dead letters for %d events; %d repeats are allowed", all, len(o.written), repeats)
	}
}

// letterProblems lists everything that is wrong with a dead letter.
func (o *poisonOutbox) letterProblems(w writtenPoison, rec kafkatest.Record) (all []string) {
	differs := func(what string, got, want any) {
		if got != want {
			all = append(all, fmt.Sprintf("%s is %.300s, want %s", what, fmt.Sprint(got), fmt.Sprint(want)))
		}
	}
	topic := w.topic
	if topic != "" {
		topic = o.topic(topic)
	}
	ids := 1
	if w.noID {
		ids = 0
	}
	for name, want := range map[string]string{"id": w.id, "type": "poison", "outboxcdc-error": w.cause, "outboxcdc-topic": topic} {
		got, n := headerOf(rec, name)
		differs("header "+name, got, want)
		if name == "id" {
			differs("number of headers id", n, ids)
		} else {
			differs("number of headers "+name, n, 1)
		}
	}
	message, _ := headerOf(rec, "outboxcdc-error-message")
	differs("the message is there", len(message) > 10, true)
	differs("the message has the payload", strings.Contains(message, secret), false)
	differs("key", string(rec.Key), map[bool]string{false: "bad", true: ""}[w.noKey])
	differs("key is null", rec.Key == nil, w.noKey)
	differs("value is null", rec.Value == nil, w.noValue)
	differs("time is that of this run", rec.Timestamp.After(testSuite.began.Add(-time.Minute)) && rec.Timestamp.Before(time.Now().Add(time.Minute)), true)
	truncated, n := headerOf(rec, "outboxcdc-truncated")
	switch {
	case w.large && n > 0:
		whole, _ := strconv.Atoi(truncated)
		differs("whole length at least that", whole >= wideBytes, true)
		differs("a cut value", len(rec.Value) > 10_000 && len(rec.Value) < whole && bytes.HasPrefix(rec.Value, []byte(`"`)), true)
	case w.large:
		differs("a whole value", len(rec.Value) >= wideBytes && bytes.HasSuffix(rec.Value, []byte(`"`)), true)
	case !w.noValue:
		differs("value", string(rec.Value), `{"is": "`+secret+`"}`)
	}
	return all
}

// verifyReported checks that the log and the metrics of a daemon report the given poison rows, in order.
func (o *poisonOutbox) verifyReported(r *relay, msg string, series func(cause string) string, met []writtenPoison) {
	o.t.Helper()
	var got, want []string
	for _, e := range r.logged(msg) {
		got = append(got, fmt.Sprint(e["cause"], " ", e["event_id"]))
	}
	counts := map[string]float64{}
	for _, w := range met {
		want = append(want, w.cause+" "+w.id)
		counts[series(w.cause)]++
	}
	if !slices.Equal(got, want) {
		o.t.Errorf("%q is logged of\n%s\nwant\n%s", msg, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	m, err := r.metrics()
	must(o.t, err)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if m[name] != counts[name] {
			o.t.Errorf("%s is %v, want %v", name, m[name], counts[name])
		}
	}
	o.checkNoSecret(r)
}

func (o *poisonOutbox) checkNoSecret(r *relay) {
	o.t.Helper()
	log, err := os.ReadFile(r.log)
	must(o.t, err)
	if bytes.Contains(log, []byte(secret)) {
		o.t.Error("the log has a payload")
	}
}

// deadLetterSeries returns the metric series of dead letters with a cause.
func (o *poisonOutbox) deadLetterSeries(cause string) string {
	return fmt.Sprintf(`outboxcdc_events_dead_lettered_total{reason="%s",topic="%s"}`, cause, o.topic("dead"))
}

const msgDeadLetter, msgSkipped = "poison goes to the dead-letter topic", "poison skipped"

// Every cause that the daemon itself detects, in the first row of a session and in the middle of a large transaction:
// good rows arrive once and in order, poison rows are in the dead-letter topic, whole or cut, or dropped.
func TestDeadLettersOfEveryCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy string
		dead   map[string]string
		more   []string
	}{
		"dead letters":     {policy: "dead_letter"},
		"cut dead letters": {policy: "dead_letter", dead: map[string]string{"max.message.bytes": "100000"}, more: []string{"OUTBOXCDC_POISON_OVERSIZE=cut"}},
		"skipped":          {policy: "skip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newPoisonOutbox(t, options{missing: []string{"dead"}})
			o.makeTopic("dead", 3, c.dead)
			o.makeTopic("narrow", 1, map[string]string{"max.message.bytes": "100000"})
			if c.policy == "dead_letter" {
				o.sample()
			}
			o.insertMixed(nullKey, 3)
			r := o.startStreaming(append(o.policy(c.policy, c.more...), steady)...)
			all := []any{495}
			for _, p := range allPoison {
				all = append(all, p)
			}
			o.insertMixed(append(all, 100, badTime, badTime, 395)...)
			o.insertMixed(1)
			o.verifyGood(0)
			o.verifyPoison(r, c.policy)
		})
	}
}

// verifyPoison checks that every poison row was skipped, or is a dead letter, and was reported.
func (o *poisonOutbox) verifyPoison(r *relay, policy string) {
	o.t.Helper()
	if policy == "skip" {
		if n := len(o.deadLetters()); n != 0 {
			o.t.Errorf("%d dead letters, want none", n)
		}
		o.verifyReported(r, msgSkipped, func(string) string { return `outboxcdc_events_skipped_total{reason="poison"}` }, o.written)
		return
	}
	o.verifyDeadLetters(0)
	o.verifyReported(r, msgDeadLetter, o.deadLetterSeries, o.written)
}

// Poison stops the daemon, or makes it hold; older rows are delivered and confirmed, later ones are not. A decision
// about the event lets the daemon continue.
func TestDeadLettersDecided(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"skip", "dead_letter"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			o := newPoisonOutbox(t, options{})
			o.insertMixed(10)
			older := o.older
			o.insertMixed(5, badTime, 5)
			o.insertMixed(10)
			w := o.written[0]
			stands := func() {
				t.Helper()
				o.awaitSlotFree()
				if now := o.confirmed(); now <= older || now >= w.end {
					t.Errorf("the slot confirms %s, want from %s to below %s", now, older, w.end)
				}
				if n := len(o.deadLetters()); n != 0 {
					t.Errorf("%d dead letters, want none", n)
				}
			}
			r := o.start(o.policy("stop")...)
			r.awaitStop(patience, 65, "bad_timestamp", w.id)
			o.checkNoSecret(r)
			stands()

			r = o.start(o.policy("stop", "OUTBOXCDC_POISON_ON_STOP=hold")...)
			await(t, patience, "state failed", func() error {
				st, err := r.status()
				if err == nil && (st.State != "failed" || !strings.Contains(st.Reason, w.id)) {
					err = fmt.Errorf("it is %s (%s)", st.State, st.Reason)
				}
				return errors.Join(err, o.checkRelays())
			})
			if code, _, err := r.get("/readyz"); err != nil || code != 503 {
				t.Errorf("/readyz of a daemon that holds: %d %v, want 503", code, err)
			}
			if code, _, err := r.get("/livez"); err != nil || code != 200 {
				t.Errorf("/livez of a daemon that holds: %d %v, want 200", code, err)
			}
			stands()
			r.signal(syscall.SIGTERM)
			r.awaitStop(patience, 65, w.id)

			o.args = r.decided(decision)
			r = o.startStreaming(o.policy("stop")...)
			o.verifyGood(10) // the five rows before it in its transaction, at each stop
			o.verifyPoison(r, decision)
		})
	}
}

// decided returns the arguments of a daemon whose settings have the line that the last line of the log names.
func (r *relay) decided(decision string) []string {
	r.t.Helper()
	line := regexp.MustCompile(`add (\S+): (dead_letter) \(or (skip), which discards the event\) to poison\.(\w+) in the settings`).FindStringSubmatch(r.remedy())
	if line == nil || !slices.Contains(line[2:4], decision) {
		r.t.Fatalf("the remedy is: %s", r.remedy())
	}
	file := filepath.Join(r.t.TempDir(), "decided.yaml")
	must(r.t, os.WriteFile(file, fmt.Appendf(nil, "poison: {%s: {%s: %s}}\n", line[4], line[1], decision), 0o600))
	return []string{"-c", file}
}

// remedy is that of the last line of the log.
func (r *relay) remedy() string {
	r.t.Helper()
	log := r.entries()
	return fmt.Sprint(log[len(log)-1]["remedy"])
}

// Causes that only the broker detects: timestamps out of the topic's range, a null key in a compacted topic, and a size
// limit lowered at run time. The broker refuses whole batches; the daemon finds the events at fault, which become dead
// letters in order.
func TestDeadLettersRefused(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	o := newPoisonOutbox(t, options{partitions: 1, configs: map[string]string{"message.timestamp.before.max.ms": "86400000"}, missing: []string{"dead"}})
	o.makeTopic("dead", 3, nil)
	o.makeTopic("compacted", 1, map[string]string{"cleanup.policy": "compact"})
	o.sample()
	o.insertMixed(20)
	r := o.startStreaming(o.policy("dead_letter", "OUTBOXCDC_ROUTE_NULL_KEY=allow")...)
	o.insertMixed(300, oldTime, oldTime, 600, oldTime, 97)
	o.insertMixed(5, noKeyIn, 5)
	o.insertMixed(200)
	// None of the partition of the three: acknowledgements without a gap. Of the two parallel topics, the rows
	// acknowledged after the refused one.
	const beside = 5 + 200
	o.verifyGood(beside)
	o.verifyDeadLetters(0)
	o.verifyReported(r, msgDeadLetter, o.deadLetterSeries, o.written)

	must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("order"), map[string]string{"max.message.bytes": "100000"}))
	lowered := tooLarge
	lowered.columns, lowered.values, lowered.topic = "payload", strings.TrimPrefix(tooLarge.values, "'narrow', "), "order"
	o.insertMixed(50, lowered, 50)
	o.awaitArrived(patience)
	newest := &o.written[len(o.written)-1]
	for _, e := range r.logged(msgDeadLetter) { // detected by the broker, or by the next session's topic look-up
		if e["event_id"] == newest.id {
			newest.cause = fmt.Sprint(e["cause"])
		}
	}
	o.verifyGood(beside)
	o.verifyDeadLetters(0)
	o.verifyReported(r, msgDeadLetter, o.deadLetterSeries, o.written)
}

// Kafka is frozen just when poison arrives. Once thawed, delivery continues. If the daemon is killed meanwhile, the
// transaction of a dead letter without an ack is not confirmed and is sent again. Nor does a stop confirm anything.
func TestDeadLettersWhileKafkaIsFrozen(t *testing.T) {
	t.Parallel()
	o := newPoisonOutbox(t, options{kafka: ownKafka(t), missing: []string{"dead"}})
	o.makeTopic("dead", 3, nil)
	o.sample()
	env := o.policy("dead_letter", "OUTBOXCDC_TUNING_PARK_AFTER=1s")
	r := o.startStreaming(env...)
	o.insertMixed(5, badTime, 5) // both topics are known
	o.awaitArrived(patience)
	o.awaitSettled()
	must(t, o.kafka.Freeze(testContext(t)))
	o.insertMixed(20, badTime, nullKey, 20)
	end := o.written[len(o.written)-1].end
	r.awaitState("parked", patience)
	if now := o.confirmed(); now >= end {
		t.Errorf("the slot confirms %s, but Kafka, which is frozen, has no record of the transaction that ends at %s", now, end)
	}
	must(t, o.kafka.Thaw())
	o.insertMixed(1, badTime) // the new session knows the dead-letter topic, even if it found everything before in Kafka
	o.awaitArrived(patience)
	o.awaitSettled()

	// With the default of park_after: records stay in flight for as long as a busy machine needs to see them.
	r.term()
	r = o.startStreaming(o.policy("dead_letter")...)
	o.insertMixed(5, badTime, 5) // both topics are known
	o.awaitArrived(patience)
	o.awaitSettled()
	must(t, o.kafka.Freeze(testContext(t)))
	o.insertMixed(badTime)
	end = o.written[len(o.written)-1].end
	await(t, patience, "the dead letter to be in flight", func() error {
		st, err := r.status()
		if err == nil && st.InFlight == 0 {
			err = errors.New("nothing is")
		}
		return errors.Join(err, o.checkRelays())
	})
	r.kill9()
	if now := o.confirmed(); now >= end {
		t.Errorf("the slot confirms %s, but the dead letter of the transaction that ends at %s is not in Kafka", now, end)
	}
	must(t, o.kafka.Thaw())
	r = o.startStreaming(o.policy("stop", "OUTBOXCDC_POISON_CAUSES=bad_timestamp=dead_letter", "OUTBOXCDC_SHUTDOWN_TIMEOUT=1s")...)
	o.insertMixed(1)
	o.awaitArrived(patience)
	o.awaitSettled()

	// A stop waits for the rows before the event no longer than usual, and confirms none of them.
	must(t, o.kafka.Freeze(testContext(t)))
	o.insertMixed(5, nullKey, 5)
	end = o.written[len(o.written)-1].end
	r.awaitStop(patience, 65, "null_key")
	o.awaitSlotFree()
	if now := o.confirmed(); now >= end {
		t.Errorf("the slot confirms %s, but Kafka, which is frozen, has no record of the transaction that ends at %s", now, end)
	}
	must(t, o.kafka.Thaw())
	o.startStreaming(env...)
	o.insertMixed(1)
	o.verifyGood(50)
	o.verifyDeadLetters(5) // in flight when a session ended: two, and one
	o.checkNoSecret(r)
}

// The dead-letter topic is missing: the daemon waits for it and confirms nothing later. Killed while it waits and when
// the topic is created, repeatedly under load, it loses nothing.
func TestDeadLettersSurviveKills(t *testing.T) {
	t.Parallel()
	o := newPoisonOutbox(t, options{missing: []string{"dead"}})
	o.sample()
	r := o.startStreaming(o.policy("dead_letter")...)
	o.insertMixed(5, badTime, 5)
	end := o.written[0].end
	r.awaitState("waiting_for_topic", patience)
	r.kill9()
	if now := o.confirmed(); now >= end {
		t.Errorf("the slot confirms %s; the transaction whose dead letter has no topic ends at %s", now, end)
	}
	r = o.start(o.policy("dead_letter")...)
	o.makeTopic("dead", 3, nil)
	for range 3 {
		o.awaitArrived(patience)
		for range 10 {
			o.insertMixed(3, badTime, nullKey, 3)
		}
		r.kill9()
		r = o.startStreaming(o.policy("dead_letter")...)
	}
	o.boundRepeats(o.awaitGood())
	o.verifyDeadLetters(4 * len(o.written)) // at each of four kills, if nothing was confirmed since
}

// A dead letter that its own topic refuses stops the daemon, whatever the policy is, at each start: older rows are
// confirmed, later ones are not. Once the topic accepts it, delivery continues. (A deduplicating daemon must write a
// position record first, which a session cannot do any more once Kafka has refused a record: the rows delivered in its
// last second are not confirmed.)
func TestDeadLetterThatCannotBe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		poison poisonRow
		dead   map[string]string
		says   string
		fix    map[string]string
		mode   string
		behind int // rows possibly sent after it at each stop, before its topic's broker refuses it
	}{
		"too large":             {tooLarge, map[string]string{"max.message.bytes": "100000"}, "too_large", map[string]string{"max.message.bytes": "1000000"}, "deduplicated", 0},
		"refused":               {nullKey, map[string]string{"cleanup.policy": "compact"}, "rejected", map[string]string{"cleanup.policy": "delete"}, "at_least_once", 5 + 10},
		"refused, deduplicated": {nullKey, map[string]string{"cleanup.policy": "compact"}, "rejected", map[string]string{"cleanup.policy": "delete"}, "deduplicated", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needRealKafka(t) // kfake compacts, but accepts null keys
			o := newPoisonOutbox(t, options{missing: []string{"dead"}})
			o.makeTopic("dead", 1, c.dead)
			o.makeTopic("narrow", 1, map[string]string{"max.message.bytes": "100000"})
			o.sample()
			o.insertMixed(10)
			older := o.older
			o.insertMixed(5, c.poison, 5)
			o.insertMixed(10)
			w := o.written[0]
			env := append(o.policy("dead_letter"), "OUTBOXCDC_DELIVERY_MODE="+c.mode)
			if c.says == "rejected" && c.mode == "deduplicated" {
				older = 0
			}
			for range 2 {
				r := o.start(env...)
				r.awaitStop(patience, 65, c.says, w.id)
				o.checkNoSecret(r)
				o.awaitSlotFree()
				if now := o.confirmed(); now <= older || now >= w.end {
					t.Errorf("the slot confirms %s, want from %s to below %s", now, older, w.end)
				}
				if n := len(o.deadLetters()); n != 0 {
					t.Errorf("%d dead letters, want none", n)
				}
			}
			must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("dead"), c.fix))
			r := o.startStreaming(env...)
			o.verifyGood(2 * (5 + c.behind)) // and the rows before it in its transaction
			o.verifyDeadLetters(0)
			o.checkNoSecret(r)
		})
	}
}
