package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

var updateCommands = flag.Bool("update-commands", false, "write docs/commands.md and docs/man/outboxcdc.1 again")

// TestCommandsAreDocumented checks that docs/commands.md has all commands and flags, and the manual page their help
// texts. `make docs` writes both.
func TestCommandsAreDocumented(t *testing.T) {
	for name, want := range map[string]string{
		"../../docs/commands.md": commandReference(), "../../docs/man/outboxcdc.1": manPage(),
	} {
		if *updateCommands {
			must(t, os.WriteFile(name, []byte(want), 0o644))
		}
		have, err := os.ReadFile(name)
		must(t, err)
		if string(have) != want {
			t.Errorf("%s is not what the commands say of themselves; write it with `make docs`", name)
		}
	}
}

// TestCommandsExplainThemselves checks that every command and every flag has a help text.
func TestCommandsExplainThemselves(t *testing.T) {
	n := 0
	for _, c := range documented() {
		n++
		if c.Short == "" || c.Short[:1] != strings.ToUpper(c.Short[:1]) || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: %q", c.CommandPath(), c.Short)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s says nothing", c.CommandPath(), f.Name)
			}
		})
	}
	if n < 15 {
		t.Errorf("%d commands", n)
	}
}

// TestManPage checks that man reads the page without warnings.
func TestManPage(t *testing.T) {
	man, err := exec.LookPath("man")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("no man here; TestCommandsAreDocumented has held the text")
	}
	cmd := exec.CommandContext(t.Context(), man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", "../../docs/man/outboxcdc.1")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Run(); err != nil || complaints.Len() > 0 {
		t.Errorf("%v: %s", err, &complaints)
	}
}

// TestCommandLines checks that the commands and flags that documents and unit files name exist.
func TestCommandLines(t *testing.T) {
	files := []string{"../../README.md", "../../samples/README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../deploy/systemd/*.service"} {
		more, err := filepath.Glob(pattern)
		if err != nil || len(more) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, more...)
	}
	root := newRootCommand()
	named := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range regexp.MustCompile("outboxcdc(?: -c \\S+)?((?: [a-z-]+)+)([^`|#\n]*)").FindAllStringSubmatch(string(text), -1) {
			cmd, _, err := root.Find(strings.Fields(line[1]))
			if err != nil || cmd == root { // prose
				continue
			}
			for _, flag := range regexp.MustCompile(`(?:^|[ \[])--([a-z-]+)`).FindAllStringSubmatch(line[1]+line[2], -1) {
				if named++; cmd.Flag(flag[1]) == nil && flag[1] != "help" {
					t.Errorf("%s: %s has no flag --%s", file, cmd.CommandPath(), flag[1])
				}
			}
		}
	}
	if named < 60 {
		t.Errorf("only %d flags are named", named)
	}
}

// documented are the documented commands, in the order of the help.
func documented() []*cobra.Command {
	var all []*cobra.Command
	root := newRootCommand()
	addCompletion(root)
	eachCommand(root, func(c *cobra.Command) {
		shell := c.HasParent() && c.Parent().Name() == "completion" // the help of the parent suffices
		if !c.Hidden && !shell && c.Name() != "help" {
			c.InitDefaultHelpFlag()
			all = append(all, c)
		}
	})
	return all
}

// about is the long help of a command. Texts of cobra end in blanks.
func about(c *cobra.Command) string {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(text)) {
		lines = append(lines, strings.TrimRight(line, " \t\n"))
	}
	return strings.Join(lines, "\n")
}

// flagWords are the name and the type of a flag.
func flagWords(f *pflag.Flag) (names, takes, usage string) {
	names = "--" + f.Name
	if f.Shorthand != "" {
		names = "-" + f.Shorthand + ", " + names
	}
	takes, usage = pflag.UnquoteUsage(f)
	switch {
	case strings.HasPrefix(takes, "string"):
		takes = strings.ToUpper(f.Name)
	default:
		takes = strings.ToUpper(takes)
	}
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
		usage += " (default " + f.DefValue + ")"
	}
	return names, takes, usage
}

func ownFlags(c *cobra.Command) (all []*pflag.Flag) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			all = append(all, f)
		}
	})
	return all
}

// exits is the list of the manual page. docs/running.md has it in full.
var exits = []struct {
	code int
	text string
}{
	{exit.OK, "Done. run: stopped on request, and everything that Kafka has acknowledged is confirmed."},
	{exit.Fault, "The drain was incomplete, a second signal came, or there is an internal fault. dlq: dead letters stay open. A restart may help."},
	{exit.Usage, "Wrong use of the command line. A crash of the Go run time ends with 2, too."},
	{exit.Poison, "Stopped at a poison event. The last line of the log names it, and an operator has to decide about it."},
	{exit.Unavailable, "Postgres or Kafka cannot be reached or used at present."},
	{exit.NoPermission, "A privilege in Postgres or a permission in Kafka is missing."},
	{exit.Config, "The configuration is wrong."},
	{exit.Lost, "The slot or the publication is missing, lost or changed: events may be missing; or the cluster has two primaries. Do not restart before you have compared the table with the topics, or stopped the wrong primary."},
}

