package frompolling

import (
	"os"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/pollers"
)

// docs/polling.md has a row for each library.
func TestLibrariesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/polling.md")
	must(t, err)
	var rows strings.Builder
	for i := range pollers.Tables {
		table := &pollers.Tables[i]
		if !table.IsLibrary() {
			continue
		}
		flags := "–"
		if len(table.Args) > 0 {
			flags = "`" + strings.Join(table.Args, " ") + "`"
		}
		where := "all rows"
		if table.Where != "" {
			where = "`" + table.Where + "`"
		}
		rows.WriteString("| " + table.Library + " | " + flags + " | " + where + " |\n")
	}
	if !strings.Contains(string(text), rows.String()) {
		t.Errorf("docs/polling.md has to contain, as it is:\n\n%s", rows.String())
	}
}
