package advice

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// everySink are the packages whose texts an operator reads with any sink.
var everySink = []string{
	"internal/advice", "internal/doctor", "internal/outboxtable", "internal/peek", "internal/retention", "internal/setup", "internal/standby", "relay",
	"replication", "router", "sink/lane",
}

// conditions are what a text has to say if it has certain words, because the commands end with 78 if the sink is
// another one. delivery.mode deduplicated exists for Kafka only.
var conditions = []struct{ words, condition *regexp.Regexp }{
	{regexp.MustCompile(`outboxcdc (recover|backfill|replay|audit)\b`), regexp.MustCompile(`sink other than kafka`)},
	{regexp.MustCompile(`outboxcdc slot adopt\b`), regexp.MustCompile(`delivery\.mode (deduplicated|at_least_once)`)},
	{regexp.MustCompile(`(missing|wait|waiting|back) (in|from|for) Kafka|Kafka is down`), regexp.MustCompile(`^$`)},
}

// isTrue reports whether a text advises nothing that is impossible with a sink other than Kafka.
func isTrue(text string) bool {
	for _, c := range conditions {
		if c.words.MatchString(text) && !c.condition.MatchString(text) {
			return false
		}
	}
	return true
}

// texts passes the texts of an expression to f: each literal, joined with what is added to it.
func texts(e ast.Node, f func(token.Pos, string)) {
	ast.Inspect(e, func(n ast.Node) bool {
		x, is := n.(ast.Expr)
		if !is {
			return true
		}
		text := joined(x)
		if text != "" {
			f(x.Pos(), text)
		}
		return text == ""
	})
}

// joined is the text of a literal, or of a sum; of what is not known here it has nothing.
func joined(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return joined(e.X) + joined(e.Y)
		}
	case *ast.SelectorExpr:
		return advised[e.Sel.Name]
	case *ast.Ident:
		return advised[e.Name]
	}
	return ""
}

var advised = map[string]string{
	"Recover": Recover, "Again": Again, "RecoverAgain": RecoverAgain, "NoTable": NoTable, "AdoptRecord": AdoptRecord, "DropAndRecover": DropAndRecover,
}

// TestEverySink: no text that is printed with any sink says that events are missing in Kafka, or advises a command that
// exists for Kafka only without saying so.
func TestEverySink(t *testing.T) {
	seen := 0
	for _, folder := range everySink {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		set := token.NewFileSet()
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(set, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			texts(parsed, func(at token.Pos, text string) {
				seen++
				if text != RecoverAgain && !isTrue(text) { // a recovery that has not finished exists with Kafka only
					t.Errorf("%s: not for every sink: %s", set.Position(at), text)
				}
			})
		}
	}
	if seen < 1000 {
		t.Errorf("%d texts", seen)
	}
}

func TestIsTrue(t *testing.T) {
	for text, want := range map[string]bool{
		Recover: true, DropAndRecover: true, NoTable: true, AdoptRecord: true, "start the daemon": true,
		"then outboxcdc slot adopt": false, Recover + "; or outboxcdc slot adopt": false, "may be missing from Kafka: " + Recover: false,
		"run outboxcdc recover": false, "events may be missing from Kafka": false, "while the daemon or Kafka is down": false,
	} {
		if isTrue(text) != want {
			t.Errorf("%q: %t", text, !want)
		}
	}
	var got []string
	e, err := parser.ParseExpr(`fail("a", "b "+name+" "+advice.AdoptRecord, fmt.Sprintf("c"+"d", 1))`)
	if err != nil {
		t.Fatal(err)
	}
	texts(e, func(_ token.Pos, text string) { got = append(got, text) })
	if want := "a|b  " + AdoptRecord + "|cd"; strings.Join(got, "|") != want {
		t.Errorf("%q, not %q", got, want)
	}
}
