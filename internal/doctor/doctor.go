// Package doctor checks the daemon's prerequisites in Postgres and Kafka and suggests a fix for each one that is not
// met.
//
// Every check of the catalogue is in the report, also after other checks have failed; a check that could not be made
// is "not checked", with the reason. A run takes no longer than its context, and changes nothing in Postgres or
// Kafka, except for a temporary copy of the slot that checkPlugins may create and drop. No text contains a password
// or a payload. Finding.Exit is the exit code that the daemon would end with. Package config has validated the
// settings before.
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

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// Config says what is checked, and the names that remedies use.
type Config struct {
	Source *replication.Source
	Router *router.Router
	Kafka  *kafka.Cluster
	// Receiver connects to the receiver of events, and sends none; nil: events are delivered to Kafka.
	Receiver     func(context.Context) error
	ReceiverName string
	// Durability reads what an acknowledgement of the receiver means, and by what an acknowledged event can be lost; nil:
	// it cannot be asked.
	Durability func(context.Context) (means string, risks []string, err error)

	Role, Database string // for remedies; Database "": the database of the connection
	Server         string // host:port, for remedies with a connection string
	Slot           string
	Publication    string
	Standbys       []*replication.Host // of postgres.standbys
	AutoStandbys   bool                // postgres.standbys is auto
	Tables         []Table
	Messages       string // prefix of the logical messages that are events, "" for none
	SenderTimeout  time.Duration
	Retention      Retention

	Brokers    []string       // as configured
	Client     string         // options of Kafka's own tools, such as --command-config; "" for none
	User       string         // the daemon's Kafka user, "" if unknown
	Topics     []string       // topics that the settings name
	OwnTime    bool           // a record's timestamp is not the time of sending
	Partitions map[string]int // topic → partition count of route.partitions
	Letters    string         // the dead-letter topic, "" if no policy uses it
	HeldGroup  string         // the group whose offsets say which letters are handled, "" if no policy holds keys
	Positions  string         // the position topic, "" if delivery.mode needs none
	Cut        bool           // dead letters that are too large are cut
	// EventSources is the fingerprint of the settings that number events, which position records carry.
	EventSources string

	NoURL      bool // neither postgres.url nor an environment variable of libpq names a server
	NoPassword bool // no password is configured

	// PasswordCommand and TokenCommand run postgres.password_command and kafka.sasl.token_command; nil: there is none.
	PasswordCommand, TokenCommand func(context.Context) (string, error)

	Command string // how this binary was called, with -c, for remedies

	Now             func() time.Time // this machine's clock
	LongTransaction time.Duration    // from this age on, an open transaction is reported
}

// Table is an outbox.
type Table struct {
	Schema, Name string
	Needs        []string // columns that must exist
	Routing      []string // columns that decide about the topic
	Order        []string // outbox.order
	CreatedAt    string   // the column with the time of a row, "" for none
	ID           []string // columns of the id
}

func (t *Table) quoted() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// String is schema and name, unquoted.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// examination is one run of the checks.
type examination struct {
	Config
	*findings

	conn   *pgx.Conn
	server server
	tables []tableFacts
	slot   *slotFacts // nil: there is none

	slots slotRows
	empty bool // each outbox that exists was seen to have no row
	// elsewhere is what delivers our rows, or is to be the source of our slot, if our slot or publication is missing.
	elsewhere replication.Elsewhere

	pub *replication.Publication // nil: there is none
	// unattached is set if the publication also publishes tables that are not attached to an outbox.
	unattached bool
	published  []replication.PublishedTable

	topics map[string]string // topic → the table that leads to it
}

// findings are what the checks have found.
type findings struct {
	found   map[string][]Finding // by check
	because map[string]string    // by group: why checks without a finding were not made
}

func newFindings() *findings {
	return &findings{found: map[string][]Finding{}, because: map[string]string{}}
}

// Run makes every check that there is for the sink. The checks of the server of postgres.url take at most half of the
// time until the deadline of ctx, so that the sink is checked in any case.
func Run(ctx context.Context, c Config) *Report {
	e := &examination{Config: c, findings: newFindings(), topics: map[string]string{}}
	pg, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok {
		pg, cancel = context.WithTimeout(ctx, time.Until(end)/2)
	}
	e.postgres(pg)
	cancel()
	e.checkStandbys(ctx) // also if the server of postgres.url does not answer
	e.hangUp()
	if e.Receiver != nil {
		e.checkReceiver(ctx)
	} else {
		e.brokers().check(ctx)
	}
	return e.report(e.catalogue())
}

