package helm

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// What `setup sql --shards` prints for the chart becomes the pods of a StatefulSet, and each pod, and the CronJobs of
// each, have the settings that the command prints for that daemon.
func TestShards(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "outboxcdc")
	build := exec.Command("go", "build", "-o", binary, "./cmd/outboxcdc")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const settings = "config: {outbox: {columns: {headers: meta}}, kafka: {brokers: [kafka-1:9092]}, poison: {on_stop: hold}, route: {topic: 'a.{aggregate_type}'}}\n"
	for _, shards := range []int{1, 3, 16} {
		daemons, values := printed(t, binary, shards)
		if len(daemons) != shards {
			t.Fatalf("%d daemons: %v", shards, daemons)
		}
		given := settings + values + "audit: {enabled: true, metricsVolume: {persistentVolumeClaim: {claimName: a}}}\nretention: {enabled: true, secret: {name: owner}}\n"
		objects := mustRender(t, given)
		set := read[apps.StatefulSet](t, objects, "StatefulSet")
		c := set.Spec.Template.Spec.Containers[0]
		if int(*set.Spec.Replicas) != shards || objects["Deployment"] != "" || set.Spec.ServiceName != read[core.Service](t, objects, "Service").Name || c.Env[0].ValueFrom.FieldRef.FieldPath != "metadata.name" {
			t.Errorf("%+v", set.Spec)
		}
		files := read[core.ConfigMap](t, objects, "ConfigMap").Data
		if len(files) != shards {
			t.Errorf("%d files", len(files))
		}
		for n, daemon := range daemons {
			pod := fmt.Sprintf("%s-%d", set.Name, n)
			name := strings.ReplaceAll(filepath.Base(c.Args[2]), "$("+c.Env[0].Name+")", pod)
			path := filepath.Join(t.TempDir(), name)
			write(t, path, files[name])
			own := filepath.Join(t.TempDir(), "own.yaml")
			write(t, own, daemon)
			base := filepath.Join(t.TempDir(), "base.yaml")
			var config struct{ Config any }
			if err := yaml.Unmarshal([]byte(settings), &config); err != nil {
				t.Fatal(err)
			}
			text, _ := yaml.Marshal(config.Config)
			write(t, base, string(text))
			run(t, binary, "config", "validate", "-c", path)
			if is, want := effective(t, binary, "-c", path), effective(t, binary, "-c", base, "-c", own); !reflect.DeepEqual(is, want) {
				t.Errorf("daemon %d of %d has %v, want %v", n, shards, is, want)
			}
			audit := read[batch.CronJob](t, objects, fmt.Sprint("CronJob audit-", n)).Spec.JobTemplate.Spec.Template.Spec.Containers[0]
			if got := strings.Join(audit.Args, " "); !strings.HasPrefix(got, "audit -c /etc/outboxcdc/"+name+" --metrics /run/textfile/prod-"+pod+".prom") {
				t.Error(got)
			}
			retain := read[batch.CronJob](t, objects, fmt.Sprint("CronJob retain-", n)).Spec.JobTemplate.Spec.Template.Spec.Containers[0]
			if got := strings.Join(retain.Args, " "); got != "retain -c /etc/outboxcdc/"+name {
				t.Error(got)
			}
			if !strings.Contains(objects["notes"], fmt.Sprintf("slot outboxcdc_%d_of_%d.", n, shards)) {
				t.Error(objects["notes"])
			}
		}
		parsed, err := chartutil.ReadValues([]byte(given))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.AllWithKubeVersion(chartDir, parsed, "prod", nil).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", m.Path, m.Err)
			}
		}
	}
	_, values := printed(t, binary, 2)
	if _, err := render(t, values+"standby: true\n"); err == nil || !strings.Contains(err.Error(), "standby: true and shards") {
		t.Errorf("%v", err)
	}
	// What two daemons must not share.
	for _, c := range []struct{ was, is, words string }{
		{"slot: 'outboxcdc_1_of_2'", "slot: 'outboxcdc_0_of_2'", "slot outboxcdc_0_of_2 is in two"},
		{"publication: 'outboxcdc_1_of_2'", "publication: 'outboxcdc_0_of_2'", "publication outboxcdc_0_of_2 is in two"},
		{`'"public"."outbox_3"'`, `public.outbox_2`, "table public.outbox_2 is in two"},
		{"shards:", "extraEnv: [{name: OUTBOXCDC_POSTGRES_SLOT, value: a}]\nshards:", "OUTBOXCDC_POSTGRES_SLOT would be that of every pod"},
	} {
		if _, err := render(t, strings.Replace(values, c.was, c.is, 1)); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.is, err)
		}
	}
	for _, shard := range []string{"{outboxes: [{table: a}]}", "{postgres: {slot: a, publication: a}}", "{postgres: {slot: a, publication: a, url: b}, outboxes: [{table: a}]}"} {
		if _, err := render(t, "shards: ["+shard+"]"); err == nil {
			t.Errorf("taken: %s", shard)
		}
	}
}

// printed returns the settings of each daemon, and the chart's values, as `setup sql --shards` prints them.
func printed(t *testing.T, binary string, shards int) (daemons []string, values string) {
	t.Helper()
	comments := func(text string) (yaml string) {
		for _, line := range strings.Split(text, "\n")[1:] {
			line, is := strings.CutPrefix(line, "-- ")
			if !is {
				break
			}
			yaml += line + "\n"
		}
		return yaml
	}
	text, chart, _ := strings.Cut(run(t, binary, "setup", "sql", "--shards", fmt.Sprint(shards)), "\n-- The same for the Helm chart:")
	for _, daemon := range strings.Split(text, "\n-- Daemon ")[1:] {
		daemons = append(daemons, comments(daemon))
	}
	return daemons, comments(chart)
}

// effective are the settings that the daemon has with these arguments.
func effective(t *testing.T, binary string, args ...string) (settings any) {
	t.Helper()
	if err := json.Unmarshal([]byte(run(t, binary, append([]string{"config", "print", "-o", "json"}, args...)...)), &settings); err != nil {
		t.Fatal(err)
	}
	return settings
}

func run(t *testing.T, binary string, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "OUTBOXCDC_POSTGRES_URL=postgres://a@localhost/a")
	var failure strings.Builder
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s%s", args, err, out, failure.String())
	}
	return string(out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
