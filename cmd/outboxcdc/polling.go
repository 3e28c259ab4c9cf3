package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/frompolling"
	"github.com/outboxcdc/outboxcdc/internal/setup"
)

func newFromPollingCommand(load func() (*config.Config, error)) *cobra.Command {
	var table, url string
	var columns []string
	var timeout time.Duration
	options := frompolling.Options{Columns: map[string]string{}}
	cmd := &cobra.Command{
		Use:   "from-polling",
		Short: "Print the settings for a table that a poller reads",
		Long: "Print the settings for an outbox table that a poller reads, the condition of the rows that the poller has not sent,\n" +
			"and the commands of the move. The columns are read from the database and recognized by their names and types. What was\n" +
			"inferred is a comment in the output. Nothing is changed (docs/polling.md).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageError(fmt.Errorf("--timeout %v: write a time above zero, such as 1m", timeout))
			}
			for _, c := range columns {
				setting, name, ok := strings.Cut(c, "=")
				if !ok {
					return usageError(fmt.Errorf("--column %s: write SETTING=COLUMN, such as payload=body", c))
				}
				options.Columns[setting] = name
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			schema, name, err := pollingTable(cfg, table)
			if err != nil {
				return err
			}
			dsn, err := catalogURL(cfg, url)
			if err != nil {
				return err
			}
			t, err := readPollingTable(cmd.Context(), dsn, schema, name, timeout)
			if err != nil {
				return withExitCode(err)
			}
			r, err := frompolling.Convert(t, options)
			if err != nil {
				return exit.With(exit.Config, err)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), r.YAML)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&table, "table", "", "schema and name of the table (default outbox.table)")
	f.StringVar(&url, "url", "", "connection string (default $"+setup.URLEnv+", or postgres.url)")
	f.StringVar(&options.Topic, "topic", "", "the template of the topic, if the table does not have the topic; with one topic for all events, the table needs no aggregate type")
	f.DurationVar(&timeout, "timeout", frompolling.DefaultTimeout, "how long the values of a status may be read from the rows")
	f.StringArrayVar(&columns, "column", nil, "`setting=column` of outbox.columns, such as payload=body, for a column that is not recognized; may be repeated")
	return cmd
}

// pollingTable returns schema and name of --table, or of outbox.table.
func pollingTable(cfg *config.Config, flag string) (schema, name string, err error) {
	if flag == "" {
		flag = cfg.Outbox.Table
	}
	schema, name, err = config.ParseTable(flag)
	if err != nil {
		err = usageError(fmt.Errorf("--table: %w", err))
	}
	return schema, name, err
}

// catalogURL returns the connection string of setup, otherwise that of the daemon: every role may read the catalogs.
func catalogURL(cfg *config.Config, flag string) (string, error) {
	if flag == "" && os.Getenv(setup.URLEnv) == "" && os.Getenv(setup.URLEnv+"_FILE") == "" {
		return cfg.PostgresURL()
	}
	return setupURL(flag)
}

func readPollingTable(ctx context.Context, dsn, schema, name string, timeout time.Duration) (*frompolling.Table, error) {
	conn, err := frompolling.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending
	return frompolling.Read(ctx, conn, schema, name, timeout)
}
