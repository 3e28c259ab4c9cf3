// Package model holds a Promela model of deduplicated delivery (delivery.pml) and checks it with spin: the rules must
// hold in every history within the bounds, and each mutant of them must break its property. test/model/README.md says
// what is modelled and how to read a counter-example.
package model

import (
	"cmp"
	"flag"
	"os"
	"testing"
)

var (
	large = flag.Bool("large", false, "larger bounds")
	tell  = flag.Bool("history", false, "print the history that breaks each mutant")
)

// A variant is the model with some of its switches set.
type variant struct {
	name  string
	flags []string
	// breaks is the property that must be broken: the comment after an assertion. "": all of them must hold.
	breaks string
	ltl    bool // check whole histories, not only states
}

func TestRules(t *testing.T) {
	all := []variant{
		{name: "two faults", flags: []string{"FAULTS=2"}},
		{name: "every history ends", flags: []string{"FAULTS=1", "LIVENESS"}, ltl: true},
		{name: "failover", flags: []string{"FAULTS=2", "FAILOVER"}},
		{name: "requests that survive the fence, or a zombie's", flags: []string{"FAULTS=1", "SHORT_FENCE"}},
		{name: "one end not found, or none", flags: []string{"FAULTS=1", "NO_TAIL"}},
		{name: "position record lost", flags: []string{"FAULTS=1", "RECORD_LOST"}},
		{name: "a record deleted", flags: []string{"FAULTS=1", "ERASE"}},
		{name: "another routing, or topics that grow", flags: []string{"FAULTS=2", "REROUTE"}},
		{name: "slot moved by another client", flags: []string{"FAULTS=2", "SLOT_MOVED"}},
		{name: "slot moved, and failover", flags: []string{"FAULTS=1", "SLOT_MOVED", "FAILOVER"}},
		{name: "a pause of confirming", flags: []string{"FAULTS=1", "PAUSE"}},
		{name: "rows hidden for a moment", flags: []string{"FAULTS=1", "HIDE"}},
		{name: "dead letters", flags: []string{"FAULTS=1", "POISON", "SESSIONS=7"}},
		{name: "pg_upgrade", flags: []string{"FAULTS=1", "UPGRADE"}},
		{name: "at least once", flags: []string{"FAULTS=1", "AT_LEAST_ONCE"}},
		{name: "at least once, failover", flags: []string{"FAULTS=1", "AT_LEAST_ONCE", "FAILOVER"}},
	}
	if *large {
		all = []variant{
			{name: "three faults", flags: []string{"FAULTS=3"}},
			{name: "every history ends", flags: []string{"FAULTS=2", "LIVENESS"}, ltl: true},
			{name: "failover, and rows spread otherwise", flags: []string{"FAULTS=2", "FAILOVER", "IN1=1386"}},
			{name: "one end not found, or none", flags: []string{"FAULTS=2", "NO_TAIL"}},
			{name: "position record lost", flags: []string{"FAULTS=2", "RECORD_LOST"}},
			{name: "slot moved, and failover", flags: []string{"FAULTS=2", "SLOT_MOVED", "FAILOVER"}},
			{name: "dead letters, and failover", flags: []string{"FAULTS=1", "POISON", "FAILOVER", "SESSIONS=7"}},
			{name: "dead letters, and another routing", flags: []string{"FAULTS=0", "POISON", "SESSIONS=4", "REROUTE"}},
			{name: "pg_upgrade", flags: []string{"FAULTS=2", "UPGRADE", "SESSIONS=7"}},
			{name: "at least once", flags: []string{"FAULTS=2", "AT_LEAST_ONCE"}},
		}
	}
	check(t, all)
}

// TestReached checks that the runs above reached certain states: spin finds them like a broken property.
func TestReached(t *testing.T) {
	check(t, []variant{
		{name: "a late request was a repeat", flags: []string{"FAULTS=1", "SHORT_FENCE", "SOMETIMES=1"}, breaks: "REACHED"},
		{name: "stopped at a moved slot", flags: []string{"FAULTS=1", "SLOT_MOVED", "SOMETIMES=2"}, breaks: "REACHED"},
		{name: "slot fell back, and found rows are skipped", flags: []string{"FAULTS=2", "SOMETIMES=3"}, breaks: "REACHED"},
		{name: "a dead letter was found", flags: []string{"FAULTS=1", "POISON", "SESSIONS=7", "SOMETIMES=4"}, breaks: "REACHED"},
		{name: "stopped at another system", flags: []string{"FAULTS=1", "UPGRADE", "SOMETIMES=6"}, breaks: "REACHED"},
		{name: "pg_upgrade, and everything delivered", flags: []string{"FAULTS=1", "UPGRADE", "SOMETIMES=7"}, breaks: "REACHED"},
		{name: "hidden rows were found, and it was recorded", flags: []string{"FAULTS=0", "HIDE", "SOMETIMES=8"}, breaks: "REACHED"},
		{name: "phantoms, and everything delivered", flags: []string{"FAULTS=1", "FAILOVER", "SOMETIMES=5"}, breaks: "REACHED"},
	})
}

