package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// `testrun prove -sink rabbitmq` runs, in full length, the tests that docs/sinks.md names for what it promises of a
// sink. `make prove SINK=rabbitmq` calls it. It writes nothing. Its exit status is 1 if a test failed or was skipped,
// or if there is no such test.

const sinksPage = "docs/sinks.md"

// sinkFolders are the folders with tests of a sink: its own, that of what all sinks but Kafka share, and that of real
// servers.
func sinkFolders(sink string) []string {
	own := "sink/" + sink
	if sink == "sqs" {
		own = "sink/aws"
	}
	return []string{own, "sink/lane", "test/integration"}
}

var testInCode = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")

// promised returns the tests that the page's table of promises names, by sink.
func promised(page string) (map[string][]string, error) {
	_, section, found := strings.Cut(page, "\n## What is promised\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var sinks []string
	tests := map[string][]string{}
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		cells := strings.Split(strings.Trim(line, "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			if len(sinks) > 0 { // after the table
				return tests, nil
			}
			continue
		case sinks == nil:
			for _, c := range cells[1:] {
				sinks = append(sinks, strings.Trim(c, " `"))
			}
			continue
		case len(cells) != len(sinks)+1:
			return nil, fmt.Errorf("%d cells, not %d: %.80s", len(cells), len(sinks)+1, line)
		}
		for i, c := range cells[1:] {
			for _, m := range testInCode.FindAllStringSubmatch(c, -1) {
				if !slices.Contains(tests[sinks[i]], m[1]) {
					tests[sinks[i]] = append(tests[sinks[i]], m[1])
				}
			}
		}
	}
	if !found || len(tests) == 0 {
		return nil, errors.New("no table of promises")
	}
	return tests, nil
}

// testsOfSink returns the tests of a sink by folder. A name that several of its folders have means each of these tests.
func testsOfSink(root, sink string) (map[string][]string, error) {
	page, err := os.ReadFile(filepath.Join(root, sinksPage))
	if err != nil {
		return nil, err
	}
	all, err := promised(string(page))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sinksPage, err)
	}
	names, is := all[sink]
	if !is {
		return nil, fmt.Errorf("there is no sink %q; %s has %s", sink, sinksPage, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	folders := map[string][]string{}
	for _, folder := range sinkFolders(sink) {
		files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		var text strings.Builder
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			text.Write(b)
		}
		for _, name := range names {
			if strings.Contains(text.String(), "\nfunc "+name+"(") {
				folders[folder] = append(folders[folder], name)
			}
		}
	}
	found := slices.Concat(slices.Collect(maps.Values(folders))...)
	if missing := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(found, name) }); len(missing) > 0 {
		return nil, fmt.Errorf("%s names tests of %s that do not exist in %s: %s",
			sinksPage, sink, strings.Join(sinkFolders(sink), ", "), strings.Join(missing, ", "))
	}
	return folders, nil
}

// promises runs the tests of a sink, one folder after the other, and prints what became of each.
func (p *prover) promises(ctx context.Context) error {
	folders, err := testsOfSink(".", p.sink)
	if err != nil {
		return err
	}
	var l lane
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		run := "^(" + strings.Join(folders[folder], "|") + ")$"
		l = append(l, stage{name: folder, env: p.env(), args: goTest("-count=1", "-timeout", "90m", "-parallel", "6", "-run", run, "./"+folder)})
	}
	r := newReport(p.out, 10)
	ok := plan{l}.run(ctx, r)
	return judge(folders, r, ok)
}

// judge prints what became of each test, and fails unless all have passed.
func judge(folders map[string][]string, r *report, ok bool) error {
	unproved := 0
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		for _, name := range folders[folder] {
			ended := "not run"
			if i := slices.IndexFunc(r.done, func(t *result) bool { return shortName(t.pkg) == folder && t.name == name }); i >= 0 {
				ended = map[string]string{"pass": "passed", "fail": "FAILED", "skip": "SKIPPED"}[r.done[i].ended]
			}
			if ended != "passed" {
				unproved++
			}
			r.printf("%-8s %s %s\n", ended, folder, name)
		}
	}
	if unproved > 0 || !ok {
		return fmt.Errorf("%d tests have not passed", unproved)
	}
	return nil
}
