package main

import (
	"bytes"
	"encoding/json"
	"path"
	"strings"
)

// outcome is the result of one go test.
type outcome struct {
	passed  int    // number of tests
	failed  string // package.Test of the first that failed, the innermost subtest
	ended   string // "timeout" or "panic", if the run ended with one
	broken  bool   // the package failed
	unbuilt string // the compiler's messages
	output  string // of the failed test, shortened
}

// most is how much output is worth showing.
const most = 3000

// read parses the output of go test -json (go doc test2json).
func read(out []byte) outcome {
	var o outcome
	said := map[string]*strings.Builder{} // by test, "" for the package
	for line := range bytes.Lines(out) {
		var e struct{ Action, Package, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch e.Action {
		case "build-output":
			o.unbuilt += e.Output
		case "build-fail":
			o.unbuilt += "\n"
		case "output":
			if said[e.Test] == nil {
				said[e.Test] = &strings.Builder{}
			}
			said[e.Test].WriteString(e.Output)
			// Test logs are indented; only the runtime begins a line like this.
			switch {
			case strings.HasPrefix(e.Output, "panic: test timed out after"):
				o.ended = "timeout"
			case o.ended == "timeout" && o.failed == "" && strings.HasPrefix(e.Output, "\t\tTest"): // running then; it has no event
				name, _, _ := strings.Cut(strings.TrimSpace(e.Output), " ")
				o.failed = path.Base(e.Package) + "." + name
			case o.ended == "" && (strings.HasPrefix(e.Output, "panic: ") || strings.HasPrefix(e.Output, "fatal error: ")):
				o.ended = "panic"
			}
		case "pass":
			if e.Test != "" {
				o.passed++
			}
		case "fail":
			if e.Test == "" {
				o.broken = true
			} else if o.failed == "" {
				o.failed = path.Base(e.Package) + "." + e.Test
			}
			if o.output == "" && said[e.Test] != nil {
				text := said[e.Test].String()
				o.output = text[:min(len(text), most)]
			}
		}
	}
	return o
}
