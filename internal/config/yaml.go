package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of a file. The parser recurses, and takes time quadratic in the depth of nesting. A usual file has 3 KiB and a
// depth of 3.
const (
	maxFileBytes = 64 << 10
	maxNesting   = 32
	maxAliasHops = 8
)

// document reads a YAML file. It walks the syntax tree instead of using the library's decoder, so that every error has
// a position and no error quotes the file, which may contain a password.
type document struct {
	name    string
	anchors map[string]ast.Node
	tree    tree       // the allowed settings
	known   []*setting // the allowed settings as a list
	prefix  string     // of paths in messages
	set     func(s *setting, r raw, where string) error
	errs    []error

	variables map[string]string // the environment, for ${env:…}
}

// readYAML calls set for every setting in data. It returns all errors, including those of set.
func readYAML(name string, data []byte, variables map[string]string, set func(s *setting, r raw, where string) error) error {
	d := &document{name: name, anchors: map[string]ast.Node{}, tree: knownTree(), known: knownSettings(), set: set, variables: variables}
	body, err := d.parse(data)
	if err != nil {
		return err
	}
	if body != nil {
		d.section("", body)
	}
	return errors.Join(d.errs...)
}

// parse returns the root of the document, nil for an empty file.
func (d *document) parse(data []byte) (body ast.Node, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics for some malformed input
			body, err = nil, &Error{Where: d.name, Problem: "is not valid YAML"}
		}
	}()
	if len(data) > maxFileBytes {
		return nil, &Error{Where: d.name, Problem: fmt.Sprintf("is larger than %d KiB; is it the right file?", maxFileBytes>>10)}
	}
	if !utf8.Valid(data) {
		return nil, &Error{Where: d.name, Problem: "is not UTF-8 text; is it the right file?"}
	}
	tokens := lexer.Tokenize(string(bytes.TrimPrefix(data, []byte("\ufeff"))))
	if err := d.checkNesting(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) { // its Error method would quote lines of the file
			return nil, &Error{Where: d.at(at.GetToken()), Problem: "YAML: " + at.GetMessage()}
		}
		return nil, &Error{Where: d.name, Problem: "is not valid YAML"}
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, &Error{Where: d.at(doc.Body.GetToken()), Problem: "a second YAML document begins here; keep one per file, -c may be repeated"}
		}
		body = doc.Body
	}
	return body, nil
}

func (d *document) checkNesting(tokens token.Tokens) error {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		if depth > maxNesting {
			return &Error{Where: d.at(t), Problem: "brackets are nested too deeply for a configuration"}
		}
	}
	return nil
}

// section reads the mapping at path ("" is the root).
func (d *document) section(path string, n ast.Node) {
	n, err := d.resolve(n)
	if err != nil {
		d.errs = append(d.errs, err)
		return
	}
	switch n := n.(type) {
	case nil, *ast.NullNode: // "kafka:" with every line below it commented out
	case *ast.MappingNode:
		for _, v := range n.Values {
			d.entry(path, v)
		}
	case *ast.MappingValueNode:
		d.entry(path, n)
	default:
		d.fail(n, path, "must have keys and values: "+strings.Join(d.tree.sections[path], ", "))
	}
}

func (d *document) entry(section string, v *ast.MappingValueNode) {
	if v.Key == nil {
		return
	}
	key := keyText(v.Key)
	if key == "<<" {
		d.fail(v.Key, section, "merge keys (<<) are not supported; write the keys out, or put them into a second file (-c may be repeated)")
		return
	}
	path := join(section, key)
	t := d.tree
	_, ok := t.sections[path]
	if ok && !strings.Contains(key, ".") {
		d.section(path, v.Value)
		return
	}
	s, ok := t.leaves[path]
	if !ok || strings.Contains(key, ".") {
		d.fail(v.Key, "", fmt.Sprintf("unknown key %s%s", quote(key), d.suggestKey(section, key)))
		return
	}
	r, err := d.leaf(s, v.Value)
	if err != nil {
		var e *Error
		if errors.As(err, &e) && e.Path == "" {
			e.Path = d.prefix + path
		}
		d.errs = append(d.errs, err)
		return
	}
	if r == nil {
		d.fail(v.Key, path, `has no value; write one ("" for none) or remove the line`)
		return
	}
	where := d.at(v.Value.GetToken())
	if err := d.set(s, *r, where); err != nil {
		d.errs = append(d.errs, &Error{Where: where, Path: d.prefix + path, Problem: err.Error()})
	}
}

