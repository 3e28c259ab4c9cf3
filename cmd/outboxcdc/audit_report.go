package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

// auditText is the summary of an audit.
func auditText(t *wire.Servers, res *audit.Result, shown map[audit.Kind]int, notes []string, took time.Duration) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, k := range audit.Kinds {
		if more := shown[k] - shownAtMost; more > 0 {
			say("%s … and %d more: -o json prints all", k, more)
		}
	}
	say("%s of %s, %s of %s, in %s", human.Count(int(res.Rows), "row", "rows"), t.Names(),
		human.Count(int(res.Records), "record", "records"), human.Count(readTopics(res), "topic", "topics"), human.Duration(took))
	if res.Confirmed {
		say("the slot has confirmed every row, up to %s", res.SnapshotAt)
	}
	for _, c := range []struct {
		n    int64
		what string
	}{
		{res.Delivered, "rows have a record"},
		{res.Waiting, "rows wait in the slot"},
		{res.DeadLettered, "rows are dead letters"},
		{res.Held, "rows are held: their dead letters are open (outboxcdc dlq list)"},
		{res.Skipped, "rows are skipped by the poison policy"},
		{res.Unjudged, "rows are not judged"},
		{res.Repeated, "records are identical duplicates"},
		{res.Resent, "records were recovered, replayed or retried"},
		{res.Newer, "records are newer than the snapshot"},
		{res.Counts.Outside, "records have a row outside the range"},
		{res.Removable, "records without a row are older than retention.keep: retain may have removed their rows"},
		{res.Foreign, "records are of another server, database or slot, or of an aborted or open Kafka transaction"},
	} {
		if c.n > 0 || c.what == "rows have a record" {
			say("  %10d %s", c.n, c.what)
		}
	}
	for i := range res.Undecided {
		say("not judged: %s", undecidedText(&res.Undecided[i]))
	}
	for _, n := range notes {
		say("note: %s", n)
	}
	switch {
	case len(res.Findings) == 0 && res.Blind():
		say("NOT JUDGED: none of the rows could be judged, so the audit says nothing about them (docs/audit.md)")
	case len(res.Findings) == 0 && res.Young > 0:
		say("NOT JUDGED: Kafka should have records of %s that could not be judged (docs/audit.md)", human.Count(int(res.Young), "row", "rows"))
	case res.Clean() && res.Unjudged > 0:
		say("no findings, but rows that are not judged may be missing (docs/audit.md)")
	case res.Clean():
		say("clean: nothing is missing, unknown or out of order")
	default:
		var found []string
		for _, k := range audit.Kinds {
			if n := res.Findings[k]; n > 0 {
				found = append(found, fmt.Sprintf("%d %s", n, k))
			}
		}
		say("FINDINGS: %s (docs/audit.md says what each means and what to do)", strings.Join(found, ", "))
	}
	return b.String()
}

// undecidedText says which rows are not judged, and why.
func undecidedText(u *audit.Undecided) string {
	topic := u.Topic
	if topic == "" {
		topic = "(no topic: poison)"
	}
	times := ""
	if u.First != nil {
		times = fmt.Sprintf(", created from %s to %s", u.First.Format(time.RFC3339), u.Last.Format(time.RFC3339))
	}
	return fmt.Sprintf("%s of %s, topic %s%s: %s", human.Count(int(u.Rows), "row", "rows"), u.Table, topic, times, u.Why)
}

func readTopics(res *audit.Result) int {
	names := map[string]bool{}
	for i := range res.Spans {
		names[res.Spans[i].Topic] = true
	}
	return len(names)
}
