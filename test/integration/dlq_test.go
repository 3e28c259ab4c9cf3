package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// letterOutbox is a poisonable outbox whose daemon has ended, with dead letters to manage.
type letterOutbox struct {
	*poisonOutbox
	sentTwice string // the dead letter that is sent again and not marked
}

// newLetterOutbox creates a dead letter of every cause, and a good row before and after each.
func newLetterOutbox(t *testing.T, dead map[string]string, more ...string) *letterOutbox {
	t.Helper()
	o := newPoisonOutbox(t, options{missing: []string{"dead"}})
	o.makeTopic("dead", 3, dead)
	o.makeTopic("narrow", 1, map[string]string{"max.message.bytes": "100000"})
	all := []any{1}
	for _, p := range allPoison {
		all = append(all, p)
	}
	o.insertMixed(append(all, 1)...)
	r := o.startStreaming(o.policy("dead_letter", more...)...)
	o.verifyGood(0)
	r.term()
	return &letterOutbox{poisonOutbox: o}
}

// dlq runs a dlq command and parses its output.
func (o *letterOutbox) dlq(exit int, args ...string) (all []shownRecord, notes string) {
	o.t.Helper()
	out, notes, got := o.runBinary(o.policy("dead_letter"), append([]string{"dlq"}, append(args, "-o", "json")...)...)
	if got != exit {
		o.t.Errorf("dlq %v: exit code %d, want %d: %s", args, got, exit, notes)
	}
	return parseShownRecords(o.t, out), notes
}

// checkOpen checks that the open dead letters have these causes, in any order.
func (o *letterOutbox) checkOpen(want ...string) []shownRecord {
	o.t.Helper()
	all, notes := o.dlq(0, "list")
	var got []string
	for _, l := range all {
		got = append(got, l.Cause)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		o.t.Errorf("%v are open, want %v", got, want)
	}
	if len(all) != 1 && !strings.HasPrefix(notes, fmt.Sprintf("%d open dead letters", len(want))) {
		o.t.Errorf("it prints %q for %d", notes, len(want))
	}
	return all
}

// causesExcept returns the causes of all poison rows, except for some.
func causesExcept(less ...string) (all []string) {
	for _, p := range allPoison {
		if !slices.Contains(less, p.cause) {
			all = append(all, p.cause)
		}
	}
	return all
}

