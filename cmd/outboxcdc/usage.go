package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
)

// usageError gives err the exit code for wrong usage.
func usageError(err error) error { return exit.With(exit.Usage, err) }

// noArgs is cobra.NoArgs with the exit code for wrong usage, and with a suggestion.
func noArgs(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, near[0])
	}
	return usageError(err)
}

// flagError adds a suggestion: a flag or a setting with a similar name.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if near := nearestFlag(cmd, unknown.GetSpecifiedName()); near != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, near)
		}
	}
	return usageError(err)
}

func nearestFlag(cmd *cobra.Command, name string) string {
	for _, s := range config.Default().Settings() {
		if strings.ReplaceAll(s.Path[strings.LastIndexByte(s.Path, '.')+1:], "_", "-") == strings.ReplaceAll(name, "_", "-") {
			return "--set " + s.Path + "=…"
		}
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	if near := config.Nearest(name, flags); near != "" {
		return "--" + near
	}
	return ""
}
