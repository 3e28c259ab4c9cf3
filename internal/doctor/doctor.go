// Package doctor finds out, before the daemon is started, whether everything that it needs is as it has to be, and says of
// each thing that is not what to do about it.
//
// It promises that every check of the catalogue is in the report, whatever else has failed (as "not checked" with the
// reason, where it could not be made); that it takes no longer than its context; that it changes nothing on either side;
// and that no text carries a password or a payload. What a finding means for the process is its Exit, which is the code
// that the daemon would end with. Settings are judged by package config before it comes to this.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// Config is what is to be examined, and by whose names remedies call it.
type Config struct {
	Source *replication.Source
	Router *router.Router
	Kafka  *kafka.Cluster

	Role, Database string // as the remedies name them; Database "" is that of the connection
	Server         string // host:port, for remedies that name a connection string
	Slot           string
	Publication    string
	Tables         []Table
	Messages       string // prefix of the logical messages that are events, "" for none
	SenderTimeout  time.Duration

	Brokers    []string       // as configured
	Client     string         // options of Kafka's own tools, such as --command-config; "" for none
	User       string         // as Kafka knows the daemon, "" if that cannot be said
	Topics     []string       // those that are known without a row
	OwnTime    bool           // records have a time that is not the one of sending
	Partitions map[string]int // topic → partition count of route.partitions
	Letters    string         // the dead-letter topic, "" if no policy sends any there
	Positions  string         // the position topic, "" if the mode needs none
	Cut        bool           // dead letters that are too large are cut

	NoURL      bool // neither postgres.url nor PGHOST and its like say where the server is
	NoPassword bool // no password was found for it

	Command string // how this binary was called, with its -c, for remedies

	Now             func() time.Time // this machine's clock
	LongTransaction time.Duration    // from which age on an open transaction is one to worry about
}

// Table is an outbox.
type Table struct {
	Schema, Name string
	Needs        []string // columns that must be there
	Routing      []string // those that have a part in finding the topic
}

func (t *Table) quoted() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// String is the table's name for people.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// examination is one run.
type examination struct {
	Config
	found   map[string][]Finding // by check
	because map[string]string    // by group: why what has no finding was not checked

	conn   *pgx.Conn
	server server
	tables []tableFacts
	slot   *slotFacts // nil: there is none

	pub       *replication.Publication // nil: there is none
	published []replication.PublishedTable

	types  map[string]string // topic → what leads to it, for people
	topics []string
}

// Run makes every check. Half of the time that ctx leaves is Postgres' at most, so that Kafka is asked in any case.
func Run(ctx context.Context, c Config) *Report {
	e := &examination{Config: c, found: map[string][]Finding{}, because: map[string]string{}, types: map[string]string{}}
	pg, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok {
		pg, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	e.postgres(pg)
	cancel()
	e.cluster(ctx)
	return e.report()
}

// report puts the findings into the catalogue's order.
func (e *examination) report() *Report {
	r := &Report{}
	for _, c := range Checks() {
		all := e.found[c.Name]
		if len(all) == 0 {
			why := e.because[c.Group]
			if why == "" {
				why = "there is nothing to check"
			}
			all = []Finding{{Check: c.Name, Level: NotChecked, Text: why}}
		}
		for _, f := range all {
			f.Group = c.Group
			f.Remedy = e.cautious(f.Remedy)
			r.Findings = append(r.Findings, f)
			r.Exit = max(r.Exit, f.Exit)
		}
	}
	return r
}

// cautious puts a warning before what a running daemon would stop at.
func (e *examination) cautious(all []Remedy) []Remedy {
	alters := func(r Remedy) bool { return r.Kind == SQL && strings.Contains(r.Text, "ALTER PUBLICATION") }
	if e.slot == nil || !e.slot.Active || !slices.ContainsFunc(all, alters) {
		return all
	}
	return append([]Remedy{advicef("stop the daemon first: one that streams takes an ALTER PUBLICATION for a loss, and ends with 79")}, all...)
}

func (e *examination) add(f Finding) { e.found[f.Check] = append(e.found[f.Check], f) }

func (e *examination) ok(check, format string, args ...any) {
	e.add(Finding{Check: check, Level: OK, Text: fmt.Sprintf(format, args...)})
}

func (e *examination) skip(check, format string, args ...any) {
	e.add(Finding{Check: check, Level: NotChecked, Text: fmt.Sprintf(format, args...)})
}

func (e *examination) warn(check string, remedy []Remedy, format string, args ...any) {
	e.add(Finding{Check: check, Level: Warn, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (e *examination) fail(check string, exit int, remedy []Remedy, format string, args ...any) {
	e.add(Finding{Check: check, Level: Fail, Text: fmt.Sprintf(format, args...), Remedy: remedy, Exit: exit})
}

// cannot says that a question had no answer: a right that is missing, or the time was over.
func (e *examination) cannot(check string, err error) {
	e.skip(check, "the question could not be asked: %s", cause(err))
}

// has reports whether a check has failed or warned.
func (e *examination) has(check string, l Level) bool {
	return slices.ContainsFunc(e.found[check], func(f Finding) bool { return f.Level == l })
}

// setup is the command that makes what is missing. It needs a role with the privileges, not the daemon's role.
func (e *examination) setup() Remedy {
	return shellf("OUTBOXCDC_SETUP_URL=postgres://postgres@%s/%s %s setup apply", e.Server, url.PathEscape(e.Database), e.Command)
}

// cause is an error in one line, without the remedy that the daemon would add to it: ours is better here.
func cause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		err = pg.Err
	}
	text, _, _ := strings.Cut(err.Error(), "; remedy: ")
	return text
}

// literal quotes a value for the SQL of a remedy.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