// Dead letters of every cause are listed as they are in Kafka, retried one by one and together, and dropped. A retried
// record is what the event would have been, and is marked; each is sent once.
func TestDeadLetterCare(t *testing.T) {
	t.Parallel()
	o := newLetterOutbox(t, nil)
	listed := o.checkOpen(causesExcept()...)
	for _, l := range listed {
		o.checkListed(l)
	}
	if text, _, _ := o.runBinary(o.policy("dead_letter"), "dlq", "list"); strings.Contains(text, secret) || strings.Count(text, "\n") != len(listed) {
		t.Errorf("as text:\n%s", text)
	}

	// list changes nothing, and without a selection nothing is done.
	before := len(o.allRecords())
	would, notes := o.dlq(1, "retry", "--all", "--dry-run")
	if len(would) != len(listed) || !strings.Contains(notes, "nothing was changed") {
		t.Errorf("a dry run shows %d of %d dead letters: %s", len(would), len(listed), notes)
	}
	o.checkUnsendable(would)
	o.dlq(0, "drop", "--all", "--dry-run")
	o.dlq(2, "retry")
	o.dlq(2, "drop", "--all", "--cause", "null_key")
	o.dlq(2, "drop", "--at", "0")
	o.dlq(1, "retry", "--id", "00000000-0000-0000-0000-000000000000")
	o.checkOpen(causesExcept()...)
	if after := len(o.allRecords()); after != before {
		t.Errorf("%d records became %d", before, after)
	}

	// An old event does not become the state of its key unasked.
	keyed := o.findLetter(listed, "bad_headers")
	policy := func(p string) {
		must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), keyed.Topic, map[string]string{"cleanup.policy": p}))
	}
	policy("compact")
	if refused, _ := o.dlq(1, "retry", "--id", keyed.ID); len(refused) != 1 || !strings.Contains(refused[0].Problem, "is compacted: ") {
		t.Errorf("retried to a compacted topic: %+v", refused)
	}
	o.checkOpen(causesExcept()...)
	o.checkRetried(o.dlq(0, "retry", "--id", keyed.ID, "--compacted"))
	policy("delete")

	// One by its id, in any partition; then a cause; then one by its partition and offset.
	key := o.findLetter(listed, "null_key")
	o.checkRetried(o.dlq(0, "retry", "--id", key.ID))
	o.checkRetried(o.dlq(0, "retry", "--cause", "bad_partition"))
	noID := o.findLetter(listed, "null_id")
	o.checkRetried(o.dlq(0, "retry", "--at", fmt.Sprintf("%d:%d", noID.Partition, noID.Offset)))
	o.checkOpen(causesExcept("bad_headers", "null_key", "bad_partition", "null_id")...)

	// All remaining ones: three cannot be sent, with a reason.
	some, _ := o.dlq(1, "retry", "--all")
	o.checkRetried(slices.DeleteFunc(slices.Clone(some), func(s shownRecord) bool { return s.Problem != "" }), "")
	o.checkUnsendable(some)
	o.checkOpen("no_route", "illegal_topic", "too_large")
	again, _ := o.dlq(1, "retry", "--all") // none is sent twice
	if len(again) != 3 {
		t.Errorf("%d dead letters are retried, want 3", len(again))
	}
	o.checkRetried(o.dlq(0, "retry", "--cause", "no_route", "--topic", o.topic("order")))
	must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("narrow"), map[string]string{"max.message.bytes": "1000000"}))
	o.checkRetried(o.dlq(0, "retry", "--cause", "too_large"))
	o.dlq(0, "drop", "--all")
	o.checkOpen()
	if all, _ := o.dlq(0, "list", "--all"); len(all) != len(listed) {
		t.Errorf("%d dead letters are in the topic, want %d", len(all), len(listed))
	}
	o.checkRetriedOnce(len(listed) - 1)
}

// checkUnsendable checks that three of the dead letters cannot be sent, with a reason.
func (o *letterOutbox) checkUnsendable(all []shownRecord) {
	o.t.Helper()
	problems := map[string]string{"no_route": "--topic", "illegal_topic": "--topic", "too_large": "max.message.bytes"}
	for _, l := range all {
		if why, bad := problems[l.Cause]; bad != (l.Problem != "") || bad != (l.RetriedTo == "") || !strings.Contains(l.Problem, why) {
			o.t.Errorf("%s: %q, want %q", l.Cause, l.Problem, why)
		}
	}
}

func (o *letterOutbox) findLetter(all []shownRecord, cause string) shownRecord {
	o.t.Helper()
	i := slices.IndexFunc(all, func(s shownRecord) bool { return s.Cause == cause })
	if i < 0 {
		o.t.Fatalf("no dead letter with cause %s", cause)
	}
	return all[i]
}

// letter returns the record in Kafka at the position of a dead letter.
func (o *letterOutbox) letter(s shownRecord) kafkatest.Record {
	o.t.Helper()
	all := o.deadLetters()
	i := slices.IndexFunc(all, func(r kafkatest.Record) bool { return r.Partition == s.Partition && r.Offset == s.Offset })
	if i < 0 {
		o.t.Fatalf("there is no dead letter at %d:%d", s.Partition, s.Offset)
	}
	return all[i]
}

