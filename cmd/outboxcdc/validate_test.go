package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// commandLine runs a command line and returns its output.
func commandLine(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestValidate checks that validate reports all errors, one on each line, including contradictions of route settings,
// with exit code 78.
func TestValidate(t *testing.T) {
	good := writeFile(t, "good.yaml", "kafka: {brokers: ['never.invalid:1']}\npostgres: {url: 'postgres://u:s3cr3t@never.invalid/d'}\n")
	if code, out, errs := commandLine(t, "config", "validate", "-c", good); code != 0 || !strings.Contains(out, "valid ("+good+")") || errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	code, out, _ := commandLine(t, "config", "validate", "-c", good, "-o", "json", "--set", "log.level=debug")
	if want := `{"valid":true,"files":["` + good + `"],"errors":[]}`; code != 0 || compact(t, out) != want {
		t.Errorf("%d %s", code, out)
	}

	bad := writeFile(t, "bad.yaml", "postgres: {slot: A, url: s3cr3t}\nlog: {level: loud}\nroute: {topic: '', unmatched: 'a b', replace: {regex: '('}}\n")
	want := []string{
		bad + ":2:14: log.level: \"loud\" is unknown",
		bad + ":1:18: postgres.slot: ", bad + ":1:26: postgres.url: the value (not shown)",
		bad + ":3:31: route.unmatched: ", bad + ":3:55: route.replace.regex: ",
	}
	code, out, errs := commandLine(t, "config", "validate", "-c", bad)
	lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n")
	if code != 78 || out != "" || len(lines) != len(want) {
		t.Fatalf("%d %q\n%s", code, out, errs)
	}
	for _, w := range want {
		if !strings.Contains(errs, w) {
			t.Errorf("%s is not said:\n%s", w, errs)
		}
	}
	code, out, errs = commandLine(t, "config", "validate", "-c", bad, "-o", "json")
	var said struct {
		Valid  bool
		Errors []problemJSON
	}
	if err := json.Unmarshal([]byte(out), &said); err != nil || code != 78 || errs != "" || said.Valid || len(said.Errors) != len(want) {
		t.Errorf("%v %d %s%s", err, code, out, errs)
	}
	// One topic needs no aggregate type, and a key of its own no aggregate id.
	one := writeFile(t, "one.yaml", "outbox: {columns: {aggregate_type: '', aggregate_id: ''}}\nroute: {topic: orders, key: '{tenant}'}\n")
	if code, _, errs := commandLine(t, "config", "validate", "-c", one); code != 0 {
		t.Errorf("%d %s", code, errs)
	}
	for set, want := range map[string]string{"route.key=": one + ":1:54: outbox.columns.aggregate_id: a column is required", "route.topics=a=b": one + ":1:36: outbox.columns.aggregate_type: a column is required"} {
		if code, _, errs := commandLine(t, "config", "validate", "-c", one, "--set", set); code != 78 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", set, code, errs)
		}
	}
	// Contradictions are found without other errors as well.
	if code, _, errs := commandLine(t, "config", "validate", "--set", "route.replace.regex=("); code != 78 || !strings.Contains(errs, "--set: route.replace.regex: ") {
		t.Errorf("%d %s", code, errs)
	}
	for _, args := range [][]string{{"config", "validate", "-c", "/nope.yaml"}, {"config", "validate", "--set", "x"}} {
		if code, _, errs := commandLine(t, args...); code != 78 || errs == "" {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
	if code, _, _ := commandLine(t, "config", "validate", "-o", "xml"); code != 2 {
		t.Errorf("-o xml: %d", code)
	}
}

// TestNoEventsToPositionTopic checks that a setting that routes events or dead letters to the position topic is refused
// before any connection is opened.
func TestNoEventsToPositionTopic(t *testing.T) {
	file := writeFile(t, "a.yaml", `
kafka: {brokers: ['never.invalid:1']}
postgres: {url: 'postgres://u:p@never.invalid/d'}
delivery: {position_topic: pos}
outboxes:
  - {table: public.a, route: {topic: '{aggregate_type}'}}
  - {table: public.b, route: {topic: pos}}
`)
	for want, set := range map[string][]string{
		file + ":7:38: outboxes[1].route.topic: the topic \"pos\" takes no events": nil,
		"--set: poison.topic: \"pos\" cannot be the dead-letter topic":             {"--set", "poison.topic=pos"},
	} {
		for _, verb := range [][]string{{"config", "validate"}, {"run"}} {
			if code, _, errs := commandLine(t, slices.Concat(verb, []string{"-c", file}, set)...); code != 78 || !strings.Contains(errs, want) {
				t.Errorf("%s: exit %d, want 78 and %s:\n%s", verb, code, want, errs)
			}
		}
	}
}

func compact(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return b.String()
}

// TestConfigPrint checks that config print shows origins, and that its output loads again with the same settings except
// for secrets.
func TestConfigPrint(t *testing.T) {
	file := writeFile(t, "a.yaml", "preset: debezium\npostgres: {url: 'postgres://u:s3cr3t@h/d'}\nkafka: {sasl: {mechanism: PLAIN, user: u, password: s3cr3t}}\n")
	t.Setenv("OUTBOXCDC_POSTGRES_SLOT", "relay")
	code, out, errs := commandLine(t, "config", "print", "--origin", "-c", file, "--set", "log.level=debug")
	if code != 0 || errs != "" || strings.Contains(out, "s3cr3t") {
		t.Fatalf("%d\n%s%s", code, out, errs)
	}
	for setting, origin := range map[string]string{
		"\n  url: \"postgres://u:xxxxx@h/d\"": file + ":2:17", "\n    password: \"xxxxx\"": file + ":3:53", "\n  slot: \"relay\"": "OUTBOXCDC_POSTGRES_SLOT",
		"\n  level: \"debug\"": "--set", "\n  unmatched: \"keep\"": "preset: debezium", "\nshutdown_timeout: 30s": "default",
	} {
		_, rest, ok := strings.Cut(out, setting)
		line, _, _ := strings.Cut(rest, "\n")
		if !ok || strings.TrimSpace(line) != "# "+origin {
			t.Errorf("%s: %q, want %s\n%s", setting, line, origin, out)
		}
	}
	plain := func(args ...string) string {
		_, out, _ := commandLine(t, append([]string{"config", "print"}, args...)...)
		return out
	}
	if first := plain("-c", file); plain("-c", writeFile(t, "again.yaml", first)) != first || strings.Contains(first, "#") {
		t.Errorf("does not load to the same:\n%s", first)
	}
	var list []settingJSON
	if err := json.Unmarshal([]byte(plain("-c", file, "-o", "json", "--origin")), &list); err != nil || len(list) != len(config.Default().Settings()) {
		t.Errorf("%v: %d settings", err, len(list))
	}
	for _, s := range list {
		if s.Setting == "postgres.slot" && (s.Value != "relay" || s.Origin != "OUTBOXCDC_POSTGRES_SLOT") || s.Setting == "shutdown_timeout" && s.Value != "30s" {
			t.Errorf("%+v", s)
		}
	}
}

func TestConfigInit(t *testing.T) {
	_, sample, _ := commandLine(t, "config", "init")
	if code, _, errs := commandLine(t, "config", "validate", "-c", writeFile(t, "a.yaml", sample)); code != 0 || sample != config.Sample() {
		t.Errorf("the sample: %d %s", code, errs)
	}
}
