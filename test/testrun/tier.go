package main

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
)

// tier says which tests of a package run. What -skip of go test leaves out for one tier is what -run chooses for the
// other, so nothing falls between them.
type tier int

const (
	all   tier = iota
	quick      // `make test`
	rest       // `make test-rest`: what quick leaves out
)

//go:embed tiers.txt
var tiersText string

// choice is what tiers.txt says about a package.
type choice struct {
	only     bool // patterns are the tests of quick, and all others are those of rest; else the other way round
	whole    bool // the package is one of rest
	short    bool // so is this one, and quick runs all of it with -short
	patterns []string
}

// choices returns what tiers.txt says, by package.
func choices() map[string]choice {
	out := map[string]choice{}
	for line := range strings.Lines(tiersText) {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		c := out[f[1]]
		if f[2] == "*" {
			c.whole, c.short = true, f[0] == "short"
		} else {
			c.only, c.patterns = f[0] == "test", append(c.patterns, f[2:]...)
		}
		out[f[1]] = c
	}
	return out
}

// expected is a pattern that has to choose a test.
type expected struct{ pkg, pattern string }

// expected returns the patterns that the tier's -run consists of.
func (t tier) expected() (out []expected) {
	for pkg, c := range choices() {
		for _, p := range c.patterns {
			if t != all && (t == quick) == c.only {
				out = append(out, expected{pkg, p})
			}
		}
	}
	return out
}

// fits reports whether a test, or a subtest, is one that the pattern chooses, as -run of go test does it.
func (e expected) fits(pkg, test string) bool {
	names, patterns := strings.Split(test, "/"), strings.Split(e.pattern, "/")
	if e.pkg != pkg || len(names) < len(patterns) {
		return false
	}
	for i, p := range patterns {
		if ok, err := regexp.MatchString(p, names[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// flags returns the flags of go test that choose the tier's tests in some packages, of which tiers.txt must say the
// same kind.
func (t tier) flags(pkgs ...string) []string {
	var patterns []string
	var only bool
	for pkg, c := range choices() {
		if slices.Contains(pkgs, pkg) {
			patterns, only = append(patterns, c.patterns...), c.only
		}
	}
	if t == all || len(patterns) == 0 {
		return nil
	}
	slices.Sort(patterns)
	joined := strings.Join(patterns, "|")
	if (t == quick) == only {
		return []string{"-run", joined}
	}
	return []string{"-skip", joined}
}

// has reports whether the tier has tests of a package.
func (t tier) has(pkg string) bool {
	c, named := choices()[pkg]
	switch t {
	case quick:
		return !c.whole || c.short
	case rest:
		return named
	}
	return true
}
