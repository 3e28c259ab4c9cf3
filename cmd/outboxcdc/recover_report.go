package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/progress"
	"github.com/outboxcdc/outboxcdc/internal/recovery"
	"github.com/outboxcdc/outboxcdc/router"
)

// operator asks and prints, on a terminal. It is a [recovery.Operator].
type operator struct {
	in       io.Reader
	out      io.Writer
	meter    *progress.Meter // nil: nothing is shown
	yes      bool            // to each Ask
	hasOrder bool            // all tables have columns that order their rows
	keysFile string          // for the keys with later events; "": they are only counted

	laterKeys []string // the first of them
	keys      *bufio.Writer
	keysClose func() error
}

// Say prints a line.
func (o *operator) Say(format string, args ...any) {
	o.meter.Clear()
	fmt.Fprintf(o.out, format+"\n", args...) //nolint:errcheck // who reads it may be gone
}

// Progress shows a stage.
func (o *operator) Progress(stage string, done, of int64) { o.meter.Show(stage, done, of) }

// Ask asks; --yes answers.
func (o *operator) Ask(ctx context.Context, question string) (bool, error) {
	if o.yes {
		return true, nil
	}
	yes, none, err := o.ask(ctx, question)
	if err == nil && none {
		err = exit.With(exit.Fault, errors.New("there is no answer, which counts as no: --yes answers for you"))
	}
	return yes, err
}

// Decide asks a person. With --yes the answer is no.
func (o *operator) Decide(ctx context.Context, question string) (bool, error) {
	if o.yes {
		return false, nil
	}
	yes, _, err := o.ask(ctx, question)
	return yes, err
}

func (o *operator) ask(ctx context.Context, question string) (yes, none bool, err error) {
	o.meter.Clear()
	fmt.Fprint(o.out, question+" [y/N] ") //nolint:errcheck // then there is no answer
	if yes, none, err = readAnswer(ctx, o.in); err == nil && none {
		fmt.Fprintln(o.out) //nolint:errcheck // as above
	}
	return yes, none, err
}

// Poisoned prints a row that was not sent, and why.
func (o *operator) Poisoned(p *router.Poison) error {
	o.meter.Clear()
	var l line
	l.word("poison")
	l.pair("id", []byte(p.ID))
	l.pair("cause", []byte(p.Cause))
	l.pair("topic", []byte(p.Topic))
	l.word("- " + p.Message)
	return written(o.out.Write(l.end()))
}

// Compared prints what is missing, and what is not known.
func (o *operator) Compared(f *recovery.Found) {
	o.Say("%s compared with %s: %s missing", human.Count(int(f.Rows), "row", "rows"), human.Count(int(f.Records), "record", "records"),
		human.Count(f.Missing.Rows, "row is", "rows are"))
	o.topics(&f.Missing)
	if f.Missing.Rows > 0 {
		allMissing(f.Result, func(s string) { o.Say("  %s", s) })
		if !o.hasOrder {
			o.Say("  outbox.order is not set, so they are sent in the order of created_at, or of the table if it has no such column: " +
				"transactions of one key that overlapped may be sent in another order than they committed in")
		}
	}
	if f.Unjudged.Rows > 0 {
		o.Say("%s not judged: it is not known whether Kafka has, or had, the record", human.Count(f.Unjudged.Rows, "row is", "rows are"))
		o.topics(&f.Unjudged)
	}
	o.later(f.LaterKeys)
}

func (o *operator) topics(s *recovery.Rowset) {
	for _, topic := range slices.Sorted(maps.Keys(s.Topics)) {
		g := s.Topics[topic]
		if topic == "" {
			topic = "(no topic: poison)"
		}
		why := ""
		if g.Why != "" {
			why = ": " + g.Why
		}
		o.Say("  %s: %s, first %s, last %s%s", topic, human.Count(g.Rows, "row", "rows"), rowText(&g.First), rowText(&g.Last), why)
	}
}

// shownKeys is how many keys are printed.
const shownKeys = 20

// Later writes a key to the file of --later-keys, and keeps the first ones for Compared.
func (o *operator) Later(n int, topic, key string) error {
	line := topic + "\t" + quoted([]byte(key), true)
	if n == 1 {
		o.laterKeys = nil
	}
	if n <= shownKeys {
		o.laterKeys = append(o.laterKeys, line)
	}
	if o.keysFile == "" {
		return nil
	}
	if n == 1 {
		f, err := os.OpenFile(o.keysFile, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		o.keys, o.keysClose = bufio.NewWriter(f), f.Close
	}
	_, err := o.keys.WriteString(line + "\n")
	return err
}

// later prints how many keys have later events in Kafka than the missing ones.
func (o *operator) later(keys int) {
	if keys == 0 {
		return
	}
	o.Say("  %s later events in Kafka already, and what is sent will come after them:", human.Count(keys, "key has", "keys have"))
	for _, line := range o.laterKeys {
		o.Say("    %s", line)
	}
	if keys > shownKeys {
		o.Say("    … and %d more: --later-keys FILE writes all", keys-shownKeys)
	}
	if o.keys != nil {
		if err := errors.Join(o.keys.Flush(), o.keysClose()); err != nil {
			o.Say("  the keys were not written: %v", err)
		}
		o.keys = nil
	}
}

// rowText names a row.
func rowText(r *audit.Row) string {
	if r.Created.IsZero() {
		return quoted(r.ID, false)
	}
	return quoted(r.ID, false) + " of " + r.Created.Format(time.RFC3339)
}

// readAnswer reads y or n. It returns when ctx ends, although the reading cannot be ended.
func readAnswer(ctx context.Context, in io.Reader) (yes, none bool, err error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		read <- line{text, err}
	}()
	var l line
	select {
	case l = <-read:
	case <-ctx.Done():
		return false, false, context.Cause(ctx)
	}
	if l.err != nil && !errors.Is(l.err, io.EOF) {
		return false, false, l.err
	}
	text := strings.ToLower(strings.TrimSpace(l.text))
	return slices.Contains([]string{"y", "yes"}, text), text == "" && errors.Is(l.err, io.EOF), nil
}
