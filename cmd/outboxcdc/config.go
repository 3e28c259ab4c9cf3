package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/fromdebezium"
)

func newConfigCommand(s *settings) *cobra.Command {
	return group(&cobra.Command{
		Use:   "config",
		Short: "Show the settings or a sample, or print those for a Debezium connector",
	}, newValidateCommand(s), newConfigPrintCommand(s), newConfigInitCommand(), newFromDebeziumCommand())
}

func newFromDebeziumCommand() *cobra.Command {
	var connector string
	var options fromdebezium.Options
	cmd := &cobra.Command{
		Use:   "from-debezium FILE",
		Short: "Convert the configuration of a Debezium connector (- is standard input)",
		Long: "Print the configuration that corresponds to a Debezium PostgreSQL connector with the outbox event router. FILE is a\n" +
			".properties file of Kafka Connect or Debezium Server, or JSON as Connect's REST interface accepts and returns it\n" +
			"(GET /connectors/NAME). Standard error lists the options that have no counterpart, differ, or need a manual step.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(fmt.Errorf("config from-debezium takes one FILE, or - for standard input; %d were given", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readArgument(cmd, args[0])
			if err != nil {
				return usageError(err)
			}
			r, err := fromDebezium(data, connector, options)
			if err != nil {
				return exit.With(exit.Config, fmt.Errorf("%s: %w", args[0], err))
			}
			return printConversion(cmd, r)
		},
	}
	cmd.Flags().StringVar(&connector, "connector", "", "name of the connector, if the file has several")
	cmd.Flags().BoolVar(&options.IgnoreTransforms, "ignore-transforms", false, "convert although the connector has other transformations than the event router")
	return cmd
}

func fromDebezium(data []byte, connector string, o fromdebezium.Options) (*fromdebezium.Result, error) {
	all, err := fromdebezium.Read(data)
	if err != nil {
		return nil, err
	}
	one, err := fromdebezium.Choose(all, connector)
	if err != nil {
		return nil, err
	}
	return fromdebezium.Convert(one, o)
}

// readArgument reads the named file, or standard input for "-".
func readArgument(cmd *cobra.Command, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	return os.ReadFile(name)
}

func printConversion(cmd *cobra.Command, r *fromdebezium.Result) error {
	for _, n := range r.Notes {
		value := ""
		if n.Value != "" {
			value = "=" + n.Value
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s%s\n    %s\n", n.Option, value, n.Text)
	}
	_, err := io.WriteString(cmd.OutOrStdout(), r.YAML)
	return err
}
