package main

import (
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
)

func newUpgradeCommand(load func() (*config.Config, error), files *[]string) *cobra.Command {
	return group(&cobra.Command{
		Use:   "upgrade",
		Short: "Prepare an upgrade of Postgres to a new major version",
	}, newUpgradeCheckCommand(load, files))
}

func newUpgradeCheckCommand(load func() (*config.Config, error), files *[]string) *cobra.Command {
	return newCheckCommand(&cobra.Command{
		Use:   "check",
		Short: "Check whether pg_upgrade can run, and print the next steps",
		Long: "Check before pg_upgrade, against the old server, whether Kafka has everything that was committed, and whether\n" +
			"pg_upgrade will keep the slot. Print one line for each check, as doctor does, and the steps that remain. The command\n" +
			"waits, while the daemon reads the slot, until everything is confirmed that was in the WAL when it began. It changes\n" +
			"nothing. Exit code: 0, or 1 if a check failed. docs/upgrade.md describes the upgrade.",
	}, load, files, new([]string), doctor.CheckUpgrade)
}
