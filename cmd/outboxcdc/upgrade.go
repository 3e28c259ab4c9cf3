package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

func newUpgradeCommand(load func() (*config.Config, error), files *[]string) *cobra.Command {
	return group(&cobra.Command{
		Use:   "upgrade",
		Short: "Prepare an upgrade of Postgres to a new major version",
	}, newUpgradeCheckCommand(load, files))
}

func newUpgradeCheckCommand(load func() (*config.Config, error), files *[]string) *cobra.Command {
	var output string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check whether pg_upgrade can run, and print the next steps",
		Long: "Check before pg_upgrade, against the old server, whether Kafka has everything that was committed, and whether pg_upgrade will keep\n" +
			"the slot. Print one line for each check, as doctor does, and the steps that remain. The command waits, while the daemon reads the\n" +
			"slot, until everything is confirmed that was in the WAL when it began. It changes nothing. Exit code: 0, or 1 if a check failed.\n" +
			"docs/upgrade.md describes the upgrade.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return usageError(fmt.Errorf("--timeout %v: write a time above zero, such as 30s", timeout))
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			config, err := doctorConfig(cfg, nil, *files)
			if err != nil {
				return exit.With(exit.Config, err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			report := doctor.CheckUpgrade(ctx, config)
			if err := printAs(cmd.OutOrStdout(), output, report, report.String()); err != nil {
				return err
			}
			if report.Exit != 0 {
				return exit.Logged(report.Exit, errors.New("a check failed"))
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", doctorTimeout, "how long all checks may take together")
	addOutputFlag(cmd, &output)
	return cmd
}
