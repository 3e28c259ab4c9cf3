package outbox_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Only a transaction can be passed to Emit: anything else would write the event outside of it.
func TestOnlyTransactionsCompile(t *testing.T) {
	programs := map[string]bool{ // whether it compiles
		"testdata/compile/tx": true, "testdata/compile/db": false, "testdata/compile/conn": false,
		"pgxoutbox/testdata/compile/tx": true, "pgxoutbox/testdata/compile/pool": false,
		"pgxoutbox/testdata/compile/conn": false, "pgxoutbox/testdata/compile/poolconn": false,
	}
	args := []string{"vet"}
	for program := range programs {
		args = append(args, "./"+program)
	}
	out, _ := exec.Command("go", args...).CombinedOutput() // an error is expected
	errorsIn := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if program, problem, found := strings.Cut(strings.TrimPrefix(line, "vet: "), "/main.go:"); found {
			errorsIn[program] = problem
		}
	}
	for program, compiles := range programs {
		if problem := errorsIn[program]; compiles && problem != "" || !compiles && !strings.Contains(problem, "cannot use target") {
			t.Errorf("%s: the compiler says %q; it should compile: %t\n%s", program, problem, compiles, out)
		}
	}
}
