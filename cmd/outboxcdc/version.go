package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The release build sets both with -ldflags "-X main.version=… -X main.revision=…". After a plain `go build` they are
// empty, and the build info that Go embeds is used.
var (
	version  string
	revision string
)

// build describes this binary, for the version command and /version.
type build struct {
	Version   string `json:"version"`
	Revision  string `json:"revision"` // git commit, "-dirty" appended when there were local changes
	GoVersion string `json:"go_version"`
	Platform  string `json:"platform"`
}

func buildInfo() build {
	b := build{Version: version, Revision: revision, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "dev"
	}
	if b.Revision == "" {
		b.Revision = vcsRevision(info.Settings)
	}
	return b
}

func vcsRevision(settings []debug.BuildSetting) string {
	rev, dirty := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision" && s.Value != "":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if rev == "unknown" {
		return rev
	}
	return rev + dirty
}

// buildVersion is the version without the other information.
func buildVersion() string { return buildInfo().Version }

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, revision and Go version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := buildInfo()
			return printAs(cmd.OutOrStdout(), output, b,
				fmt.Sprintf("outboxcdc %s\nrevision  %s\ngo        %s %s\n", b.Version, b.Revision, b.GoVersion, b.Platform))
		},
	}
	addOutputFlag(cmd, &output)
	return cmd
}

func addOutputFlag(cmd *cobra.Command, output *string) {
	*output = "text"
	cmd.Flags().VarP(outputFlag{output}, "output", "o", "text or json")
}

// outputFlag is the value of -o: text or json.
type outputFlag struct{ format *string }

func (f outputFlag) String() string { return *f.format }
func (f outputFlag) Type() string   { return "string" }

func (f outputFlag) Set(format string) error {
	if format != "text" && format != "json" {
		return errors.New("write text or json")
	}
	*f.format = format
	return nil
}

// printAs writes text or, with -o json, value as JSON.
func printAs(w io.Writer, output string, value any, text string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(value)
	}
	_, err := io.WriteString(w, text)
	return err
}
