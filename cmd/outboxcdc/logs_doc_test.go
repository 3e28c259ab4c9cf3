package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestLogAttributesAreDocumented checks that docs/running.md lists exactly the attributes that the code logs, because
// log parsers depend on them.
func TestLogAttributesAreDocumented(t *testing.T) {
	used := map[string]string{}
	for _, dir := range []string{".", "../../internal/wire", "../../relay", "../../internal/standby", "../../replication", "../../sink/kafka", "../../sink/lane", "../../sink/http", "../../sink/rabbitmq", "../../sink/nats", "../../sink/aws", "../../router", "../../decoder", "../../checkpoint"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				loggedIn(t, name, used)
			}
		}
	}
	text, err := os.ReadFile("../../docs/running.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n### Attributes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{"time": true, "level": true, "msg": true}
	for _, m := range regexp.MustCompile("(?m)^- (`[^:]*):").FindAllStringSubmatch(section, -1) {
		for _, name := range regexp.MustCompile("`([a-z_0-9]+)`").FindAllStringSubmatch(m[1], -1) {
			listed[name[1]] = true
			if used[name[1]] == "" && name[1] != "time" && name[1] != "level" && name[1] != "msg" {
				t.Errorf("docs/running.md lists %s, which nothing logs", name[1])
			}
		}
	}
	for name, where := range used {
		if !listed[name] {
			t.Errorf("%s logs %q, which docs/running.md does not list", where, name)
		}
		if !regexp.MustCompile(`^[a-z][a-z_0-9]*$`).MatchString(name) {
			t.Errorf("%s logs %q; names are in snake_case", where, name)
		}
	}
	for _, must := range []string{"state", "error", "event_id", "position", "topic", "slot", "repeated"} {
		if used[must] == "" {
			t.Errorf("%s was not found: the search is broken", must)
		}
	}
}

// loggedIn finds the attributes in calls of a logger. Their names are literals, at every second argument after the
// message.
func loggedIn(t *testing.T, file string, used map[string]string) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, 0)
	must(t, err)
	names := func(args []ast.Expr, from int) {
		for i := from; i < len(args); i += 2 {
			if s, ok := literal(args[i]); ok {
				used[s] = set.Position(args[i].Pos()).String()
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit: // attrs := []any{"name", value, …}
			if a, ok := n.Type.(*ast.ArrayType); ok && a.Len == nil {
				if id, ok := a.Elt.(*ast.Ident); ok && id.Name == "any" && len(n.Elts)%2 == 0 {
					names(n.Elts, 0)
				}
			}
		case *ast.CallExpr:
			switch fun := n.Fun.(type) {
			case *ast.Ident:
				if id, ok := first(n.Args).(*ast.Ident); fun.Name == "append" && ok && strings.HasSuffix(id.Name, "attrs") {
					names(n.Args, 1)
				}
			case *ast.SelectorExpr:
				pkg, _ := fun.X.(*ast.Ident)
				_, message := literal(first(n.Args))
				switch name := fun.Sel.Name; {
				case pkg != nil && pkg.Name == "slog" && len(n.Args) == 2 && strings.Contains(" String Int Bool Any Duration ", " "+name+" "):
					names(n.Args[:1], 0)
				case strings.Contains(" Debug Info Warn Error ", " "+name+" ") && message:
					names(n.Args, 1)
					if call, ok := n.Args[len(n.Args)-1].(*ast.CallExpr); ok && n.Ellipsis.IsValid() {
						names(call.Args, 1) // append(attrs, …)...
					}
				case name == "With" && len(n.Args) > 0 && len(n.Args)%2 == 0:
					names(n.Args, 0)
				}
			}
		}
		return true
	})
}

func first(args []ast.Expr) ast.Expr {
	if len(args) == 0 {
		return nil
	}
	return args[0]
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}