// leaf reads the value of a setting.
func (d *document) leaf(s *setting, n ast.Node) (*raw, error) {
	if _, tables := s.zero.([]Source); tables {
		n, err := d.resolve(n)
		if err != nil {
			return nil, err
		}
		if list, ok := n.(*ast.SequenceNode); ok && len(list.Values) > 0 {
			return d.entries(s.path, list.Values), nil
		}
	}
	r, err := d.value(n)
	if r == nil && err == nil && n != nil && slices.Contains(s.choices, "null") && n.GetToken().Type == token.NullType {
		return &raw{text: "null"}, nil // the name of a choice, without the quotes that YAML demands
	}
	return r, err
}

// value reads the value of a leaf. It returns nil without an error for YAML's null.
func (d *document) value(n ast.Node) (*raw, error) {
	n, err := d.resolve(n)
	if err != nil {
		return nil, err
	}
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return nil, nil
	case *ast.MappingNode:
		return d.mapping(n.Values)
	case *ast.MappingValueNode:
		return d.mapping([]*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		return d.list(n)
	}
	text, ok, err := d.text(n)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &Error{Where: d.at(n.GetToken()), Problem: "must be a plain value"}
	}
	return &raw{text: text}, nil
}

// mapping reads the values of a leaf that is a mapping, if all of them are plain.
func (d *document) mapping(values []*ast.MappingValueNode) (*raw, error) {
	r := &raw{isTree: true, isEmpty: len(values) == 0}
	for _, v := range values {
		text, ok, err := d.plain(v.Value)
		if err != nil {
			return nil, err
		}
		if !ok || v.Key == nil {
			r.pairs = nil
			return r, nil
		}
		r.pairs = append(r.pairs, pair{keyText(v.Key), text})
	}
	return r, nil
}

func (d *document) list(n *ast.SequenceNode) (*raw, error) {
	r := &raw{isList: true}
	for _, item := range n.Values {
		text, ok, err := d.plain(item)
		if err != nil {
			return nil, err
		}
		if !ok {
			return &raw{isTree: true}, nil
		}
		r.list = append(r.list, text)
	}
	return r, nil
}

// plain is [document.text] of the resolved n.
func (d *document) plain(n ast.Node) (text string, ok bool, err error) {
	if n, err = d.resolve(n); err != nil {
		return "", false, err
	}
	return d.text(n)
}

// resolve follows anchors, aliases and the tags of plain types. It counts the steps, because an alias may be inside its
// own anchor.
func (d *document) resolve(n ast.Node) (ast.Node, error) {
	for range maxAliasHops {
		switch v := n.(type) {
		case *ast.AnchorNode:
			if v.Name != nil {
				d.anchors[v.Name.String()] = v.Value
			}
			n = v.Value
		case *ast.AliasNode:
			var name string
			if v.Value != nil {
				name = v.Value.String()
			}
			target, ok := d.anchors[name]
			if !ok {
				return nil, &Error{Where: d.at(v.GetToken()), Problem: fmt.Sprintf("no anchor %s above", quote("&"+name))}
			}
			n = target
		case *ast.TagNode:
			switch v.Start.Value {
			case "!!str", "!!int", "!!float", "!!bool", "!!map", "!!seq", "!!null":
			default:
				return nil, &Error{Where: d.at(v.GetToken()), Problem: "YAML tags have no meaning here; write the plain value"}
			}
			n = v.Value
		default:
			return n, nil
		}
	}
	return nil, &Error{Where: d.name, Problem: "an alias refers to itself"}
}

func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		if n.Value == nil {
			return "", true
		}
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true // as written: 4.0 may be half of a version
	}
	return "", false
}

func keyText(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	if t := k.GetToken(); t != nil {
		return t.Value
	}
	return ""
}

func (d *document) fail(n ast.Node, path, problem string) {
	if path != "" || d.prefix != "" {
		path = strings.TrimSuffix(d.prefix+path, ".")
	}
	d.errs = append(d.errs, &Error{Where: d.at(n.GetToken()), Path: path, Problem: problem})
}

// at is file:line:column of a token.
func (d *document) at(t *token.Token) string {
	if t == nil || t.Position == nil {
		return d.name
	}
	return fmt.Sprintf("%s:%d:%d", d.name, t.Position.Line, t.Position.Column)
}
