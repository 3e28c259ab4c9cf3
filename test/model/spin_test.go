package model

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checker runs spin, which turns the model into C; the compiled program walks through all states.
type checker struct {
	spin, cc, file string
	lines          []string // of the model
}

// result is the outcome of a walk.
type result struct {
	broken    string // the property; "": none
	history   string // that leads to it
	states    int
	seconds   float64
	megabytes int
}

// tools finds spin and the C compiler, or skips the test.
func tools(t *testing.T) *checker {
	t.Helper()
	c := &checker{}
	for _, tool := range []struct {
		path *string
		name string
	}{{&c.spin, "spin"}, {&c.cc, "gcc"}} {
		path, err := exec.LookPath(tool.name)
		if err != nil {
			why := fmt.Sprintf("the model cannot be checked: there is no %s (apt-get install spin gcc libc6-dev)", tool.name)
			if ci() {
				t.Fatal(why)
			}
			t.Skip(why)
		}
		*tool.path = path
	}
	var err error
	if c.file, err = filepath.Abs("delivery.pml"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	c.lines = strings.Split(string(text), "\n")
	return c
}

// run checks one variant in a directory of its own.
func (c *checker) run(t *testing.T, v *variant) result {
	t.Helper()
	dir := t.TempDir()
	var defines []string
	for _, f := range v.flags {
		defines = append(defines, "-D"+f)
	}
	command(t, dir, c.spin, slices.Concat(defines, []string{"-a", c.file})...)
	command(t, dir, c.cc, slices.Concat(v.compile(), []string{"-w", "-DVECTORSZ=1024", "-DMEMLIM=12000", "-o", "pan", "pan.c"})...)
	args := []string{"-m100000", "-w22"}
	if v.ltl {
		args = append(args, "-a")
	}
	out := command(t, dir, filepath.Join(dir, "pan"), args...)
	r := c.read(t, out)
	switch {
	case r.broken != "" && v.ltl:
		r.broken = "ends" // there is no last step to look at
	case r.broken != "":
		r.broken, r.history = c.replay(t, dir, defines)
	}
	return r
}

// compile returns the compiler's flags. A small walk does not need optimisation; to break a property, breadth first
// finds a shortest history.
func (v *variant) compile() []string {
	switch {
	case v.ltl:
		return []string{"-O1"}
	case v.breaks == "PHANTOM", v.breaks == "DRAINED", v.breaks == "STALE": // seen at the end of a history only
		return []string{"-O0", "-DSAFETY"}
	case v.breaks != "":
		return []string{"-O0", "-DSAFETY", "-DBFS"}
	}
	return []string{"-O1", "-DSAFETY"}
}

// What the walk prints at the end.
var (
	errorsLine  = regexp.MustCompile(`, errors: (\d+)`)
	statesLine  = regexp.MustCompile(`(\d+) states, stored`)
	secondsLine = regexp.MustCompile(`elapsed time ([\d.]+)`)
	memoryLine  = regexp.MustCompile(`([\d.]+)\ttotal actual memory usage`)
)

func (c *checker) read(t *testing.T, out string) result {
	t.Helper()
	number := func(re *regexp.Regexp) float64 {
		m := re.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("the walk did not print %q:\n%s", re, out)
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	r := result{states: int(number(statesLine)), megabytes: int(number(memoryLine))}
	if secondsLine.MatchString(out) { // not printed for a walk of no time
		r.seconds = number(secondsLine)
	}
	switch {
	case number(errorsLine) != 0:
		r.broken = "?"
	case strings.Contains(out, "not completed"), strings.Contains(out, "reached -DMEMLIM"), strings.Contains(out, "too small"):
		t.Fatalf("not every state was visited:\n%s", out)
	}
	return r
}

var failedAt = regexp.MustCompile(`delivery\.pml:(\d+), Error: assertion violated`)

// replay returns the history, and the assertion at its end.
func (c *checker) replay(t *testing.T, dir string, defines []string) (broken, history string) {
	t.Helper()
	cmd := exec.Command(c.spin, slices.Concat(defines, []string{"-k", "delivery.pml.trail", "-t", "-T", "-B", c.file})...)
	cmd.Dir = dir
	out, _ := cmd.CombinedOutput() // the exit status is the assertion's
	history, _, _ = strings.Cut(string(out), "spin: text of failed assertion")
	m := failedAt.FindSubmatch(out)
	if m == nil {
		return "no assertion", history
	}
	line, err := strconv.Atoi(string(m[1]))
	if err != nil || line > len(c.lines) {
		t.Fatalf("line %s of the model: %v", m[1], err)
	}
	_, name, found := strings.Cut(c.lines[line-1], "/* ")
	if !found {
		t.Fatalf("line %d of the model: an assertion without a name was broken:\n%s", line, history)
	}
	name, _, _ = strings.Cut(name, " */")
	return name, history
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out.String())
	}
	return out.String()
}
