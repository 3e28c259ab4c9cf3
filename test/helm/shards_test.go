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

// What `setup sql --shards` prints for the chart becomes the pods of a StatefulSet, and each pod, and the CronJobs
// of each, have the settings that the command prints for that daemon.
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
}

// shards are three daemons. The first has a broker of its own; config has a slot that is of no daemon.
const shards = `config: {postgres: {slot: none, publication: none}, kafka: {brokers: ["all:9092"]}}
shards:
  - {postgres: {slot: s0, publication: p0}, outboxes: [{table: public.o0}], kafka: {brokers: ["own:9092"]}}
  - {postgres: {slot: s1, publication: p1}, outboxes: [{table: public.o1}, {table: '"public"."o2"'}]}
  - {postgres: {slot: s2, publication: p2}, outboxes: [{table: public.o3}]}
`

// Each shard has a pod, which waits for no other one and has the settings of its shard: they win over the shared
// ones, and no other shard has them.
func TestPodsOfShards(t *testing.T) {
	objects := mustRender(t, shards)
	set := read[apps.StatefulSet](t, objects, "StatefulSet")
	if *set.Spec.Replicas != 3 || set.Spec.PodManagementPolicy != apps.ParallelPodManagement {
		t.Errorf("%d pods, %s", *set.Spec.Replicas, set.Spec.PodManagementPolicy)
	}
	c := set.Spec.Template.Spec.Containers[0]
	for n, broker := range []string{"own:9092", "all:9092", "all:9092"} {
		pod := fmt.Sprintf("%s-%d", set.Name, n)
		file := strings.ReplaceAll(filepath.Base(c.Args[2]), "$("+c.Env[0].Name+")", pod)
		var settings struct {
			Postgres struct{ Slot, Publication string }
			Kafka    struct{ Brokers []string }
			Outboxes []struct{ Table string }
		}
		if err := yaml.Unmarshal([]byte(read[core.ConfigMap](t, objects, "ConfigMap").Data[file]), &settings); err != nil {
			t.Fatal(err)
		}
		if p := settings.Postgres; p.Slot != fmt.Sprint("s", n) || p.Publication != fmt.Sprint("p", n) || len(settings.Outboxes) != 1+n%2 {
			t.Errorf("pod %d has %+v", n, settings)
		}
		if k := settings.Kafka.Brokers; len(k) != 1 || k[0] != broker {
			t.Errorf("pod %d sends to %v", n, k)
		}
	}
}

// What two daemons must not share is refused, and so is a daemon that would have a default of the product.
func TestShardsRefused(t *testing.T) {
	for _, c := range []struct{ was, is, words string }{
		{"slot: s1", "slot: s0", "slot s0 is in two"},
		{"publication: p1", "publication: p0", "publication p0 is in two"},
		{"table: public.o3", "table: public.o0", "table public.o0 is in two"},
		{"table: public.o3", "table: public.o2", "table public.o2 is in two"},
		{"slot: s1, ", "", "missing property 'slot'"},
		{", publication: p1", "", "missing property 'publication'"},
		{"postgres: {slot: s1, publication: p1}, ", "", "missing property 'postgres'"},
		{", outboxes: [{table: public.o3}]", "", "missing property 'outboxes'"},
		{"outboxes: [{table: public.o3}]", "outboxes: []", "minItems: got 0"},
		{"slot: s1", "url: b, slot: s1", "url"},
		{"shards:", "fullnameOverride: " + strings.Repeat("a", 53) + "\nshards:", "has more than 52 characters"},
		{"shards:", "standby: true\nshards:", "standby: true and shards"},
		{"shards:", "extraEnv: [{name: OUTBOXCDC_POSTGRES_SLOT, value: a}]\nshards:", "OUTBOXCDC_POSTGRES_SLOT would be that of every pod"},
		{"shards:", "extraEnv: [{name: OUTBOXCDC_POSTGRES_PUBLICATION, value: a}]\nshards:", "OUTBOXCDC_POSTGRES_PUBLICATION would be that of every pod"},
	} {
		if _, err := render(t, strings.Replace(shards, c.was, c.is, 1)); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q: %v", c.is, err)
		}
	}
}

// The longest name that a StatefulSet's pods can have as labels: the controller appends at most 11 characters.
func TestLongNameOfShards(t *testing.T) {
	name := strings.Repeat("a", 52)
	if set := read[apps.StatefulSet](t, mustRender(t, "fullnameOverride: "+name+"\n"+shards), "StatefulSet"); set.Name != name {
		t.Error(set.Name)
	}
}

// A pod reads its file once, so a change of config, or of shards, has to end it.
func TestChangedSettingsReachPods(t *testing.T) {
	sum := func(values string) string {
		objects := mustRender(t, values)
		if objects["Deployment"] != "" {
			return read[apps.Deployment](t, objects, "Deployment").Spec.Template.Annotations["checksum/config"]
		}
		return read[apps.StatefulSet](t, objects, "StatefulSet").Spec.Template.Annotations["checksum/config"]
	}
	for _, c := range []struct{ values, was, is string }{
		{"config: {postgres: {slot: a}}", "slot: a", "slot: b"}, {shards, "all:9092", "all:9093"}, {shards, "slot: s2", "slot: s4"},
	} {
		if sum(c.values) == sum(strings.Replace(c.values, c.was, c.is, 1)) {
			t.Errorf("%s reaches no running pod", c.is)
		}
	}
}

// The drain is as long as the value says, and the kubelet waits for its end.
func TestDrain(t *testing.T) {
	pod := read[apps.Deployment](t, mustRender(t, "shutdownTimeoutSeconds: 300"), "Deployment").Spec.Template.Spec
	if !hasVariable(&pod.Containers[0], core.EnvVar{Name: "OUTBOXCDC_SHUTDOWN_TIMEOUT", Value: "300s"}) || *pod.TerminationGracePeriodSeconds < 310 {
		t.Errorf("%d s of grace, %+v", *pod.TerminationGracePeriodSeconds, pod.Containers[0].Env)
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