func (o *letterOutbox) checkListed(s shownRecord) {
	o.t.Helper()
	r := o.letter(s)
	for name, got := range map[string]string{
		"id": s.ID, "outboxcdc-error": s.Cause, "outboxcdc-error-message": s.Message, "outboxcdc-topic": s.Topic,
		"outboxcdc-position": s.Position, "outboxcdc-slot": o.name,
	} {
		if want, _ := headerOf(r, name); got != want {
			o.t.Errorf("dead letter %d:%d: %s is %q, Kafka has %q", s.Partition, s.Offset, name, got, want)
		}
	}
	s.Topic, s.Value, s.ValueBase64 = r.Topic, nil, nil
	withoutValue := r
	for _, what := range s.differences(withoutValue) {
		if !strings.HasPrefix(what, "value") {
			o.t.Errorf("dead letter %d:%d: %s", s.Partition, s.Offset, what)
		}
	}
	if s.Value != nil {
		o.t.Errorf("dead letter %d:%d shows its payload", s.Partition, s.Offset)
	}
}

// allRecords returns the records of all topics, including that of large rows.
func (o *letterOutbox) allRecords() []kafkatest.Record {
	o.t.Helper()
	all, err := kafkatest.ReadAll(testContext(o.t), o.kafka.Brokers(), append(slices.Clone(o.follow.topics), o.topic("narrow"))...)
	must(o.t, err)
	return all
}

// checkRetried compares each retried dead letter with the record in its target topic.
func (o *letterOutbox) checkRetried(all []shownRecord, _ string) {
	o.t.Helper()
	if len(all) == 0 {
		o.t.Error("nothing was retried")
	}
	records := o.allRecords()
	for _, s := range all {
		letter := o.letter(s)
		mark := fmt.Sprintf("%s:%d:%d", o.topic("dead"), s.Partition, s.Offset)
		i := slices.IndexFunc(records, func(r kafkatest.Record) bool {
			got, _ := headerOf(r, "outboxcdc-retried")
			return got == mark && r.Topic == s.RetriedTo
		})
		if i < 0 || s.Problem != "" {
			o.t.Errorf("dead letter %s (%s) is not in %q: %s", mark, s.Cause, s.RetriedTo, s.Problem)
			continue
		}
		got := records[i]
		want := letter.Headers[:0:0]
		for _, h := range letter.Headers {
			if !strings.HasPrefix(h.Key, "outboxcdc-") {
				want = append(want, h)
			}
		}
		position, _ := headerOf(letter, "outboxcdc-position")
		of := strings.Split(position, ":")
		want = append(want, kafkatest.Header{Key: "outboxcdc-retried", Value: []byte(mark)}, kafkatest.Header{Key: "outboxcdc-origin", Value: []byte(of[1] + ":" + of[2])})
		if fmt.Sprintf("%q %v", got.Headers, got.Key == nil) != fmt.Sprintf("%q %v", want, letter.Key == nil) ||
			string(got.Key) != string(letter.Key) || string(got.Value) != string(letter.Value) || (got.Value == nil) != (letter.Value == nil) {
			o.t.Errorf("dead letter %s (%s) was sent as %.300v, want %.300v", mark, s.Cause, got, letter)
		}
	}
}

// checkRetriedOnce checks that so many dead letters were retried, none of them twice.
func (o *letterOutbox) checkRetriedOnce(want int) {
	o.t.Helper()
	if seen := o.retries(); len(seen) != want {
		o.t.Errorf("%d dead letters were sent again, want %d", len(seen), want)
	}
}

// retries counts retried records by dead letter; all except one must be single.
func (o *letterOutbox) retries() map[string]int {
	o.t.Helper()
	seen := map[string]int{}
	for _, r := range o.allRecords() {
		if mark, n := headerOf(r, "outboxcdc-retried"); n > 0 {
			if seen[mark]++; seen[mark] > 1 && mark != o.sentTwice {
				o.t.Errorf("%s was sent %d times", mark, seen[mark])
			}
		}
	}
	return seen
}

