package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/relay"
)

// Report is what daemon and slot say at one moment, and what that means.
type Report struct {
	At          time.Time     `json:"at"`
	Verdict     string        `json:"verdict"` // healthy, unhealthy, lost
	Exit        int           `json:"exit"`
	Why         string        `json:"why,omitempty"` // if not healthy
	URL         string        `json:"url,omitempty"`
	Daemon      *DaemonStatus `json:"daemon,omitempty"`
	DaemonError string        `json:"daemon_error,omitempty"`
	Slot        *Slot         `json:"slot,omitempty"`
	SlotError   string        `json:"slot_error,omitempty"`
	Growth      *Growth       `json:"growth,omitempty"`
	Throughput  *Throughput   `json:"throughput,omitempty"`
}

// Throughput is how much the daemon delivers, since the look before.
type Throughput struct {
	Over            float64 `json:"measured_over_seconds"`
	EventsPerSecond float64 `json:"events_per_second"`
}

// Growth is how fast the WAL that the slot holds grows, time between two measurements.
type Growth struct {
	Over           float64  `json:"measured_over_seconds"`
	BytesPerSecond float64  `json:"bytes_per_second"` // negative: it shrinks
	BudgetIn       *float64 `json:"budget_reached_in_seconds,omitempty"`
}

// The verdicts.
const (
	Healthy   = "healthy"
	Unhealthy = "unhealthy"
	LostSlot  = "lost"
)

// Comparable reports whether a rate between the two means anything: a slot that was read and is not any more grows in
// another way.
func (l *Report) Comparable(first *Report) bool {
	return l.Slot != nil && first.Slot != nil && l.Slot.Active == first.Slot.Active && !l.Slot.Lost() && !first.Slot.Lost()
}

// Judge measures against an earlier report, if there is one, and finds the verdict.
func (l *Report) Judge(first *Report) *Report {
	if first != nil && first != l && l.Comparable(first) {
		l.measure(first)
	}
	l.Verdict, l.Exit = Healthy, exit.OK
	if why := l.ill(); why != "" {
		l.Verdict, l.Exit, l.Why = Unhealthy, exit.Unavailable, why
	}
	if l.Slot != nil && l.Slot.Lost() {
		l.Verdict, l.Exit, l.Why = LostSlot, exit.Lost, lostWhy(l.Slot)
	}
	return l
}

func lostWhy(h *Slot) string {
	switch {
	case h.Missing:
		return "the server has no slot " + h.Slot
	case h.Invalid != "":
		return "the server has invalidated the slot: " + h.Invalid
	}
	return "the server has removed WAL that the slot needs (max_slot_wal_keep_size)"
}

// ill says what is wrong, "" if nothing is.
func (l *Report) ill() string {
	d, h := l.Daemon, l.Slot
	switch {
	case d != nil && d.State == relay.WaitingForSlot && (h == nil || h.Active):
		// a standby
	case d != nil && d.State != relay.Streaming && d.State != relay.Backpressured:
		return joinWords(string(d.State), d.Reason)
	case d != nil && d.Kafka != "ok":
		return "Kafka: " + d.Kafka
	case d == nil && l.URL != "":
		return "no daemon answers at " + l.URL
	case d == nil && h != nil && !h.Active:
		return "the slot is inactive"
	}
	switch {
	case h == nil:
		return "Postgres does not say how the slot is"
	case h.WALStatus == "unreserved":
		return "the slot holds more WAL than max_slot_wal_keep_size: the next checkpoint may lose it"
	}
	return ""
}

