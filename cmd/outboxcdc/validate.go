package main

import (
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
)

// settings is what the command line says about the configuration.
type settings struct {
	files []string // -c
	flags []string // --set
}

// load reads the configuration. The file that was found the first time is wanted from then on: at a reload its absence is an
// error and no reason to forget what it said.
func (s *settings) load() (*config.Config, error) {
	s.files = config.Find(s.files)
	return config.Load(s.files, os.Environ(), s.flags...)
}

// problemJSON is one error of `validate -o json`.
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
			if output == "json" {
				out := struct {
					Valid  bool          `json:"valid"`
					Files  []string      `json:"files"`
					Errors []problemJSON `json:"errors"`
				}{len(problems) == 0, append([]string{}, files...), []problemJSON{}}
				for _, p := range problems {
					out.Errors = append(out.Errors, problemJSON{p.Where, p.Path, p.Problem})
				}
				if err := printAs(cmd.OutOrStdout(), output, out, ""); err != nil {
					return err
				}
			}
			if len(problems) > 0 {
				if output == "text" {
					for _, p := range problems {
						fmt.Fprintln(cmd.ErrOrStderr(), p)
					}
				}
				return exit.Logged(exit.Config, fmt.Errorf("the configuration is wrong: %d errors", len(problems)))
			}
			if output == "text" {
				from := "defaults and environment"
				if len(files) > 0 {
					from = strings.Join(files, ", ")
				}
				fmt.Fprintf(cmd.OutOrStdout(), "the configuration is valid (%s); nothing was connected to\n", from)
			}
			return nil
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

// problems is everything that `run` would refuse before it connects to anything, joined.
func (s *settings) problems() error {
	cfg, err := config.Read(s.files, os.Environ(), s.flags...)
	if cfg == nil {
		return err
	}
	if err == nil {
		_, err := wire(fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		return errors.Join(err, checkConnections(cfg))
	}
	// How settings of the route go together, as far as they are set and nothing else was reported about them.
	known := config.Errors(err)
	_, together := newRouter(cfg)
	for _, e := range config.Errors(together) {
		if e.Where != "" && !slices.ContainsFunc(known, func(k *config.Error) bool { return k.Path == e.Path }) {
			err = errors.Join(err, e)
		}
	}
	return err
}