// TestMutants breaks one rule at a time. The history found is a shortest one.
func TestMutants(t *testing.T) {
	check(t, []variant{
		{"skip by row LSN", []string{"M_ROW_LSN", "FAULTS=1"}, "LOSS", false},
		{"skip with end LSN against commit LSN", []string{"M_END_LSN", "FAULTS=1"}, "LOSS", false},
		{"the end of a partition proves everything before it: another routing", []string{"M_INFER", "REROUTE", "FAULTS=1", "REPEATS_ALLOWED"}, "LOSS", false},
		{"only the partition of the present routing is read", []string{"M_ONE_PARTITION", "REROUTE", "FAULTS=1"}, "REPEAT", false},
		{"producers dropped too early", []string{"M_SETTLED_EARLY", "FAULTS=2"}, "REPEAT", false},
		{"clean, although rows of an earlier session are in doubt", []string{"M_CLEAN_UNSETTLED", "FAULTS=2"}, "REPEAT", false},
		{"foreign record mistaken for ours", []string{"M_FOREIGN", "FAULTS=1"}, "LOSS", false},
		{"acked written before the ack", []string{"M_ACKED_AHEAD", "NO_TAIL", "FAULTS=1"}, "LOSS", false},
		{"confirm written before the ack", []string{"M_CONFIRM_AHEAD", "FAULTS=1"}, "LOSS", false},
		{"timeline ignored", []string{"M_TIMELINE", "FAILOVER", "FAULTS=1"}, "LOSS", false},
		{"look-back exceeded silently", []string{"M_SILENT_LOOK_BACK", "NO_TAIL", "FAULTS=1"}, "LOSS", false},
		{"keepalive confirmed always", []string{"M_KEEPALIVE", "FAULTS=1"}, "LOSS", false},
		{"zero flush is the write position", []string{"M_ZERO_FLUSH", "FAULTS=1"}, "LOSS", false},
		{"highest ack, not prefix", []string{"M_HIGHEST_ACK", "FAULTS=1"}, "LOSS", false},
		{"the same, at least once", []string{"M_HIGHEST_ACK", "FAULTS=1", "AT_LEAST_ONCE"}, "LOSS", false},
		{"slot told before the record", []string{"M_TELL_FIRST", "FAULTS=1"}, "FALSE79", false},
		{"no fence", []string{"M_NO_FENCE", "FAULTS=1"}, "REPEAT", false},
		{"a later row is skipped although an earlier one of its partition is sent again", []string{"M_NO_SUFFIX", "ERASE", "FAULTS=1"}, "STALE", false},
		{"a record counts although one of an earlier row follows it", []string{"M_ANY_RECORD", "ERASE", "FAULTS=2"}, "STALE", false},
		{"remembered LSN given to START", []string{"M_START", "FAILOVER", "FAULTS=1"}, "LOSS", false},
		{"generation ignored", []string{"M_GENERATION", "SHORT_FENCE", "FAULTS=2"}, "FALSE79", false},
		{"one of two records of a generation", []string{"M_SAME_GENERATION", "FAULTS=3"}, "REPEAT", false},
		{"confirm of another timeline", []string{"M_CONFIRM_OF_OTHER_TIMELINE", "SLOT_MOVED", "FAILOVER", "FAULTS=1"}, "LOSS", false},
		{"rows before the first record", []string{"M_ROWS_BEFORE_RECORD", "FAULTS=2"}, "REPEAT", false},
		{"appended out of order", []string{"M_OUT_OF_ORDER", "FAULTS=1"}, "ORDER", false},
		{"a row is sent while a dead letter is in flight", []string{"M_PAST_LETTERS", "POISON", "SESSIONS=7", "FAULTS=1"}, "ORDER", false},
		{"refusals forgotten", []string{"M_REFUSAL_FORGOTTEN", "POISON", "SESSIONS=4", "FAULTS=0"}, "DRAINED", false},
		{"no fence, and failover", []string{"M_NO_FENCE", "FAILOVER", "FAULTS=1", "REPEATS_ALLOWED"}, "PHANTOM", false},
		{"the record is written without end", []string{"M_WRITES_ALWAYS", "FAULTS=0", "LIVENESS"}, "ends", true},
		{"a new system with a slot that had not consumed everything", []string{"M_UPGRADE_UNCONSUMED", "UPGRADE", "FAULTS=0"}, "LOSS", false},
		{"the record of another system followed", []string{"M_SYSTEM", "UPGRADE", "FAULTS=0"}, "LOSS", false},
		{"an adoption after pg_upgrade keeps the acked position", []string{"M_ADOPT_KEEPS", "UPGRADE", "FAULTS=0"}, "LOSS", false},
		{"the record of a broker that does not lead any more", []string{"M_STALE_BROKER", "FAULTS=1"}, "FALSE79", false},
		{"what is acked is not recorded during a pause of confirming", []string{"M_PAUSE_STOPS_RECORDS", "PAUSE", "FAULTS=0"}, "RECORDED", false},
		{"confirmed before a catalog check", []string{"M_UNGUARDED", "HIDE", "FAULTS=0"}, "LOSS", false},
		{"a start compares nothing with the record", []string{"M_START_LOOKS_AFRESH", "HIDE", "FAULTS=1"}, "LOSS", false},
		{"what was found is not recorded", []string{"M_FINDING_FORGOTTEN", "HIDE", "FAULTS=0"}, "LOSS", false},
		{"clean while a request is unanswered", []string{"M_CLEAN_EARLY", "FAULTS=2"}, "REPEAT", false},
	})
}

func check(t *testing.T, all []variant) {
	s := tools(t)
	for _, v := range all {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			r := s.run(t, &v)
			t.Logf("%s: %s; %d states, %.1f s, %d MB", v.name, cmp.Or(r.broken, "holds"), r.states, r.seconds, r.megabytes)
			switch {
			case r.broken != v.breaks && r.broken == "":
				t.Errorf("%v: every property holds, %s should be broken", v.flags, v.breaks)
			case r.broken != v.breaks:
				t.Errorf("%v: broken: %s, want: %s\n%s", v.flags, r.broken, cmp.Or(v.breaks, "none"), r.history)
			case *tell && v.breaks != "":
				t.Logf("\n%s", r.history)
			}
		})
	}
}

// ci reports whether something missing is a failure.
func ci() bool { return os.Getenv("CI") == "true" }
