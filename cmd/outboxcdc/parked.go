package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/internal/parked"
)

// newParkedCommand is the command `parked list|retry|drop`.
func newParkedCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "parked",
		Short: "List, retry or drop what consumers have parked",
		Long: "List, retry or drop the keys that consumers have parked because a record failed (docs/parked.md). The commands read the\n" +
			"database of the consumer, and need neither the daemon nor its settings.",
	}, newParkedListCommand(), newParkedRetryCommand(), newParkedDropCommand())
}

// parkedRun is one run of a parked command.
type parkedRun struct {
	url, keysTable, recordsTable string
	filter                       parked.Filter
	keys                         []string
	all                          bool
	dryRun, behind               bool
	output                       string
	verb                         string // retried or dropped; "": list
	operator
	notes io.Writer
}

// parkedCommand completes cmd, one of the three commands, with the flags that all of them have.
func parkedCommand(p *parkedRun, cmd *cobra.Command) *cobra.Command {
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := p.check(); err != nil {
			return usageError(err)
		}
		p.in, p.out, p.notes = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		return p.run(cmd.Context())
	}
	f := cmd.Flags()
	f.StringVar(&p.url, "url", "", "connection string of the consumer's database (default: libpq's variables, such as PGHOST)")
	f.StringVar(&p.keysTable, "keys-table", parked.DefaultKeys, "table of parked keys, with or without a schema")
	f.StringVar(&p.recordsTable, "records-table", parked.DefaultRecords, "table of their records, with or without a schema")
	f.StringVar(&p.filter.Consumer, "consumer", "", "keys of this consumer (its group)")
	f.StringVar(&p.filter.Topic, "topic", "", "keys of this topic")
	f.StringArrayVar(&p.keys, "key", nil, "this key; may be repeated")
	f.StringArrayVar(&p.filter.Events, "id", nil, "the key whose oldest record has this id; may be repeated")
	f.BoolVar(&p.filter.OnlyDead, "dead", false, "keys whose last try has failed")
	f.BoolVar(&p.filter.WithValues, "payload", false, "show the values as well")
	addOutputFlag(cmd, &p.output)
	return cmd
}

func newParkedListCommand() *cobra.Command {
	return parkedCommand(&parkedRun{}, &cobra.Command{
		Use:   "list",
		Short: "List parked keys",
		Long: "List the parked keys, the longest parked first: consumer, topic, time of the next try (or dead), number of failures and\n" +
			"of records, the last error, and the oldest record, which is the one that fails. Selections are combined: a key has to\n" +
			"match each of them.",
	})
}

func newParkedRetryCommand() *cobra.Command {
	p := &parkedRun{verb: "retried"}
	cmd := parkedCommand(p, &cobra.Command{
		Use:   "retry",
		Short: "Let consumers try parked keys again at once",
		Long: "Make the selected keys due. A running consumer tries the oldest record of each at once, and then has its whole schedule\n" +
			"again.",
	})
	cmd.Flags().BoolVar(&p.all, "all", false, "all parked keys")
	cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "print what would be done, and change nothing")
	return cmd
}

func newParkedDropCommand() *cobra.Command {
	p := &parkedRun{verb: "dropped"}
	cmd := parkedCommand(p, &cobra.Command{
		Use:   "drop",
		Short: "Delete the failing records of parked keys",
		Long: "Delete the oldest record of each selected key, which is the one that fails. The consumer never handles it. The records\n" +
			"behind it are tried at once; with --behind they are deleted, too. A record whose key was handled meanwhile is not\n" +
			"deleted.",
	})
	cmd.Flags().BoolVar(&p.all, "all", false, "all parked keys")
	cmd.Flags().BoolVar(&p.behind, "behind", false, "delete all records of the keys")
	cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "print what would be done, and change nothing")
	cmd.Flags().BoolVarP(&p.yes, "yes", "y", false, "do not ask")
	return cmd
}

// check validates the flags.
func (p *parkedRun) check() error {
	f := &p.filter
	some := f.Consumer != "" || f.Topic != "" || len(p.keys) > 0 || len(f.Events) > 0 || f.OnlyDead
	switch {
	case p.verb != "" && !p.all && !some:
		return errors.New("say which keys: --consumer, --topic, --key, --id, --dead, or --all (parked list shows them)")
	case p.all && some:
		return errors.New("--all selects every parked key: remove the other selections")
	case p.url == "" && os.Getenv("PGHOST") == "" && os.Getenv("PGSERVICE") == "":
		return errors.New("no server named: give --url, the connection string of the consumer's database")
	}
	for _, table := range []string{p.keysTable, p.recordsTable} {
		if parts := strings.Split(table, "."); len(parts) > 2 || slices.Contains(parts, "") {
			return fmt.Errorf("%q is no table: write NAME or SCHEMA.NAME", table)
		}
	}
	for _, key := range p.keys {
		f.Keys = append(f.Keys, []byte(key))
	}
	return nil
}

