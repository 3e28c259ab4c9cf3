package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/relay"
)

// Report is the state of daemon and slot at one moment, and the verdict.
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

// Throughput is the daemon's rate of delivery since the previous report.
type Throughput struct {
	Over            float64 `json:"measured_over_seconds"`
	EventsPerSecond float64 `json:"events_per_second"`
}

// Growth is how fast the WAL that the slot retains grows, measured between two reports.
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

// Comparable reports whether a growth can be measured between the two reports. While the slot is read, other WAL counts
// than otherwise.
func (r *Report) Comparable(first *Report) bool {
	return r.Slot != nil && first.Slot != nil && r.Slot.Active == first.Slot.Active && !r.Slot.Lost() && !first.Slot.Lost()
}

// Judge sets the verdict and, if first is an earlier report, the growth since then.
func (r *Report) Judge(first *Report) *Report {
	if first != nil && first != r && r.Comparable(first) {
		r.measure(first)
	}
	r.Verdict, r.Exit = Healthy, exit.OK
	if why := r.problem(); why != "" {
		r.Verdict, r.Exit, r.Why = Unhealthy, exit.Unavailable, why
	}
	if r.Slot != nil && r.Slot.Lost() {
		r.Verdict, r.Exit, r.Why = LostSlot, exit.Lost, lostWhy(r.Slot)
	}
	return r
}

func lostWhy(h *Slot) string {
	switch {
	case h.Unfinished != "":
		return "a recovery of the slot has not finished: slot " + h.Unfinished + " exists"
	case h.Missing:
		return "the server has no slot " + h.Slot
	case h.Invalid != "":
		return "the server has invalidated the slot: " + h.Invalid
	}
	return "the server has removed WAL that the slot needs (max_slot_wal_keep_size)"
}

// problem says what is wrong, "" if nothing is. What can lose events comes first.
func (r *Report) problem() string {
	why := r.otherProblem()
	if h := r.Slot; h != nil && h.WALStatus == "unreserved" {
		budget := "the slot retains more WAL than max_slot_wal_keep_size: the next checkpoint may invalidate it"
		if why == "" {
			return budget
		}
		return budget + "; " + why
	}
	return why
}

// unread is the problem of a slot about which nothing is known.
const unread = "the slot cannot be read from Postgres"

func (r *Report) otherProblem() string {
	d, h := r.Daemon, r.Slot
	switch {
	case d != nil && d.State == relay.WaitingForSlot && h != nil && h.Active:
		return "" // a standby
	case d != nil && d.State == relay.WaitingForSlot && h == nil:
		return unread
	case d != nil && d.State != relay.Streaming && d.State != relay.Backpressured:
		return joinWords(string(d.State), d.Reason)
	case d != nil && d.Sink != "ok":
		return d.DeliversTo + ": " + d.Sink
	case d == nil && r.URL != "":
		return "no daemon answers at " + r.URL
	case d == nil && h != nil && !h.Active:
		return "the slot is inactive"
	case h == nil:
		return unread
	}
	return ""
}

