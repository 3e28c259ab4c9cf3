package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/fromdebezium"
)

func newConfigCommand(s *settings) *cobra.Command {
	return group(&cobra.Command{
		Use:   "config",
		Short: "Shows settings, their schema or a sample; translates a Debezium connector's",
	}, newConfigPrintCommand(s), newConfigSchemaCommand(), newConfigInitCommand(), newFromDebeziumCommand())
}

func newFromDebeziumCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "from-debezium FILE",
		Short: "Print the configuration that stands for a Debezium connector's (.properties or JSON; - is standard input)",
		Long: "Print the configuration that stands for that of a Debezium PostgreSQL connector with the outbox event router.\n" +
			"Standard error lists the options that have no counterpart, mean something else here, or need a hand.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(fmt.Errorf("config from-debezium takes one FILE, or - for standard input; here are %d", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readArgument(cmd, args[0])
			if err != nil {
				return usageError(err)
			}
			props, err := fromdebezium.Read(data)
			if err == nil {
				var r *fromdebezium.Result
				if r, err = fromdebezium.Convert(props); err == nil {
					return printConversion(cmd, r)
				}
			}
			return &exitError{code: exitConfig, err: fmt.Errorf("%s: %w", args[0], err)}
		},
	}
}

// readArgument reads the file that is named, or standard input for "-".
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