// brokers returns the checks of Kafka, which continue the findings.
func (e *examination) brokers() *brokers {
	return &brokers{Config: &e.Config, findings: e.findings, named: e.topics, setups: []Remedy{e.setup(), e.setupAll()}}
}

// hangUp closes the connection to Postgres.
func (e *examination) hangUp() {
	if e.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = e.conn.Close(ctx)
	}
}

// report returns the findings in the order of a catalogue.
func (e *examination) report(catalogue []Check) *Report {
	r := &Report{}
	for _, c := range catalogue {
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
			f.Remedy = e.withWarning(f.Remedy)
			r.Findings = append(r.Findings, f)
			r.Exit = max(r.Exit, f.Exit)
		}
	}
	return r
}

// withWarning puts a warning before remedies that would stop a running daemon.
func (e *examination) withWarning(all []Remedy) []Remedy {
	alters := func(r Remedy) bool { return r.Kind == SQL && strings.Contains(r.Text, "ALTER PUBLICATION") }
	if e.slot == nil || !e.slot.Active || !slices.ContainsFunc(all, alters) {
		return all
	}
	return append([]Remedy{advicef("stop the daemon first: a running daemon treats ALTER PUBLICATION as a possible loss of events and exits with 79")}, all...)
}

func (r *findings) add(f Finding) { r.found[f.Check] = append(r.found[f.Check], f) }

func (r *findings) ok(check, format string, args ...any) {
	r.add(Finding{Check: check, Level: OK, Text: fmt.Sprintf(format, args...)})
}

func (r *findings) skip(check, format string, args ...any) {
	r.add(Finding{Check: check, Level: NotChecked, Text: fmt.Sprintf(format, args...)})
}

func (r *findings) warn(check string, remedy []Remedy, format string, args ...any) {
	r.add(Finding{Check: check, Level: Warn, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (r *findings) fail(check string, exit int, remedy []Remedy, format string, args ...any) {
	r.add(Finding{Check: check, Level: Fail, Text: fmt.Sprintf(format, args...), Remedy: remedy, Exit: exit})
}

// cannot reports a check that could not be made, because of a missing privilege or a timeout.
func (r *findings) cannot(check string, err error) {
	r.skip(check, "the query failed: %s", cause(err))
}

// has reports whether a check has a finding of that level.
func (r *findings) has(check string, l Level) bool {
	return slices.ContainsFunc(r.found[check], func(f Finding) bool { return f.Level == l })
}

// setup is the command that creates what is missing, as a privileged role. It does not create the slot if events may
// be lost with a slot that there was: a new slot begins now.
func (e *examination) setup() Remedy {
	r := e.setupAll()
	if !e.slots.exists() && !e.empty {
		r.Text += " --no-slot"
	}
	return r
}

// setupAll is setup, with the slot.
func (e *examination) setupAll() Remedy {
	return shellf("OUTBOXCDC_SETUP_URL=postgres://postgres@%s/%s %s setup apply", e.Server, url.PathEscape(e.Database), e.Command)
}

// recover is the command that delivers what Kafka lacks, with what it does; without Kafka, what does so instead.
func (e *examination) recover() []Remedy {
	switch {
	case len(e.Tables) == 0:
		return []Remedy{advicef("%s", advice.NoTable)}
	case e.Receiver != nil:
		return []Remedy{advicef("%s", advice.Again)}
	}
	return []Remedy{shellf("%s recover", e.Command), advicef("%s", advice.Recover)}
}

// cause is the text of an error without the daemon's remedy: the finding has its own.
func cause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	if pg, ok := errors.AsType[*replication.Error](err); ok {
		err = pg.Err
	}
	text, _, _ := strings.Cut(err.Error(), "; remedy: ")
	if hint := replication.Hint(err); hint != "" && !strings.Contains(text, hint) {
		text += "; hint of the server: " + hint
	}
	return text
}

// literal quotes a value for SQL in a remedy.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
