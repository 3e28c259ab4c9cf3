// Command outboxcdc delivers a Postgres transactional outbox to Kafka by tailing the WAL: see README.md.
//
// A command has a file, mostly of its name. main.go has the root command and the signals, http.go the HTTP listener.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

func main() {
	// SIGHUP must not end the process. The daemon handles it once it has started (reload.go).
	signal.Ignore(syscall.SIGHUP)
	ctx, drain := context.WithCancel(context.Background())
	// One channel receives both signals, so that the second one is not lost if it follows immediately.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go handleSignals(signals, drain, func() {
		fmt.Fprintln(os.Stderr, "outboxcdc: second signal: exiting at once; the next start repeats events that were not confirmed")
		os.Exit(exit.Fault)
	})
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// sameSignal is the time after the first signal in which a second one is ignored: timeout(1), and supervisors that
// signal a process group, send the signal twice.
const sameSignal = time.Second

// handleSignals calls drain at the first signal and leave at the second.
func handleSignals(signals <-chan os.Signal, drain, leave func()) {
	<-signals
	first := time.Now()
	drain()
	for range signals {
		if time.Since(first) >= sameSignal {
			leave()
			return
		}
	}
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exit.OK
	}
	code := exit.Code(err)
	if !exit.IsLogged(err) {
		fmt.Fprintf(stderr, "outboxcdc: %v\n", err)
		if hint := replication.Hint(err); hint != "" && !strings.Contains(err.Error(), hint) {
			fmt.Fprintf(stderr, "hint of the server: %s\n", hint)
		}
		if code == exit.Usage {
			fmt.Fprintf(stderr, "Run \"%s --help\" for usage.\n", cmd.CommandPath())
		}
	}
	return code
}

func newRootCommand() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:           "outboxcdc",
		Short:         "Deliver a Postgres transactional outbox to Kafka by tailing the WAL",
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usageError(errors.New("a command is needed, such as run or setup"))
		},
	}
	root.PersistentFlags().StringArrayVarP(&s.files, "config", "c", nil,
		"configuration file; may be repeated, later files override earlier ones (default ./outboxcdc.yaml, if it exists)")
	root.PersistentFlags().StringArrayVar(&s.flags, "set", nil,
		"setting=value, e.g. log.level=debug; may be repeated, wins over files and environment; no secrets")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRunCommand(s.load), newSetupCommand(s.load), newPeekCommand(s.load), newDLQCommand(s.load), newParkedCommand(), newSlotCommand(s.load), newStandbyCommand(s.load), newUpgradeCommand(s.load, &s.files),
		newAuditCommand(s.load), newRetainCommand(s.load), newRecoverCommand(s.load), newBackfillCommand(s.load), newReplayCommand(s.load),
		newDoctorCommand(s.load, &s.files), newStatusCommand(s.load), newConfigCommand(&s), newVersionCommand())
	addHelp(root)
	return root
}

// group makes cmd a command that only has subcommands.
func group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	names := make([]string, len(subcommands))
	for i, c := range subcommands {
		names[i] = c.Name()
	}
	needs := fmt.Errorf("%s needs a command: %s", cmd.Name(), strings.Join(names, " | "))
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_ = cmd.Help()
		return usageError(needs)
	}
	cmd.AddCommand(subcommands...)
	return cmd
}

// addHelp adds cobra's help command and makes an unknown command an error there.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		about, rest, err := root.Find(args)
		if err != nil {
			return usageError(err)
		}
		return noArgs(about, rest)
	}
}