// describedIn is the page that a help text names.
var describedIn = regexp.MustCompile(`docs/([a-z]+\.md)`)

// commandReference is a list of all commands with the names of their flags. The manual page says what each flag means.
func commandReference() string {
	var b strings.Builder
	b.WriteString("# Commands\n\n<!-- Generated by `make docs` from the commands; do not edit. -->\n\n" +
		"`outboxcdc COMMAND --help` and the [manual page](man/outboxcdc.1) say what each flag means. Every command accepts the\n" +
		"flags of `outboxcdc`. The exit codes are in [running.md](running.md#exit-codes).\n\n")
	for _, c := range documented() {
		text := fmt.Sprintf("`%s`: %s", strings.TrimSuffix(c.UseLine(), " [flags]"), c.Short)
		if page := describedIn.FindStringSubmatch(about(c)); page != nil {
			text += fmt.Sprintf(" ([%s](%[1]s))", page[1])
		}
		text += "."
		for _, f := range ownFlags(c) {
			names, _, _ := flagWords(f)
			text += " `" + strings.ReplaceAll(names, ", ", "` `") + "`"
		}
		line := "-"
		for word := range strings.FieldsSeq(text) {
			if len([]rune(line+" "+word)) > 120 {
				b.WriteString(line + "\n")
				line = " "
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// manPage is the command reference in the format of man(7), with the other sections of a manual page.
func manPage() string {
	var b strings.Builder
	b.WriteString(".\\\" Generated by `make docs` from the commands; do not edit.\n.TH OUTBOXCDC 1 \"\" \"outboxcdc\" \"User Commands\"\n")
	root := newRootCommand()
	fmt.Fprintf(&b, ".SH NAME\noutboxcdc \\- %s\n", roff(root.Short))
	b.WriteString(".SH SYNOPSIS\n.B outboxcdc\n[\\fB\\-c\\fR \\fIFILE\\fR]... \\fICOMMAND\\fR [\\fIFLAG\\fR]...\n.SH DESCRIPTION\n" +
		"outboxcdc reads the rows that an application inserts into an outbox table from PostgreSQL's WAL, by logical replication, and\n" +
		"produces them to Kafka. No row is lost, keys keep their order, and consumers can recognize duplicates after a crash.\n" +
		"The daemon creates no tables, publications or slots; \\fBoutboxcdc setup\\fR creates them.\n")
	for _, c := range documented() {
		if !c.HasParent() {
			b.WriteString(".SH OPTIONS\nEvery command accepts these options.\n")
		} else {
			if c.Parent() == nil || !c.Parent().HasParent() && c == documented()[1] {
				b.WriteString(".SH COMMANDS\n")
			}
			fmt.Fprintf(&b, ".SS %s\n", roff(strings.TrimSuffix(strings.TrimPrefix(c.UseLine(), "outboxcdc "), " [flags]")))
			verbatim := strings.Contains(about(c), "\n\t")
			if verbatim {
				b.WriteString(".nf\n")
			}
			b.WriteString(roff(about(c)) + "\n")
			if verbatim {
				b.WriteString(".fi\n")
			}
		}
		for _, f := range ownFlags(c) {
			names, takes, usage := flagWords(f)
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR", roff(names))
			if takes != "" {
				fmt.Fprintf(&b, " \\fI%s\\fR", roff(takes))
			}
			fmt.Fprintf(&b, "\n%s\n", roff(usage))
		}
	}
	b.WriteString(".SH EXIT STATUS\n")
	for _, e := range exits {
		fmt.Fprintf(&b, ".TP\n.B %d\n%s\n", e.code, roff(e.text))
	}
	b.WriteString(".SH SIGNALS\n.TP\n.B SIGTERM, SIGINT\nStop reading, wait for Kafka's acknowledgements for at most \\fIshutdown_timeout\\fR, confirm, and exit. A second signal exits at once.\n" +
		".SH ENVIRONMENT\n.TP\n.B OUTBOXCDC_...\nEvery setting: \\fIkafka.compression\\fR is \\fBOUTBOXCDC_KAFKA_COMPRESSION\\fR. Variables override files.\n" +
		".TP\n.B PGHOST, PGUSER, PGPASSFILE, ...\nlibpq's variables, for parts that are missing in \\fIpostgres.url\\fR.\n" +
		".TP\n.B NOTIFY_SOCKET, WATCHDOG_USEC\nSet by \\fBsystemd\\fR(1), which receives the state of the daemon.\n" +
		".SH FILES\n.TP\n.I ./outboxcdc.yaml\nThe configuration file, unless \\fB\\-c\\fR names another.\n" +
		".SH SEE ALSO\n\\fBpsql\\fR(1), \\fBpg_recvlogical\\fR(1), \\fBsystemd.service\\fR(5)\n")
	return b.String()
}

// roff escapes a text for roff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n\n", "\n.PP\n").Replace(text)
	var lines []string
	for i, line := range strings.Split(text, "\n") {
		if i > 0 && line == ".PP" {
			lines = append(lines, line)
			continue
		}
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
