package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// addCompletion adds cobra's completion command, with our help texts, and the completion of flag values. It runs after
// all other commands were added and the output of root was set, because cobra's command keeps both.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd("bash") // cobra adds the command later otherwise, and lets it take any argument
	c, _, _ := root.Find([]string{"completion"})
	c.Short = "Generate a shell completion script for bash, zsh, fish or powershell"
	c.Long = "Generate a shell completion script. To load it into the current shell:\n\n" +
		"\tsource <(outboxcdc completion bash)\n" +
		"\tsource <(outboxcdc completion zsh)\n" +
		"\toutboxcdc completion fish | source\n" +
		"\toutboxcdc completion powershell | Out-String | Invoke-Expression\n\n" +
		"To load it into every new shell: outboxcdc completion SHELL --help."
	c.Use = "completion bash|zsh|fish|powershell"
	c.Args = noArgs
	for _, shell := range c.Commands() {
		shell.Args = noArgs
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		_ = cmd.Help()
		return usageError(errors.New("completion needs a shell: bash, zsh, fish or powershell"))
	}
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
	eachCommand(root, func(c *cobra.Command) {
		if c.Flags().Lookup("output") != nil {
			_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
		}
	})
}

// eachCommand calls f with c and with each command below c.
func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		eachCommand(sub, f)
	}
}
