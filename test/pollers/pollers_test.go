package pollers

import (
	"os"
	"strings"
	"testing"
)

// docs/polling.md lists the tables with their settings.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/polling.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	for i := range Tables {
		x := &Tables[i]
		columns, topic, where := "`{"+x.Columns+"}`", "the default", "all rows"
		if x.Order != "" {
			columns += ", `outbox.order: [" + x.Order + "]`"
		}
		if x.Topic != "" {
			topic = "`" + x.Topic + "`"
		}
		if x.Where != "" {
			where = "`" + x.Where + "`"
		}
		rows.WriteString("- " + x.Library + ": " + columns + "; " + topic + "; " + where + "\n")
	}
	if !strings.Contains(words(string(page)), words(rows.String())) {
		t.Errorf("docs/polling.md has to contain, as it is:\n\n%s", rows.String())
	}
}

// words is a text without its line breaks.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }
