// Package helm tests the chart in deploy/helm: it is rendered and linted as helm does, and decoded into Kubernetes' own
// types, which refuse unknown fields. It is a module of its own, so that the product's go.mod does not list what only
// this test needs.
package helm

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// chartDir is the chart, or the copy with a wrong rule that test/mutants makes of deploy/.
var chartDir = filepath.Join(cmp.Or(os.Getenv("OUTBOXCDC_TEST_DEPLOY"), "../../deploy"), "helm/outboxcdc")

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// repository is the image's repository, which has no default.
const repository = "registry.example.com/outboxcdc"

// render returns the chart's objects by kind, and its CronJobs by "CronJob" and their command, for a release called
// "shop". values without an image.repository get one.
func render(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	image, _ := given["image"].(map[string]any)
	if image == nil {
		image = map[string]any{}
		given["image"] = image
	}
	if _, set := image["repository"]; !set {
		image["repository"] = repository
	}
	c := load(t)
	options := chartutil.ReleaseOptions{Name: "shop", Namespace: "prod", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, given, options, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	objects := map[string]string{}
	for name, file := range files {
		if filepath.Ext(name) == ".txt" {
			objects["notes"] = file
			continue
		}
		for text := range strings.SplitSeq(file, "\n---\n") {
			add(t, objects, name, text)
		}
	}
	return objects, nil
}

// add adds an object that a file has, if it has one.
func add(t *testing.T, objects map[string]string, name, text string) {
	t.Helper()
	if strings.TrimSpace(text) == "" {
		return
	}
	var is struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := yaml.Unmarshal([]byte(text), &is); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	kind := is.Kind
	if kind == "CronJob" {
		_, command, _ := strings.Cut(is.Metadata.Name, "shop-outboxcdc-")
		kind += " " + command
	}
	if objects[kind] != "" {
		t.Errorf("two of kind %s", kind)
	}
	objects[kind] = text
}

func mustRender(t *testing.T, values string) map[string]string {
	t.Helper()
	objects, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// read decodes an object of a kind that Kubernetes has, and refuses unknown fields.
func read[T any](t *testing.T, objects map[string]string, kind string) *T {
	t.Helper()
	out := new(T)
	if objects[kind] == "" {
		t.Fatalf("no %s", kind)
	}
	if err := yaml.UnmarshalStrict([]byte(objects[kind]), out); err != nil {
		t.Fatalf("%s: %v\n%s", kind, err, objects[kind])
	}
	return out
}

func kinds(objects map[string]string) string {
	var all []string
	for k := range objects {
		if k != "notes" {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

const everything = `
standby: true
config: {postgres: {slot: orders}, kafka: {brokers: [kafka-1:9092, kafka-2:9092]}}
secretFiles:
  - {setting: postgres.url_file, secret: db, key: url}
  - {setting: kafka.sasl.password_file, secret: kafka, key: password}
http: {scheme: HTTPS, probeHeaders: [{name: Authorization, value: Basic eDp5}]}
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
imagePullSecrets: [{name: pull}]
extraEnv: [{name: GOMEMLIMIT, value: 200MiB}]
extraVolumes: [{name: web, secret: {secretName: web}}]
extraVolumeMounts: [{name: web, mountPath: /run/web, readOnly: true}]
podAnnotations: {a: b}
podLabels: {c: d}
nodeSelector: {e: f}
tolerations: [{operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
priorityClassName: high
serviceAccount: {annotations: {g: h}}
serviceMonitor: {enabled: true, labels: {team: x}, tlsConfig: {insecureSkipVerify: true}, basicAuth: {username: {name: a, key: b}}}
prometheusRule: {enabled: true, labels: {team: x}}
audit:
  enabled: true
  schedule: "5 */6 * * *"
  timeZone: Etc/UTC
  args: [--since, 8h, --deep]
  metricsVolume: {hostPath: {path: /var/lib/node_exporter, type: Directory}}
  nodeSelector: {kubernetes.io/hostname: node-1}
retention:
  enabled: true
  secret: {name: owner, key: dsn}
  args: [--despite-slot, other]
  image: registry.example.com/archiver:1
  env: [{name: AWS_REGION, value: eu-1}]
  serviceAccount: archiver
  metricsVolume: {hostPath: {path: /var/lib/node_exporter, type: Directory}}
networkPolicy:
  enabled: true
  from: [{namespaceSelector: {matchLabels: {name: monitoring}}}]
  postgres: {to: [{ipBlock: {cidr: 10.0.0.0/8}}], port: 5432}
  extraEgress: [{ports: [{port: 443, protocol: TCP}]}]
`

// helm lint reports nothing, with the default values and with all values set.
func TestLint(t *testing.T) {
	given, err := chartutil.ReadValues([]byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]map[string]any{"defaults": {}, "everything": given} {
		result := lint.AllWithKubeVersion(chartDir, values, "prod", nil)
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev { // it recommends an icon
				t.Errorf("%s: %s: %v", name, m.Path, m.Err)
			}
		}
	}
}

// By default: one pod, ended before its successor starts, without privileges beyond its work, with probes that it
// answers.
func TestDefaults(t *testing.T) {
	objects := mustRender(t, "")
	if got := kinds(objects); got != "ConfigMap Deployment Service ServiceAccount" {
		t.Errorf("%s", got)
	}
	d := read[apps.Deployment](t, objects, "Deployment")
	if *d.Spec.Replicas != 1 || d.Spec.Strategy.Type != apps.RecreateDeploymentStrategyType || d.Spec.Strategy.RollingUpdate != nil {
		t.Errorf("%d replicas, %+v", *d.Spec.Replicas, d.Spec.Strategy)
	}
	pod := d.Spec.Template.Spec
	if grace := *pod.TerminationGracePeriodSeconds; grace < 30+10 {
		t.Errorf("%d s of grace for a drain of 30 s", grace)
	}
	if *pod.AutomountServiceAccountToken || !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser != 65532 || pod.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v", pod.SecurityContext)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
		t.Errorf("%+v", s)
	}
	if live, ready := c.LivenessProbe.HTTPGet, c.ReadinessProbe.HTTPGet; live.Path != "/livez" || ready.Path != "/readyz" || live.Port.StrVal != "http" {
		t.Errorf("%+v %+v", live, ready)
	}
	if got := c.Image; !strings.HasPrefix(got, repository+":") {
		t.Error(got)
	}
	if got := strings.Join(c.Args, " "); got != "run -c /etc/outboxcdc/outboxcdc.yaml" {
		t.Error(got)
	}
	if !hasTmp(&pod) {
		t.Error("there is no /tmp, which recover needs")
	}
	if c.Resources.Limits.Memory().Value() < 160<<20 {
		t.Errorf("%v of memory", c.Resources.Limits.Memory())
	}
	svc := read[core.Service](t, objects, "Service")
	if svc.Spec.Ports[0].Port != 9464 || svc.Spec.Selector["app.kubernetes.io/instance"] != "shop" || !svc.Spec.PublishNotReadyAddresses {
		t.Errorf("%+v", svc.Spec)
	}
	for k, v := range svc.Spec.Selector {
		if d.Spec.Template.Labels[k] != v || d.Spec.Selector.MatchLabels[k] != v {
			t.Errorf("%s=%s selects no pod", k, v)
		}
	}
	read[core.ServiceAccount](t, objects, "ServiceAccount")
	if !strings.Contains(objects["notes"], "slot outboxcdc.") {
		t.Error(objects["notes"])
	}
}

// hasTmp reports whether commands can write temporary files.
func hasTmp(pod *core.PodSpec) bool {
	at := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == "/tmp" && !m.ReadOnly })
	return at >= 0 && slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool {
		return v.Name == pod.Containers[0].VolumeMounts[at].Name && v.EmptyDir != nil
	})
}

// The pod for a command, as docs/packaging.md makes it, is that of the daemon with another command, and ends with it.
func TestCommandPod(t *testing.T) {
	jq, err := exec.LookPath("jq")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("SKIPPED, jq IS NOT INSTALLED")
	}
	text, err := os.ReadFile("../../docs/packaging.md")
	if err != nil {
		t.Fatal(err)
	}
	_, filter, _ := strings.Cut(string(text), "| jq '")
	filter, _, _ = strings.Cut(filter, "'")
	objects := mustRender(t, everything)
	given, err := yaml.YAMLToJSON([]byte(objects["Deployment"]))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(jq, filter)
	cmd.Stdin = strings.NewReader(string(given))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("jq: %v\n%s", err, filter)
	}
	pod := read[core.Pod](t, map[string]string{"Pod": string(out)}, "Pod")
	daemon := read[apps.Deployment](t, objects, "Deployment").Spec.Template.Spec
	c := &pod.Spec.Containers[0]
	if got := strings.Join(c.Args, " "); got != "recover -c "+daemon.Containers[0].Args[2]+" --dry-run" || pod.Spec.RestartPolicy != core.RestartPolicyNever || !c.Stdin || c.LivenessProbe != nil {
		t.Errorf("%s, %+v", got, pod.Spec)
	}
	if len(pod.Labels) > 0 || c.Resources.Limits.Memory().Value() != 768<<20 || !hasTmp(&pod.Spec) || !reflect.DeepEqual(c.Env, daemon.Containers[0].Env) {
		t.Errorf("%+v", pod)
	}
}

// All values at once: two replicas of which one waits and is ready all the same, secrets as files, and all other
// objects.
func TestEverything(t *testing.T) {
	objects := mustRender(t, everything)
	if got := kinds(objects); got != "ConfigMap CronJob audit CronJob retain Deployment NetworkPolicy PodDisruptionBudget PrometheusRule Service ServiceAccount ServiceMonitor" {
		t.Errorf("%s", got)
	}
	d := read[apps.Deployment](t, objects, "Deployment")
	if r := d.Spec.Strategy.RollingUpdate; *d.Spec.Replicas != 2 || r == nil || r.MaxSurge.IntValue() != 0 || r.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%d replicas, %+v", *d.Spec.Replicas, d.Spec.Strategy)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if ready := c.ReadinessProbe.HTTPGet; ready.Path != "/readyz?standby=ok" || ready.Scheme != core.URISchemeHTTPS || len(ready.HTTPHeaders) != 1 {
		t.Errorf("%+v", ready)
	}
	if pod.Affinity == nil || pod.Affinity.PodAntiAffinity == nil {
		t.Error("both may be on one node")
	}
	env := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			t.Errorf("%s is a secret in the environment", e.Name)
		}
		env[e.Name] = e.Value
	}
	for name, secret := range map[string]string{"OUTBOXCDC_POSTGRES_URL_FILE": "db", "OUTBOXCDC_KAFKA_SASL_PASSWORD_FILE": "kafka"} {
		if got := mountedSecret(t, &pod, env[name]); got != secret {
			t.Errorf("%s=%s is in secret %q", name, env[name], got)
		}
	}
	if env["OUTBOXCDC_HTTP_LISTEN"] != ":9464" || env["OUTBOXCDC_SHUTDOWN_TIMEOUT"] != "30s" || env["GOMEMLIMIT"] != "200MiB" {
		t.Errorf("%v", env)
	}
	if !strings.HasSuffix(c.Image, "@sha256:"+strings.Repeat("0", 64)) {
		t.Error(c.Image)
	}
	m := read[core.ConfigMap](t, objects, "ConfigMap")
	var config map[string]any
	if err := yaml.UnmarshalStrict([]byte(m.Data["outboxcdc.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	if config["postgres"].(map[string]any)["slot"] != "orders" || config["poison"].(map[string]any)["on_stop"] != "hold" {
		t.Errorf("%v", config)
	}
	if b := read[policy.PodDisruptionBudget](t, objects, "PodDisruptionBudget"); b.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%+v", b.Spec)
	}
	n := read[networking.NetworkPolicy](t, objects, "NetworkPolicy")
	var ports []int
	for _, e := range n.Spec.Egress {
		ports = append(ports, e.Ports[0].Port.IntValue())
	}
	if !slices.Equal(ports, []int{53, 5432, 9092, 443}) || len(n.Spec.Egress[1].To) != 1 || len(n.Spec.Ingress[0].From) != 1 {
		t.Errorf("%v %+v", ports, n.Spec)
	}
	var monitor struct {
		Spec struct {
			JobLabel  string
			Endpoints []struct{ Port, Path, Scheme, Interval string }
		}
	}
	if err := yaml.Unmarshal([]byte(objects["ServiceMonitor"]), &monitor); err != nil {
		t.Fatal(err)
	}
	svc := read[core.Service](t, objects, "Service")
	if got := svc.Labels[monitor.Spec.JobLabel]; got != "outboxcdc" {
		t.Errorf("the job is called %q; the alerts ask for outboxcdc", got)
	}
	if e := monitor.Spec.Endpoints[0]; e.Port != svc.Spec.Ports[0].Name || e.Path != "/metrics" || e.Scheme != "https" {
		t.Errorf("%+v", e)
	}
}

// mountedSecret returns the secret whose file is at path.
func mountedSecret(t *testing.T, pod *core.PodSpec, path string) string {
	t.Helper()
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.MountPath != filepath.Dir(path) || m.SubPath != "" || !m.ReadOnly {
			continue
		}
		for _, v := range pod.Volumes {
			if v.Name == m.Name && v.Secret != nil && v.Secret.Items[0].Path == filepath.Base(path) {
				return v.Secret.SecretName
			}
		}
	}
	return ""
}

// An audit is a pod with the configuration, the secrets and the restrictions of the daemon. Nothing that selects the
// daemon selects it.
func TestAudit(t *testing.T) {
	objects := mustRender(t, everything)
	job := read[batch.CronJob](t, objects, "CronJob audit")
	if job.Name != "shop-outboxcdc-audit" || job.Spec.Schedule != "5 */6 * * *" || *job.Spec.TimeZone != "Etc/UTC" || job.Spec.ConcurrencyPolicy != batch.ForbidConcurrent {
		t.Errorf("%s %+v", job.Name, job.Spec)
	}
	template := job.Spec.JobTemplate.Spec.Template
	pod, daemon := template.Spec, read[apps.Deployment](t, objects, "Deployment").Spec.Template.Spec
	c, d := pod.Containers[0], daemon.Containers[0]
	if got := strings.Join(c.Args, " "); got != "audit -c /etc/outboxcdc/outboxcdc.yaml --metrics /run/textfile/prod-shop-outboxcdc.prom --since 8h --deep" {
		t.Error(got)
	}
	if c.Image != d.Image || !reflect.DeepEqual(c.SecurityContext, d.SecurityContext) || !reflect.DeepEqual(pod.SecurityContext, daemon.SecurityContext) ||
		pod.ServiceAccountName != daemon.ServiceAccountName || *pod.AutomountServiceAccountToken || len(pod.ImagePullSecrets) != 1 || len(pod.Tolerations) != 1 {
		t.Errorf("the audit runs as another than the daemon: %+v", pod)
	}
	for _, m := range d.VolumeMounts {
		if !slices.ContainsFunc(c.VolumeMounts, func(o core.VolumeMount) bool { return reflect.DeepEqual(o, m) }) {
			t.Errorf("the audit does not have %+v", m)
		}
	}
	for _, v := range daemon.Volumes {
		if v.Name == "tmp" { // that of the audit is larger
			continue
		}
		if !slices.ContainsFunc(pod.Volumes, func(o core.Volume) bool { return reflect.DeepEqual(o, v) }) {
			t.Errorf("the audit does not have %+v", v)
		}
	}
	for _, e := range d.Env {
		if secret := strings.HasSuffix(e.Name, "_FILE") || e.Name == "GOMEMLIMIT"; secret && !hasVariable(&c, e) {
			t.Errorf("the audit does not have %s", e.Name)
		}
	}
	writable := map[string]bool{}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			writable[m.MountPath] = true
			if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("no volume %s", m.Name)
			}
		}
	}
	if len(writable) != 2 || !writable["/tmp"] || !writable["/run/textfile"] || !hasVariable(&c, core.EnvVar{Name: "TMPDIR", Value: "/tmp"}) {
		t.Errorf("it can write to %v; %+v", writable, c.Env)
	}
	if pod.NodeSelector["kubernetes.io/hostname"] != "node-1" || len(pod.NodeSelector) != 1 {
		t.Errorf("%v", pod.NodeSelector)
	}

	onlyNetworkPolicySelects(t, objects, template.Labels)
}

// onlyNetworkPolicySelects checks that nothing that selects the daemon selects the pods of a CronJob, except for the
// NetworkPolicy.
func onlyNetworkPolicySelects(t *testing.T, objects map[string]string, pod map[string]string) {
	t.Helper()
	job := labels.Set(pod)
	service := labels.Set(read[core.Service](t, objects, "Service").Spec.Selector)
	if service.AsSelector().Matches(job) || job["c"] != "d" {
		t.Errorf("the Service sends requests to %v", job)
	}
	for kind, selector := range map[string]*meta.LabelSelector{
		"Deployment":          read[apps.Deployment](t, objects, "Deployment").Spec.Selector,
		"PodDisruptionBudget": read[policy.PodDisruptionBudget](t, objects, "PodDisruptionBudget").Spec.Selector,
		"NetworkPolicy":       &read[networking.NetworkPolicy](t, objects, "NetworkPolicy").Spec.PodSelector,
	} {
		s, err := meta.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		if selects := s.Matches(job); selects != (kind == "NetworkPolicy") {
			t.Errorf("%s selects %v: %v", kind, job, selects)
		}
		if !s.Matches(labels.Set(read[apps.Deployment](t, objects, "Deployment").Spec.Template.Labels)) {
			t.Errorf("%s does not select the daemon", kind)
		}
	}
}