func joinWords(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// smallWAL is an amount of WAL that is not reported as a backlog: positions are confirmed about once a second.
const smallWAL = 16 << 20

// measure sets the growth. While the slot is read, restart_lsn moves in jumps, so the WAL after the confirmed position
// is measured.
func (r *Report) measure(first *Report) {
	growth := r.Slot.Retained - first.Slot.Retained
	if r.Slot.Active {
		if growth = r.Slot.Unconfirmed - first.Slot.Unconfirmed; r.Slot.Unconfirmed < smallWAL {
			growth = min(growth, 0)
		}
	}
	over := r.At.Sub(first.At).Seconds()
	if over <= 0 {
		return
	}
	r.Growth = &Growth{Over: over, BytesPerSecond: float64(growth) / over}
	if rate := r.Growth.BytesPerSecond; rate >= 1 && r.Slot.Left >= 0 {
		in := float64(r.Slot.Left) / rate
		r.Growth.BudgetIn = &in
	}
}

// MeasureThroughput sets the throughput since the previous report, unless the daemon was restarted between.
func (r *Report) MeasureThroughput(before *Report) {
	over := r.At.Sub(before.At).Seconds()
	if r.Daemon == nil || before.Daemon == nil || r.Daemon.Delivered < before.Daemon.Delivered || over <= 0 {
		return
	}
	r.Throughput = &Throughput{Over: over, EventsPerSecond: (r.Daemon.Delivered - before.Daemon.Delivered) / over}
}

// String is the report for people.
func (r *Report) String() string {
	var b strings.Builder
	say := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "%-8s  %s\n", what, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	name := map[string]string{Healthy: "healthy", Unhealthy: "NOT HEALTHY", LostSlot: "LOST"}[r.Verdict]
	say(r.At.Format(time.TimeOnly), "%s", joinWords(name, r.Why))
	r.sayDaemon(say)
	r.saySlot(say)
	r.sayStandbys(say)
	if r.Verdict == LostSlot {
		remedy := advice.Recover
		if r.Slot.Unfinished != "" {
			remedy = advice.RecoverAgain
		}
		say("", "Events committed since may be missing in Kafka, and a running daemon stops with exit code 79. Remedy: %s. outboxcdc doctor shows more.", remedy)
	}
	return b.String()
}

func (r *Report) sayDaemon(say func(what, format string, args ...any)) {
	d := r.Daemon
	switch {
	case r.URL == "":
		say("daemon", "not queried: http.listen is empty")
		return
	case d == nil:
		say("daemon", "down, or not reachable at %s: %s", r.URL, r.DaemonError)
		say("", "if the daemon has ended, the last line of its log says why; outboxcdc doctor checks its prerequisites")
		return
	}
	say("daemon", "%s (%s)", joinWords(string(d.State)+" for "+human.Duration(r.At.Sub(d.Since)), d.Reason), r.URL)
	say("", "%s", waiting(d, r.At))
	r.sayThroughput(say)
	if d.InFlightEvents > 0 {
		say("", "%s in flight to %s, %s", human.Count(d.InFlightEvents, "event", "events"), d.DeliversTo, human.Size(d.InFlightBytes))
	}
	if len(d.WaitingForTopics) > 0 {
		say("", "missing topics: %s", strings.Join(d.WaitingForTopics, ", "))
	}
	if d.LastError != "" && d.LastErrorAt != nil {
		say("", "last error, %s ago: %s", human.Duration(r.At.Sub(*d.LastErrorAt)), d.LastError)
	}
	say(strings.TrimPrefix(d.DeliversTo, "the "), "%s", sinkWords(d))
}

// waiting says what is known about events that wait. The lag also grows while it is not known whether any waits.
func waiting(d *DaemonStatus, now time.Time) string {
	switch {
	case d.OldestUnacked != nil:
		return fmt.Sprintf("the oldest commit that %s has not acknowledged is %s old", d.DeliversTo, human.Duration(now.Sub(*d.OldestUnacked)))
	case d.State == relay.WaitingForSlot:
		return "another client reads the slot: its lag is not known here"
	case d.LagSeconds > 0:
		return fmt.Sprintf("the daemon has not read up to the end of the WAL for %s: whether events wait is not known", human.Duration(seconds(d.LagSeconds)))
	}
	return d.DeliversTo + " has acknowledged all events that the daemon has read"
}

// sinkWords says how the sink is. Without a session the daemon has none.
func sinkWords(d *DaemonStatus) string {
	switch {
	case d.Sink != "no session":
		return d.Sink
	case d.State == relay.Parked:
		return "unavailable; events wait in Postgres"
	}
	return "not connected: there is no session"
}

func (r *Report) sayThroughput(say func(what, format string, args ...any)) {
	text := human.Count(int(r.Daemon.Delivered), "event", "events") + " delivered since the daemon was started"
	if t := r.Throughput; t != nil {
		text += fmt.Sprintf(", %.4g/s (measured over %s)", t.EventsPerSecond, human.Duration(seconds(t.Over)))
	}
	say("", "%s", text)
}

func (r *Report) saySlot(say func(what, format string, args ...any)) {
	h := r.Slot
	if h == nil {
		say("slot", "Postgres does not answer: %s", r.SlotError)
		return
	}
	if h.Lost() {
		say("slot", "%s: %s", h.Slot, lostWhy(h))
		return
	}
	client := "inactive"
	if h.Active {
		client = fmt.Sprintf("active, PID %d %s %s", h.PID, h.Application, h.Address)
	}
	say("slot", "%s: %s", h.Slot, client)
	say("", "%s of WAL retained, %s of it after the confirmed position (%s)", human.Size(h.Retained), human.Size(h.Unconfirmed), h.WALStatus)
	r.sayBudget(say)
	r.sayHolders(say)
}

// sayStandbys reports the copies of the slot, as the daemon sees them. They do not change the verdict: the daemon
// delivers.
func (r *Report) sayStandbys(say func(what, format string, args ...any)) {
	if r.Daemon == nil {
		return
	}
	for _, s := range r.Daemon.Standbys {
		text := fmt.Sprintf("%s: %s: %s", s.Host, s.State, s.Text)
		if s.LagBytes != nil {
			text += fmt.Sprintf(", %s behind the primary's slot", human.Size(*s.LagBytes))
		}
		if s.Leftover {
			text += "; outboxcdc standby clean --host " + s.Host + " removes it"
		}
		say("standby", "%s", text)
	}
}

// sayHolders reports what else retains WAL: a transaction that was open at the confirmed position, or another slot.
func (r *Report) sayHolders(say func(what, format string, args ...any)) {
	h := r.Slot
	if confirmed := h.Retained - h.Unconfirmed; confirmed > smallWAL {
		text := human.Size(confirmed) + " of it is confirmed, and retained for transactions that were open at that time"
		switch x := h.Oldest; {
		case x == nil:
			text += "; the role sees no open transaction (with pg_read_all_stats it sees those of other roles)"
		case x.Prepared != "":
			text += fmt.Sprintf("; the oldest open one: '%s' in database %s, prepared %s ago by %s", x.Prepared, x.Database, human.Duration(x.Age()), x.User)
		default:
			text += fmt.Sprintf("; the oldest open one: PID %d of %s in database %s, open for %s", x.PID, x.User, x.Database, human.Duration(x.Age()))
		}
		say("", "%s", text)
	}
	if o := h.Longest; o != nil && o.Retained-h.Retained > smallWAL {
		say("", "another slot of this server retains more: %s, %s, %s", o.Slot, map[bool]string{true: "active", false: "inactive"}[o.Active], human.Size(o.Retained))
	}
}

// sayBudget reports when the disk budget will be used up.
func (r *Report) sayBudget(say func(what, format string, args ...any)) {
	h, g := r.Slot, r.Growth
	budget := "there is no disk budget (max_slot_wal_keep_size is -1): WAL is retained until the disk is full"
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
