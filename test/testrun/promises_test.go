package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const promisesOfTest = "# Sinks\n\n| not | this |\n| --- | --- |\n| `TestNot` | |\n\n## What is promised\n\nA cell.\n\n" +
	"| | `kafka` | `rabbitmq` |\n| --- | --- | --- |\n| order | (`TestA`, `TestB`) | [x](#y) (`TestC`): `amqp` |\n| loss | yes (`TestA`) | `TestD` kills |\n\n" +
	"(`TestRates`)\n\n| | `kafka` |\n| --- | --- |\n| `TestNeither` | 1 |\n\n## Next\n\n| `TestNor` | |\n"

func TestPromised(t *testing.T) {
	got, err := promised(promisesOfTest)
	if err != nil || len(got) != 2 || !slices.Equal(got["kafka"], []string{"TestA", "TestB"}) || !slices.Equal(got["rabbitmq"], []string{"TestC", "TestD"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, page := range []string{
		"", "## What is promised\n", "\n## What is promised\n\n## Next\n\n| | `kafka` |\n| --- | --- |\n| a | `TestA` |\n",
		strings.Replace(promisesOfTest, "(`TestA`, `TestB`) |", "(`TestA`) | | |", 1),
	} {
		if got, err := promised(page); err == nil {
			t.Errorf("%q: %v", page, got)
		}
	}
}

// TestPromisesHaveTests: each test that docs/sinks.md names for a sink exists where `make prove SINK=…` looks for it.
func TestPromisesHaveTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("../..", sinksPage))
	if err != nil {
		t.Fatal(err)
	}
	all, err := promised(string(page))
	if err != nil || len(all) != 6 {
		t.Fatalf("%d sinks, %v", len(all), err)
	}
	for sink, names := range all {
		folders, err := testsOfSink("../..", sink)
		if err != nil {
			t.Error(err)
		}
		if len(names) < 3 || len(folders["test/integration"]) == 0 || len(folders[sinkFolders(sink)[0]]) == 0 {
			t.Errorf("%s has the tests %v", sink, folders)
		}
	}
}

func TestTestsOfSink(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(sinksPage, promisesOfTest)
	write("sink/rabbitmq/a_test.go", "package a\n\nfunc TestC(t *testing.T) {}\n")
	write("sink/redis/a_test.go", "package a\n\nfunc TestD(t *testing.T) {}\n")
	write("test/integration/a_test.go", "package a\n\nfunc TestDs(t *testing.T) {}\n")
	if _, err := testsOfSink(root, "rabbitmq"); err == nil || !strings.Contains(err.Error(), "do not exist in sink/rabbitmq, sink/lane, test/integration: TestD") {
		t.Errorf("a test that does not exist: %v", err)
	}
	write("test/integration/b_test.go", "package a\n\nfunc TestD(t *testing.T) {}\n\nfunc TestC(t *testing.T) {}\n")
	folders, err := testsOfSink(root, "rabbitmq")
	if err != nil || !slices.Equal(folders["sink/rabbitmq"], []string{"TestC"}) || !slices.Equal(folders["test/integration"], []string{"TestC", "TestD"}) {
		t.Errorf("%v, %v", folders, err)
	}
	if _, err := testsOfSink(root, "redis"); err == nil || !strings.Contains(err.Error(), `no sink "redis"; docs/sinks.md has kafka, rabbitmq`) {
		t.Errorf("a sink that is not in the table: %v", err)
	}
}

// TestJudge: a sink is proved if each of its tests ran and has passed.
func TestJudge(t *testing.T) {
	folders := map[string][]string{"sink/lane": {"TestA"}, "test/integration": {"TestB", "TestC"}}
	events := func(ends ...string) string {
		var b strings.Builder
		for i, end := range ends {
			test := []string{"sink/lane\",\"Test\":\"TestA", "test/integration\",\"Test\":\"TestB", "test/integration\",\"Test\":\"TestC", "sink/redis\",\"Test\":\"TestC"}[i]
			if end != "" {
				b.WriteString(`{"Action":"` + end + `","Package":"github.com/outboxcdc/outboxcdc/` + test + "\"}\n")
			}
		}
		for _, pkg := range []string{"sink/lane", "test/integration", "sink/redis"} {
			b.WriteString(`{"Action":"pass","Package":"github.com/outboxcdc/outboxcdc/` + pkg + "\"}\n")
		}
		return b.String()
	}
	for _, test := range []struct {
		ends []string
		want string // of the output; "" : all is well
	}{
		{[]string{"pass", "pass", "pass"}, ""},
		{[]string{"pass", "fail", "pass"}, "FAILED   test/integration TestB\npassed   test/integration TestC"},
		{[]string{"skip", "pass", "pass"}, "SKIPPED  sink/lane TestA\n"},
		{[]string{"pass", "pass", "", "pass"}, "not run  test/integration TestC\n"},
	} {
		var out bytes.Buffer
		r := newReport(&out, 0)
		ok := follow(strings.NewReader(events(test.ends...)), r)
		if err := judge(folders, r, ok); (err != nil) != (test.want != "") || !strings.Contains(out.String(), test.want) {
			t.Errorf("%v: %v\n%s", test.ends, err, out.String())
		}
	}
	r := newReport(&bytes.Buffer{}, 0)
	follow(strings.NewReader(events("pass", "pass", "pass")), r)
	if judge(folders, r, false) == nil {
		t.Error("a run that failed otherwise is taken for a proof")
	}
}