// Retain is a pod with the configuration and the restrictions of the daemon, and with a secret of its own: neither of
// the two has the other's.
func TestRetain(t *testing.T) {
	objects := mustRender(t, everything)
	job := read[batch.CronJob](t, objects, "CronJob retain")
	if job.Name != "shop-outboxcdc-retain" || job.Spec.Schedule != "*/10 * * * *" || job.Spec.ConcurrencyPolicy != batch.ForbidConcurrent || *job.Spec.JobTemplate.Spec.BackoffLimit != 0 {
		t.Errorf("%s %+v", job.Name, job.Spec)
	}
	template := job.Spec.JobTemplate.Spec.Template
	pod, daemon := template.Spec, read[apps.Deployment](t, objects, "Deployment").Spec.Template.Spec
	c, d := pod.Containers[0], daemon.Containers[0]
	if got := strings.Join(c.Args, " "); got != "retain -c /etc/outboxcdc/outboxcdc.yaml --metrics /run/textfile/prod-shop-outboxcdc-retain.prom --despite-slot other" {
		t.Error(got)
	}
	if !reflect.DeepEqual(c.SecurityContext, d.SecurityContext) || !reflect.DeepEqual(pod.SecurityContext, daemon.SecurityContext) || pod.RestartPolicy != core.RestartPolicyNever ||
		c.Image != "registry.example.com/archiver:1" || pod.ServiceAccountName != "archiver" || !hasVariable(&c, core.EnvVar{Name: "AWS_REGION", Value: "eu-1"}) {
		t.Errorf("%+v", pod)
	}
	secrets := map[string]string{}
	for _, e := range c.Env {
		if secret := mountedSecret(t, &pod, e.Value); secret != "" {
			secrets[e.Name] = secret
		}
	}
	if len(secrets) != 1 || secrets["OUTBOXCDC_POSTGRES_URL_FILE"] != "owner" {
		t.Errorf("retain has the secrets %v", secrets)
	}
	for _, v := range daemon.Volumes {
		if v.Secret != nil && v.Secret.SecretName == "owner" {
			t.Error("the daemon has the secret of the owner")
		}
	}
	// The settings are complete, as for the daemon.
	for _, e := range d.Env {
		if strings.HasSuffix(e.Name, "_FILE") && !slices.ContainsFunc(c.Env, func(of core.EnvVar) bool { return of.Name == e.Name }) {
			t.Errorf("retain does not have %s", e.Name)
		}
	}
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly && m.MountPath != "/tmp" && m.MountPath != "/run/textfile" {
			t.Errorf("it can write to %s", m.MountPath)
		}
	}
	onlyNetworkPolicySelects(t, objects, template.Labels)

	// By default it has the daemon's image and account, and metrics need a volume.
	plain := read[batch.CronJob](t, mustRender(t, "retention: {enabled: true, secret: {name: owner}}"), "CronJob retain").Spec.JobTemplate.Spec.Template.Spec
	if c := plain.Containers[0]; !strings.HasPrefix(c.Image, repository+":") || len(c.Args) != 3 || plain.ServiceAccountName != "shop-outboxcdc" {
		t.Errorf("%+v", plain)
	}
	for values, want := range map[string]string{
		"retention: {enabled: true}": "retention.secret.name is required",
		"retention: {enabled: true, secret: {name: owner}, metricsVolume: {hostPath: {path: /a}}}": "retention.nodeSelector has to name one node",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
}

func hasVariable(c *core.Container, e core.EnvVar) bool {
	return slices.ContainsFunc(c.Env, func(o core.EnvVar) bool { return reflect.DeepEqual(o, e) })
}