// A dead letter whose value was cut is never sent; dead letters of another slot are not shown; while another consumer
// uses the group nothing is done; missing permissions and brokers have their exit codes.
func TestDeadLetterCareRefused(t *testing.T) {
	t.Parallel()
	o := newLetterOutbox(t, map[string]string{"max.message.bytes": "100000"}, "OUTBOXCDC_POISON_OVERSIZE=cut")
	must(t, kafkatest.SetTopicConfig(testContext(t), o.kafka.Brokers(), o.topic("narrow"), map[string]string{"max.message.bytes": "1000000"}))
	cut, _ := o.dlq(1, "retry", "--cause", "too_large")
	if len(cut) != 1 || !strings.Contains(cut[0].Problem, "cut") {
		t.Errorf("a dead letter that was cut: %+v", cut)
	}

	out, notes, exit := o.runBinary(append(o.policy("dead_letter"), "OUTBOXCDC_POSTGRES_SLOT=another"), "dlq", "list")
	if exit != 0 || out != "" || !strings.Contains(notes, fmt.Sprintf("%d dead letters of other slots", len(allPoison))) {
		t.Errorf("another slot's list: %d %s%s", exit, out, notes)
	}
	_, notes, exit = o.runBinary(o.policy("dead_letter", "OUTBOXCDC_KAFKA_BROKERS=127.0.0.1:1"), "dlq", "list")
	if exit != 69 || !strings.Contains(notes, "127.0.0.1:1") {
		t.Errorf("no broker: %d %s", exit, notes)
	}
	nowhere := o.policy("dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("nowhere"))
	if out, notes, exit = o.runBinary(nowhere, "dlq", "list"); exit != 0 || out != "" || !strings.Contains(notes, "no dead letters: the topic "+o.topic("nowhere")+" does not exist") {
		t.Errorf("no topic: %d %s%s", exit, out, notes)
	}
	if _, notes, exit = o.runBinary(nowhere, "dlq", "retry", "--all"); exit != 69 || !strings.Contains(notes, "does not exist: create it") {
		t.Errorf("no topic to retry from: %d %s", exit, notes)
	}

	before := len(o.allRecords())
	for _, next := range []bool{false, true} { // KIP-848
		o.checkRefusedBesideConsumer(next)
	}
	if after := len(o.allRecords()); after != before {
		t.Errorf("%d records became %d", before, after)
	}
	o.checkOpen(causesExcept()...)
}

func (o *letterOutbox) checkRefusedBesideConsumer(next bool) {
	o.t.Helper()
	ctx, by := context.Background(), "it is in use by"
	if next {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true) //nolint:staticcheck // the key is franz-go's
		by = "it is in use: "                                                     // such members are not listed
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...), kgo.WithContext(ctx), kgo.ConsumerGroup("outboxcdc-dlq-"+o.name),
		kgo.ConsumeTopics(o.topic("dead")), kgo.DisableAutoCommit())
	must(o.t, err)
	defer cl.Close()
	cl.PollFetches(ctx)
	for _, verb := range []string{"retry", "drop"} {
		if _, notes := o.dlq(69, verb, "--all"); !strings.Contains(notes, by) {
			o.t.Errorf("%s while another client consumes: %s", verb, notes)
		}
	}
	o.dlq(0, "drop", "--all", "--dry-run") // marks nothing
}

// A recreated dead-letter topic begins without handled dead letters: Kafka deletes a group's offsets with their topic.
func TestDeadLetterTopicCreatedAgain(t *testing.T) {
	t.Parallel()
	o := newLetterOutbox(t, nil)
	o.dlq(0, "drop", "--all")
	o.checkOpen()
	ctx := testContext(t)
	must(t, kafkatest.DeleteTopic(ctx, o.kafka.Brokers(), o.topic("dead")))
	await(t, patience, "the topic to be deleted and created", func() error {
		return kafkatest.CreateTopic(ctx, o.kafka.Brokers(), o.topic("dead"), 3, nil)
	})
	all, causes := []any{1}, []string{}
	for _, p := range slices.Concat(allPoison, allPoison) { // each partition gets more records than the old topic's had
		all, causes = append(all, p), append(causes, p.cause)
	}
	o.insertMixed(all...)
	r := o.startStreaming(o.policy("dead_letter")...)
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	o.checkOpen(causes...)
}