func joinWords(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// onTheWay is WAL behind the confirmed position that is no backlog: a position is confirmed once a second or so.
const onTheWay = 16 << 20

// measure finds the rate. While the slot is read its restart_lsn moves in jumps, so what counts is the WAL behind
// the confirmed position.
func (l *Report) measure(first *Report) {
	grown := l.Slot.Retained - first.Slot.Retained
	if l.Slot.Active {
		if grown = l.Slot.Unconfirmed - first.Slot.Unconfirmed; l.Slot.Unconfirmed < onTheWay {
			grown = min(grown, 0)
		}
	}
	over := l.At.Sub(first.At).Seconds()
	if over <= 0 {
		return
	}
	l.Growth = &Growth{Over: over, BytesPerSecond: float64(grown) / over}
	if rate := l.Growth.BytesPerSecond; rate >= 1 && l.Slot.Left >= 0 {
		in := float64(l.Slot.Left) / rate
		l.Growth.BudgetIn = &in
	}
}

// MeasureThroughput finds the daemon's rate since the report before, unless it was started again in between.
func (l *Report) MeasureThroughput(before *Report) {
	over := l.At.Sub(before.At).Seconds()
	if l.Daemon == nil || before.Daemon == nil || l.Daemon.Delivered < before.Daemon.Delivered || over <= 0 {
		return
	}
	l.Throughput = &Throughput{Over: over, EventsPerSecond: (l.Daemon.Delivered - before.Daemon.Delivered) / over}
}

// String is the report for people.
func (l *Report) String() string {
	var b strings.Builder
	say := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-8s  %s\n", what, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	name := map[string]string{Healthy: "healthy", Unhealthy: "NOT HEALTHY", LostSlot: "LOST"}[l.Verdict]
	say(l.At.Format(time.TimeOnly), "%s", joinWords(name, l.Why))
	l.sayDaemon(say)
	l.saySlot(say)
	if l.Verdict == LostSlot {
		say("", "Events committed since may be in no topic: find them in the outbox table, then setup destroy and setup apply. "+
			"outboxcdc doctor says more; a daemon stops with exit code 79.")
	}
	return b.String()
}

func (l *Report) sayDaemon(say func(what, format string, args ...any)) {
	d := l.Daemon
	switch {
	case l.URL == "":
		say("daemon", "not asked: http.listen is empty")
		return
	case d == nil:
		say("daemon", "down, or not reachable at %s: %s", l.URL, l.DaemonError)
		say("", "if it has ended, the last line of its log says why; outboxcdc doctor looks at what it needs")
		return
	}
	say("daemon", "%s (%s)", joinWords(string(d.State)+" for "+human.Duration(l.At.Sub(d.Since)), d.Reason), l.URL)
	if d.LagSeconds > 0 {
		say("", "the oldest commit that Kafka has not acknowledged is %s old", human.Duration(seconds(d.LagSeconds)))
	} else {
		say("", "all that it has read is in Kafka")
	}
	l.sayThroughput(say)
	if d.InFlightEvents > 0 {
		say("", "%s on the way to Kafka, %s", human.Count(d.InFlightEvents, "event is", "events are"), human.Size(d.InFlightBytes))
	}
	if len(d.WaitingForTopics) > 0 {
		say("", "topics that Kafka does not have: %s", strings.Join(d.WaitingForTopics, ", "))
	}
	if d.LastError != "" && d.LastErrorAt != nil {
		say("", "last error, %s ago: %s", human.Duration(l.At.Sub(*d.LastErrorAt)), d.LastError)
	}
	say("Kafka", "%s", d.Kafka)
}

func (l *Report) sayThroughput(say func(what, format string, args ...any)) {
	text := human.Count(int(l.Daemon.Delivered), "event", "events") + " delivered since the daemon was started"
	if t := l.Throughput; t != nil {
		text += fmt.Sprintf(", %.4g/s (measured over %s)", t.EventsPerSecond, human.Duration(seconds(t.Over)))
	}
	say("", "%s", text)
}

func (l *Report) saySlot(say func(what, format string, args ...any)) {
	h := l.Slot
	if h == nil {
		say("slot", "Postgres does not answer: %s", l.SlotError)
		return
	}
	if h.Lost() {
		say("slot", "%s: %s", h.Slot, map[bool]string{true: "the server has none of that name", false: "lost"}[h.Missing])
		return
	}
	who := "inactive"
	if h.Active {
		who = fmt.Sprintf("active, PID %d %s %s", h.PID, h.Application, h.Address)
	}
	say("slot", "%s: %s", h.Slot, who)
	say("", "%s of WAL are held, %s of it behind the confirmed position (%s)", human.Size(h.Retained), human.Size(h.Unconfirmed), h.WALStatus)
	l.sayBudget(say)
	l.sayHolders(say)
}

// sayHolders says what else the server keeps WAL for: a transaction that was open at the confirmed position, or another slot.
func (l *Report) sayHolders(say func(what, format string, args ...any)) {
	h := l.Slot
	if confirmed := h.Retained - h.Unconfirmed; confirmed > onTheWay {
		text := human.Size(confirmed) + " of it is confirmed, and held for transactions that were open then"
		switch x := h.Oldest; {
		case x == nil:
			text += "; the role sees none that is open now (pg_read_all_stats shows those of others)"
		case x.Prepared != "":
			text += fmt.Sprintf("; the oldest now: '%s' in database %s, prepared %s ago by %s", x.Prepared, x.Database, human.Duration(x.Age()), x.User)
		default:
			text += fmt.Sprintf("; the oldest now: PID %d of %s in database %s, open for %s", x.PID, x.User, x.Database, human.Duration(x.Age()))
		}
		say("", "%s", text)
	}
	if o := h.Longest; o != nil && o.Retained-h.Retained > onTheWay {
		say("", "another slot of this server holds more: %s, %s, %s", o.Slot, map[bool]string{true: "active", false: "inactive"}[o.Active], human.Size(o.Retained))
	}
}

// sayBudget says when the disk budget is used up.
func (l *Report) sayBudget(say func(what, format string, args ...any)) {
	h, g := l.Slot, l.Growth
	budget := "there is no disk budget (max_slot_wal_keep_size is -1): it is kept until the disk is full"
	if h.Budget >= 0 {
		budget = fmt.Sprintf("the disk budget (max_slot_wal_keep_size) is %s, of which %s are left", human.Size(h.Budget), human.Size(max(h.Left, 0)))
	}
	switch {
	case g == nil:
		say("", "%s", budget)
	case g.BytesPerSecond < 1:
		say("", "it does not grow (measured over %s); %s", human.Duration(seconds(g.Over)), budget)
	case g.BudgetIn != nil:
		say("", "at the present rate (%s/s, measured over %s) the disk budget (max_slot_wal_keep_size, %s) is reached in %s",
			human.Size(int64(g.BytesPerSecond)), human.Duration(seconds(g.Over)), human.Size(h.Budget), human.Duration(seconds(*g.BudgetIn)))
	default:
		say("", "it grows by %s/s (measured over %s); %s", human.Size(int64(g.BytesPerSecond)), human.Duration(seconds(g.Over)), budget)
	}
}

func seconds(s float64) time.Duration {
	const most = 1 << 62 / float64(time.Second)
	return time.Duration(min(s, most) * float64(time.Second))
}