// With the defaults, an audit runs daily over more than a day, and its result is the exit status of the Job: it is not
// repeated after findings, but when Postgres or Kafka was unavailable.
func TestAuditByDefault(t *testing.T) {
	job := read[batch.CronJob](t, mustRender(t, "audit: {enabled: true}"), "CronJob audit")
	spec := job.Spec.JobTemplate.Spec
	pod := spec.Template.Spec
	c := pod.Containers[0]
	if got := strings.Join(c.Args, " "); job.Spec.Schedule != "17 3 * * *" || got != "audit -c /etc/outboxcdc/outboxcdc.yaml --since 26h" {
		t.Errorf("%s: %s", job.Spec.Schedule, got)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("%+v", v)
		}
	}
	if *spec.BackoffLimit < 1 || *spec.ActiveDeadlineSeconds != 7200 || pod.RestartPolicy != core.RestartPolicyNever {
		t.Errorf("%+v", spec)
	}
	rule := spec.PodFailurePolicy.Rules[0]
	if codes := rule.OnExitCodes; rule.Action != batch.PodFailurePolicyActionFailJob || *codes.ContainerName != c.Name ||
		codes.Operator != batch.PodFailurePolicyOnExitCodesOpIn || !slices.Equal(codes.Values, []int32{1, 2, 77, 78}) {
		t.Errorf("%+v", rule)
	}
	// --memory is 256 MiB.
	if limit := c.Resources.Limits.Memory().Value(); limit < 2*256<<20 {
		t.Errorf("%d bytes of memory", limit)
	}
}

// The file of an audit stays on its node, so audits must not move to another.
func TestAuditStaysOnItsNode(t *testing.T) {
	const host = "audit: {enabled: true, metricsVolume: {hostPath: {path: /var/lib/node_exporter}}}"
	if _, err := render(t, host); err == nil || !strings.Contains(err.Error(), "audit.nodeSelector has to name one node") {
		t.Errorf("%v", err)
	}
	if _, err := render(t, host+"\nnodeSelector: {kubernetes.io/hostname: node-1}"); err != nil {
		t.Error(err)
	}
	if _, err := render(t, "audit: {enabled: true, metricsVolume: {persistentVolumeClaim: {claimName: textfile}}}"); err != nil {
		t.Error(err)
	}
}

// Invalid values are refused before anything is installed, including secrets in plain text.
func TestRefused(t *testing.T) {
	for _, values := range []string{
		"replicas: 3", "standby: yes please", "secretFiles: [{setting: postgres.url, secret: a, key: b}]", "secretFiles: [{setting: postgres.url_file, secret: a}]",
		"config: {postgres: {url: postgres://u:p@h/d}}", "config: {kafka: {sasl: {password: x}}}", "config: {receiver: {url: amqp://u:p@h/v}}", "config: {receiver: {secret: x}}",
		"config: {http: {listen: \":1\"}}", "config: {shutdown_timeout: 60s}",
		"audit: {enabled: 1}", "audit: {schedule: daily}", "audit: {args: [--metrics, /tmp/a.prom]}", "audit: {concurrencyPolicy: Allow}",
		"retention: {args: [--every, 1m]}", "retention: {secret: owner}",
		"extraEnv: [{name: OUTBOXCDC_SHUTDOWN_TIMEOUT, value: 60s}]", "extraEnv: [{name: OUTBOXCDC_HTTP_LISTEN, value: \":1\"}]",
		"image: {digest: abc}", "http: {scheme: FTP}",
	} {
		if _, err := render(t, values); err == nil {
			t.Errorf("taken: %s", values)
		}
	}
}

// No image is published, so the values have to name one.
func TestImageIsRequired(t *testing.T) {
	_, err := render(t, `image: {repository: ""}`)
	if err == nil || !strings.Contains(err.Error(), "image.repository is required") {
		t.Errorf("%v", err)
	}
}

// The rules are those of deploy/prometheus. The chart has a copy because a chart cannot read files outside of itself.
func TestAlerts(t *testing.T) {
	var rule struct {
		Spec any
	}
	if err := yaml.Unmarshal([]byte(mustRender(t, everything)["PrometheusRule"]), &rule); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var alerts any
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		t.Fatal(err)
	}
	is, _ := yaml.Marshal(rule.Spec)
	want, _ := yaml.Marshal(alerts)
	if string(is) != string(want) {
		t.Error("deploy/helm/outboxcdc/files/alerts.yaml is not deploy/prometheus/alerts.yaml: copy that (make docs)")
	}
	if len(want) < 1000 || !strings.Contains(string(is), "{{ $labels.instance }}") {
		t.Errorf("%.200s", is)
	}
}
