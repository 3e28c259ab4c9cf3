package integration

import (
	"strings"
	"testing"
)

// Kafka has deleted all records of a partition: rows without a record may have had one.
func TestRecoverEmptiedTopic(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	r := o.startStreaming(env...)
	o.insert("order", "k", 1, 5)
	o.awaitArrived(patience)
	r.term()
	o.deleteRecords(o.topic("order"), 3)
	if out := o.recoverUnjudged(env); !strings.Contains(out, "0 rows are missing") || !strings.Contains(out, "5 older rows are not among them") {
		t.Errorf("recover prints:\n%s", out)
	}
	out, notes, code := o.runBinary(env, "audit")
	if code != 0 || strings.Contains(out, "nothing is missing") || !strings.Contains(out, "5 rows are not judged") {
		t.Errorf("audit: exit code %d:\n%s%s", code, out, notes)
	}
}

// recoverUnjudged runs a dry run while nothing is known to be missing.
func (o *outbox) recoverUnjudged(env []string) string {
	o.t.Helper()
	out, notes, code := o.runBinary(env, "recover", "--dry-run")
	if code != 0 {
		o.t.Errorf("recover --dry-run: exit code %d\n%s%s", code, out, notes)
	}
	return out + notes
}
