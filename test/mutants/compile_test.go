package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template/parse"

	"github.com/goccy/go-yaml"
)

// checker checks the types of changed packages against the compiled imports.
type checker struct {
	root   string
	fset   *token.FileSet
	imp    types.Importer
	parsed map[string]*ast.File // as they are on the disk
}

// newChecker reads the packages of the module at root, and of modules below it.
func newChecker(ctx context.Context, root string, modules ...string) (*checker, error) {
	files := map[string]string{}
	for _, module := range append([]string{""}, modules...) {
		list := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", "./...")
		list.Dir, list.Stderr, list.Env = filepath.Join(root, module), os.Stderr, append(os.Environ(), "GOWORK=off")
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("list the packages: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			pkg, file, _ := strings.Cut(strings.TrimSpace(line), "=")
			files[pkg] = file
		}
	}
	c := &checker{root: root, fset: token.NewFileSet(), parsed: map[string]*ast.File{}}
	c.imp = importer.ForCompiler(c.fset, "gc", func(pkg string) (io.ReadCloser, error) { return os.Open(files[pkg]) })
	return c, nil
}

// check returns the first error of a package in which some files have other texts.
func (c *checker) check(dir string, texts map[string]string) error {
	pkg, err := build.ImportDir(filepath.Join(c.root, dir), 0)
	if err != nil {
		return err
	}
	var files []*ast.File
	for _, name := range pkg.GoFiles {
		path := filepath.Join(dir, name)
		file := c.parsed[path]
		text, changed := texts[path]
		switch {
		case changed:
			file, err = parser.ParseFile(c.fset, filepath.Join(c.root, path), text, parser.SkipObjectResolution)
		case file == nil:
			file, err = parser.ParseFile(c.fset, filepath.Join(c.root, path), nil, parser.SkipObjectResolution)
			c.parsed[path] = file
		}
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	_, err = (&types.Config{Importer: c.imp}).Check("github.com/outboxcdc/outboxcdc/"+dir, c.fset, files, nil)
	return err
}

// parses returns the error of a file of deploy/ that would fail every test: such a mutant proves nothing.
func parses(file, text string) error {
	switch filepath.Ext(file) {
	case ".json":
		return json.Unmarshal([]byte(text), new(any))
	case ".service", ".timer":
		return nil
	}
	if filepath.Base(filepath.Dir(file)) != "templates" {
		return yaml.Unmarshal([]byte(text), new(any))
	}
	tree := parse.New(file)
	tree.Mode = parse.SkipFuncCheck
	_, err := tree.Parse(text, "", "", map[string]*parse.Tree{})
	return err
}
