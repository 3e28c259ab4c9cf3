package outbox_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Only a transaction can be passed to Emit: anything else would write the event outside of it.
func TestOnlyTransactionsCompile(t *testing.T) {
	for program, refused := range map[string]bool{
		"./testdata/compile/tx": false, "./testdata/compile/db": true, "./testdata/compile/conn": true,
		"./pgxoutbox/testdata/compile/tx": false, "./pgxoutbox/testdata/compile/pool": true,
		"./pgxoutbox/testdata/compile/conn": true, "./pgxoutbox/testdata/compile/poolconn": true,
	} {
		out, err := exec.Command("go", "vet", program).CombinedOutput()
		switch because := strings.Contains(string(out), "cannot use target"); {
		case !refused && err != nil:
			t.Errorf("%s does not compile: %v\n%s", program, err, out)
		case refused && err == nil:
			t.Errorf("%s compiles", program)
		case refused && !because:
			t.Errorf("%s does not compile, but not because of the argument:\n%s", program, out)
		}
	}
}
