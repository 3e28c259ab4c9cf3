package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/wire"
)

// settings are the command-line flags of the configuration.
type settings struct {
	files []string // -c
	flags []string // --set
}

// load reads the configuration. A default file that was found the first time is required from then on: if it is missing
// at a reload, that is an error.
func (s *settings) load() (*config.Config, error) {
	s.files = config.Find(s.files)
	return config.Load(s.files, os.Environ(), s.flags...)
}

// withConfig is the function of a command that loads the configuration first.
func withConfig(load func() (*config.Config, error), run func(*cobra.Command, *config.Config) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		cfg, err := load()
		if err != nil {
			return err
		}
		return run(cmd, cfg)
	}
}

// problemJSON is one error of `config validate -o json`.
type problemJSON struct {
	Where   string `json:"where,omitempty"` // file:line:column, a variable, or --set
	Setting string `json:"setting,omitempty"`
	Problem string `json:"problem"`
}

func newValidateCommand(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check the configuration without connecting to anything",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			problems := config.Errors(s.problems())
			files := config.Find(s.files)
			out := struct {
				Valid  bool          `json:"valid"`
				Files  []string      `json:"files"`
				Errors []problemJSON `json:"errors"`
			}{len(problems) == 0, append([]string{}, files...), []problemJSON{}}
			text := fmt.Sprintf("the configuration is valid (%s); nothing was connected to\n", cmp.Or(strings.Join(files, ", "), "defaults and environment"))
			for _, p := range problems {
				text = "" // the errors go to standard error
				out.Errors = append(out.Errors, problemJSON{p.Where, p.Path, p.Problem})
				if output == "text" {
					fmt.Fprintln(cmd.ErrOrStderr(), p)
				}
			}
			err := printAs(cmd.OutOrStdout(), output, out, text)
			if err == nil && len(problems) > 0 {
				err = exit.Logged(exit.Config, fmt.Errorf("the configuration is invalid: %d errors", len(problems)))
			}
			return err
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

// problems returns all errors for which `run` would end before it connects to anything, joined.
func (s *settings) problems() error {
	cfg, err := config.Read(s.files, os.Environ(), s.flags...)
	if cfg == nil {
		return err
	}
	if err == nil {
		_, err := wire.Relay(wire.Fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		return errors.Join(err, checkConnections(cfg))
	}
	// Contradictions between settings of the route, for settings that are set and have no other error.
	reported := config.Errors(err)
	_, contradictions := wire.Router(cfg)
	for _, e := range config.Errors(contradictions) {
		if e.Where != "" && !slices.ContainsFunc(reported, func(k *config.Error) bool { return k.Path == e.Path }) {
			err = errors.Join(err, e)
		}
	}
	return err
}
