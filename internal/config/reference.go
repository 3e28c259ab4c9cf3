package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// reference matches ${env:NAME} and ${file:/path} in a value of a file. Another $ before it escapes it. No other $ has
// a meaning, because passwords may contain $, and route.replace.with contains $1.
var reference = regexp.MustCompile(`\$?\$\{(env|file):([^}]*)\}`)

// text is a plain value with its references replaced. ok is false if n is not a plain value.
func (d *document) text(n ast.Node) (text string, ok bool, err error) {
	if text, ok = scalarText(n); !ok || !strings.Contains(text, "${") {
		return text, ok, nil
	}
	var problem error
	text = reference.ReplaceAllStringFunc(text, func(ref string) string {
		if strings.HasPrefix(ref, "$$") {
			return ref[1:]
		}
		m := reference.FindStringSubmatch(ref)
		value, err := d.lookUp(m[1], m[2])
		if err != nil && problem == nil {
			problem = &Error{Where: d.at(n.GetToken()), Problem: ref + ": " + err.Error()}
		}
		return value
	})
	return text, true, problem
}

func (d *document) lookUp(kind, name string) (string, error) {
	if kind == "file" {
		return ReadSecret(name)
	}
	value, ok := d.variables[name]
	if !ok {
		return "", errors.New("the environment has no such variable; set it, or write $" + fmt.Sprintf("${env:%s}", name) + " for this text itself")
	}
	return value, nil
}

// escapeReferences escapes references, so that text returns s.
func escapeReferences(s string) string {
	return reference.ReplaceAllStringFunc(s, func(ref string) string { return "$" + ref })
}

// variables returns the environment as a map.
func variables(environ []string) map[string]string {
	out := make(map[string]string, len(environ))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		out[name] = value
	}
	return out
}
