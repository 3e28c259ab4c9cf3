package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/wire"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/decoder"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/router"
)

// docRow is the example row of docs/routing.md, with the texts that the document abbreviates by ….
func docRow() *decoder.Event {
	ev := &decoder.Event{
		Relation: &decoder.Relation{OID: 1, Namespace: "public", Name: "outbox"},
		Begin:    decoder.Begin{CommitTime: time.Date(2026, 11, 21, 11, 12, 13, 0, time.UTC)},
	}
	for _, c := range []struct {
		name, value string
		oid         uint32
	}{
		{"id", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", 2950},
		{"aggregate_type", "order_v2", 25},
		{"aggregate_id", "42", 25},
		{"event_type", "OrderPlaced", 25},
		{"payload", `{"total": 9.50}`, 3802},
		{"headers", `{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`, 3802},
		{"tenant", "eu", 25},
		{"shard", "3", 23},
		{"placed_at", "2026-11-21 11:00:00+00", 1184},
	} {
		ev.Relation.Columns = append(ev.Relation.Columns, decoder.Column{Name: c.name, TypeOID: c.oid})
		ev.Values = append(ev.Values, decoder.Value{Data: []byte(c.value)})
	}
	return ev
}

var (
	codeInDoc = regexp.MustCompile("`([^`]+)`")
	docRows   = regexp.MustCompile("(?m)^- ((?:… )?`[a-z_]+: .*?) → (.*)$")
)

// TestRoutingDoc checks the lists of docs/routing.md that have settings on the left of an arrow and, on the right, the
// resulting record.
func TestRoutingDoc(t *testing.T) {
	doc, err := os.ReadFile("../../docs/routing.md")
	must(t, err)
	least := map[string]int{"Topic": 9, "Key, id, partition": 5, "Format": 5, "CloudEvents": 4, "Headers": 3, "Timestamp": 3}
	checked := map[string]int{}
	for _, section := range strings.Split(string(doc), "\n#")[1:] {
		title, text, _ := strings.Cut(strings.Trim(section, "# "), "\n")
		above := ""
		if least[title] == 0 {
			continue
		}
		for _, row := range docRows.FindAllStringSubmatch(strings.ReplaceAll(text, "\n  ", " "), -1) {
			settings, onTop := strings.CutPrefix(row[1], "… ")
			var lines []string
			for _, code := range codeInDoc.FindAllStringSubmatch(settings, -1) {
				lines = append(lines, code[1])
			}
			if onTop { // … repeats the row above
				lines = append(lines, above)
			} else {
				above = lines[0]
			}
			if problem := docProblem(t, title, lines, row[2]); problem != "" {
				t.Errorf("%s: %s:\n%s", title, row[0], problem)
			}
			checked[title]++
		}
	}
	for title, want := range least {
		if checked[title] < want {
			t.Errorf("%s: %d rows are checked, want %d at least", title, checked[title], want)
		}
	}
}

// docProblem compares a row of a table with the record.
func docProblem(t *testing.T, title string, settings []string, says string) string {
	t.Helper()
	yaml := "postgres: {url: postgres://x@y/z}\n"
	if strings.HasPrefix(settings[0], "partition: ") {
		yaml += "poison: {policy: stop}\n"
	}
	yaml += "route:\n"
	for _, s := range settings {
		yaml += "  " + strings.Replace(s, "{…", "{source: //shop.example/orders", 1) + "\n"
	}
	if title == "CloudEvents" && !strings.Contains(yaml, "source:") {
		yaml += "  fields: {source: //shop.example/orders}\n"
	}
	file := filepath.Join(t.TempDir(), "outboxcdc.yaml")
	must(t, os.WriteFile(file, []byte(yaml), 0o600))
	cfg, err := config.Load([]string{file}, nil)
	if err != nil {
		return err.Error() + "\n" + yaml
	}
	r, err := wire.Router(cfg)
	if err != nil {
		return err.Error()
	}
	rec := &router.Record{}
	poison, _ := errors.AsType[*router.Poison](r.Route(docRow(), checkpoint.Position{SystemID: 1}, rec))
	var codes []string
	for _, c := range codeInDoc.FindAllStringSubmatch(says, -1) {
		codes = append(codes, c[1])
	}
	if poison != nil || strings.HasPrefix(says, "poison") {
		if poison == nil || string(poison.Cause) != codes[0] {
			return fmt.Sprintf("poison %v", poison)
		}
		return ""
	}
	var headers string
	for _, h := range rec.Headers {
		headers += h.Name + ": " + string(h.Value) + "\n"
	}
	at := time.UnixMilli(rec.Timestamp).UTC().Format(time.DateTime)
	switch title {
	case "Topic":
		return inOrder(rec.Topic+"\n", codes[0]+"\n")
	case "Key, id, partition":
		all := fmt.Sprintf("partition %d %v\nheader %s", rec.Partition, rec.OwnPartition, headers)
		switch {
		case strings.HasPrefix(says, "key "):
			return inOrder(string(rec.Key)+"\n", codes[0]+"\n")
		case strings.HasPrefix(says, "partition 3"):
			return inOrder(all, "partition 3 true")
		case strings.HasPrefix(says, "header "):
			return inOrder(all, "header "+codes[0])
		}
	case "Format":
		return inOrder(string(rec.Value), codes[0])
	case "CloudEvents":
		for _, c := range codes {
			problem := ""
			switch {
			case strings.HasPrefix(c, "{"):
				problem = inOrder(string(rec.Value), c)
			case strings.Contains(c, ": "):
				problem = inOrder("\n"+headers, "\n"+c+"\n")
			default:
				problem = inOrder(string(rec.Value), `"`+c+`"`)
			}
			if problem != "" {
				return problem
			}
		}
		if strings.HasSuffix(says, "no subject") && strings.Contains(string(rec.Value), "subject") {
			return "there is a subject"
		}
	case "Headers":
		list, _, _ := strings.Cut(says, "`: ") // a sentence follows
		var names []string
		for _, c := range codeInDoc.FindAllStringSubmatch(list+"`", -1) {
			names = append(names, c[1])
		}
		return inOrder(headers, strings.Join(names, "…"))
	case "Timestamp":
		if rec.Timestamp == 0 {
			at = "when it is sent"
		}
		return inOrder(at, says)
	}
	return ""
}

// inOrder checks that text contains the pieces between … in this order, and returns what is wrong.
func inOrder(text, pieces string) string {
	rest := text
	for piece := range strings.SplitSeq(pieces, "…") {
		_, after, ok := strings.Cut(rest, piece)
		if !ok {
			return fmt.Sprintf("there is no %q where it should be in\n%s", piece, text)
		}
		rest = after
	}
	return ""
}