func (p *parkedRun) run(ctx context.Context) error {
	tables, err := parked.Open(ctx, p.url, p.keysTable, p.recordsTable)
	if err != nil {
		return err
	}
	defer tables.Close(ctx)
	if p.verb == "" {
		n, dead := 0, 0
		err := tables.List(ctx, p.filter, func(k *parked.Key) error {
			if n++; k.NextTry == nil {
				dead++
			}
			return p.show(k, "")
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(p.notes, "%s, of which %d dead\n", human.Count(n, "parked key", "parked keys"), dead)
		return nil
	}
	return p.change(ctx, tables)
}

// change retries or drops the selected keys.
func (p *parkedRun) change(ctx context.Context, tables *parked.Tables) error {
	var selected []*parked.Key
	var records int64
	err := tables.List(ctx, p.filter, func(k *parked.Key) error {
		selected = append(selected, k)
		records += k.Records
		return nil
	})
	if err != nil {
		return err
	}
	if len(selected) == 0 {
		return exit.With(exit.Fault, errors.New("no parked key is selected"))
	}
	if !p.behind {
		records = int64(len(selected))
	}
	if p.dryRun {
		for _, k := range selected {
			if err := p.show(k, "would be "+p.verb); err != nil {
				return err
			}
		}
		fmt.Fprintf(p.notes, "%s would be %s; nothing was changed\n", human.Count(len(selected), "parked key", "parked keys"), p.verb)
		return nil
	}
	if p.verb == "dropped" && !p.yes {
		p.out, p.notes = p.notes, p.out // the question is no output
		yes, err := p.Ask(ctx, fmt.Sprintf("delete %s of %s?", human.Count(int(records), "record", "records"), human.Count(len(selected), "parked key", "parked keys")))
		p.out, p.notes = p.notes, p.out
		if err != nil {
			return err
		}
		if !yes {
			return exit.With(exit.Fault, errors.New("nothing was changed"))
		}
	}
	done, failed := 0, 0
	for _, k := range selected {
		result := p.verb
		if p.verb == "dropped" {
			var n int64
			n, err = tables.Drop(ctx, k, p.behind)
			result = fmt.Sprintf("%s of %d", human.Count(int(n), "record", "records"), k.Records) + " dropped"
		} else {
			err = tables.Retry(ctx, k)
		}
		problem, isProblem := errors.AsType[*parked.Problem](err)
		switch {
		case isProblem:
			failed++
			result = "NOT " + strings.ToUpper(p.verb) + ": " + problem.Error()
		case err != nil:
			return err
		default:
			done++
		}
		if err := p.show(k, result); err != nil {
			return err
		}
	}
	fmt.Fprintf(p.notes, "%s %s\n", human.Count(done, "parked key", "parked keys"), p.verb)
	if failed > 0 {
		return exit.With(exit.Fault, fmt.Errorf("%s not %s, for the reasons above", human.Count(failed, "parked key was", "parked keys were"), p.verb))
	}
	return nil
}

// show prints a key and what was done about it.
func (p *parkedRun) show(k *parked.Key, result string) error {
	if p.output == "json" {
		return writeJSON(p.out, p.json(k, result))
	}
	var t line
	if result != "" {
		t.word(result + ":")
	}
	t.word(quoted([]byte(k.Consumer), false))
	t.word(k.Topic)
	if k.NextTry == nil {
		t.word("dead")
	} else {
		t.pair("next_try", []byte(k.NextTry.UTC().Format(timeLayout)))
	}
	if k.IsAlone {
		t.word("alone")
	}
	t.pair("failures", fmt.Append(nil, k.Failures))
	t.pair("records", fmt.Append(nil, k.Records))
	t.pair("since", []byte(k.ParkedAt.UTC().Format(timeLayout)))
	t.pair("error", []byte(k.LastError))
	t.pair("at", fmt.Appendf(nil, "%d:%d", k.Partition, k.Offset))
	t.pair("id", []byte(k.Event))
	t.record(k.Key, p.value(k), k.Headers, p.filter.WithValues)
	return written(p.out.Write(t.end()))
}

// value is the value of the oldest record, or one of its length if only that is shown.
func (p *parkedRun) value(k *parked.Key) []byte {
	if p.filter.WithValues || k.Bytes < 0 {
		return k.Value
	}
	return make([]byte, k.Bytes)
}

// parkedJSON is a parked key in JSON output.
type parkedJSON struct {
	Consumer   string  `json:"consumer"`
	Topic      string  `json:"topic"`
	Dead       bool    `json:"dead"`
	NextTry    *string `json:"next_try"` // null: dead
	Alone      bool    `json:"alone"`
	Failures   int     `json:"failures"`
	Records    int64   `json:"records"`
	Since      string  `json:"since"`
	FailedAt   string  `json:"failed_at"`
	FirstError string  `json:"first_error"`
	LastError  string  `json:"last_error"`
	Partition  int32   `json:"partition"` // of the oldest record
	Offset     int64   `json:"offset"`
	ID         string  `json:"id"`
	Result     string  `json:"result,omitempty"`
	recordJSON
}

func (p *parkedRun) json(k *parked.Key, result string) parkedJSON {
	out := parkedJSON{
		Consumer: k.Consumer, Topic: k.Topic, Dead: k.NextTry == nil, Alone: k.IsAlone, Failures: k.Failures, Records: k.Records,
		Since: k.ParkedAt.UTC().Format(timeLayout), FailedAt: k.FailedAt.UTC().Format(timeLayout), FirstError: k.FirstError, LastError: k.LastError,
		Partition: k.Partition, Offset: k.Offset, ID: k.Event, Result: result, recordJSON: newRecordJSON(k.Key, p.value(k), k.Headers, p.filter.WithValues),
	}
	if k.NextTry != nil {
		out.NextTry = new(k.NextTry.UTC().Format(timeLayout))
	}
	return out
}
