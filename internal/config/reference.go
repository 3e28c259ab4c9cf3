package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// reference is ${env:NAME} or ${file:/path} in a value of a file; another $ before it takes its meaning away. Nothing else
// that begins with $ means anything: passwords have it, and route.replace.with has $1.
var reference = regexp.MustCompile(`\$?\$\{(env|file):([^}]*)\}`)

// text is a plain value with its references replaced; ok is false for what is no plain value.
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
		return "", errors.New("there is no such variable in the environment; set it, or write $" + fmt.Sprintf("${env:%s}", name) + " to mean just this text")
	}
	return value, nil
}

// escapeReferences is the inverse of text.
func escapeReferences(s string) string {
	return reference.ReplaceAllStringFunc(s, func(ref string) string { return "$" + ref })
}

// variables is the environment by name.
func variables(environ []string) map[string]string {
	out := make(map[string]string, len(environ))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		out[name] = value
	}
	return out
}
