// Command outboxcdc delivers a Postgres transactional outbox to Kafka by tailing the WAL: see README.md.
//
// main.go holds the command line, run.go the daemon, setup.go the flags of `setup`, peek.go what waits in the slot, dlq.go
// dead letters, slot.go the position record, doctor.go the pre-flight, status.go how it goes, validate.go and config_print.go
// settings, http.go what operators look at.
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
)

func main() {
	// The daemon listens to it (reload.go); before it does, and for every other command, it must not end the process.
	signal.Ignore(syscall.SIGHUP)
	ctx, drain := context.WithCancel(context.Background())
	// One channel takes both signals, so that the second is seen however soon it follows the first.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go obey(signals, drain, func() {
		fmt.Fprintln(os.Stderr, "outboxcdc: second signal: leaving at once; what was not confirmed is repeated by the next start")
		os.Exit(exit.Fault)
	})
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// sameSignal is how long after the first signal a further one counts as the same: timeout(1), and supervisors that signal a process
// group, reach the process twice.
const sameSignal = time.Second

// obey calls drain at the first signal, and leave at the second.
func obey(signals <-chan os.Signal, drain, leave func()) {
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
	root.AddCommand(newRunCommand(s.load), newSetupCommand(s.load), newPeekCommand(s.load), newDLQCommand(s.load), newSlotCommand(s.load),
		newDoctorCommand(s.load, &s.files), newStatusCommand(s.load), newValidateCommand(&s), newConfigCommand(&s), newVersionCommand())
	addHelp(root)
	return root
}

// group makes of cmd a command that only has others below it.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	names := make([]string, len(below))
	for i, c := range below {
		names[i] = c.Name()
	}
	needs := fmt.Errorf("%s needs a command: %s", cmd.Name(), strings.Join(names, " | "))
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_ = cmd.Help()
		return usageError(needs)
	}
	cmd.AddCommand(below...)
	return cmd
}

// addHelp adds cobra's help, which by itself takes a word that is no command for a success.
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
