package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// settingJSON is one setting of `config print -o json`.
type settingJSON struct {
	Setting string `json:"setting"`
	Value   any    `json:"value"`
	Origin  string `json:"origin,omitempty"` // file:line:column, a variable, --set, a preset, or default
}

func newConfigPrintCommand(s *settings) *cobra.Command {
	var output string
	var origin bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the effective settings without secrets",
		Long: "Print the effective settings as YAML, in the order of the documentation. A secret is shown as xxxxx.\n" +
			"--origin adds where each value comes from: file:line:column, a variable, --set, a preset, or the default.",
		Args: noArgs,
		RunE: withConfig(s.load, func(cmd *cobra.Command, cfg *config.Config) error {
			text := cfg.String()
			if origin {
				text = cfg.WithOrigins()
			}
			list := []settingJSON{}
			for _, v := range cfg.Settings() {
				j := settingJSON{Setting: v.Path, Value: v.Plain()}
				if origin {
					j.Origin = v.Origin
				}
				list = append(list, j)
			}
			return printAs(cmd.OutOrStdout(), output, list, text)
		}),
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "show where each value comes from")
	addOutputFlag(cmd, &output)
	return cmd
}

func newConfigInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Print a commented sample configuration",
		Long: "Print a sample configuration with every setting, its default and its meaning, all commented out. To write it:\n" +
			"outboxcdc config init > outboxcdc.yaml",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return written(io.WriteString(cmd.OutOrStdout(), config.Sample()))
		},
	}
}
