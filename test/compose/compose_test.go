// Package compose tests docker-compose.yml: it reads the file as docker compose does, without Docker. It is a module of
// its own, so that the product's go.mod does not list what only this test needs.
package compose

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// load reads the file with an empty environment, so that the result does not depend on the machine, and with the
// profiles.
func load(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	file, err := filepath.Abs("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	options, err := cli.NewProjectOptions([]string{file}, cli.WithWorkingDirectory(filepath.Dir(file)), cli.WithEnv(nil), cli.WithProfiles(profiles))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// monitoring is the profile with Prometheus and Grafana.
const monitoring = "monitoring"

func service(t *testing.T, p *types.Project, name string) types.ServiceConfig {
	t.Helper()
	s, err := p.GetService(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestServices(t *testing.T) {
	p := load(t)
	want := []string{"consumer", "kafka", "outboxcdc", "postgres", "ready", "setup", "topics", "writer"}
	if got := p.ServiceNames(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("services %v, want %v", got, want)
	}
	want = append(want, "prometheus", "grafana")
	slices.Sort(want)
	if got := load(t, monitoring).ServiceNames(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("with the profile monitoring: services %v, want %v", got, want)
	}
}

// Each service starts when the services it needs are healthy, and not after a pause.
func TestOrderOfStart(t *testing.T) {
	p := load(t, monitoring)
	const healthy, done, started = types.ServiceConditionHealthy, types.ServiceConditionCompletedSuccessfully, types.ServiceConditionStarted
	want := map[string]map[string]string{
		"postgres":   {},
		"kafka":      {},
		"topics":     {"kafka": healthy},
		"setup":      {"postgres": healthy, "kafka": healthy},
		"outboxcdc":  {"setup": done, "topics": done, "kafka": healthy},
		"ready":      {"outboxcdc": started},
		"writer":     {"setup": done},
		"consumer":   {"topics": done},
		"prometheus": {"outboxcdc": started},
		"grafana":    {"prometheus": healthy},
	}
	for name, s := range p.Services {
		for on, dep := range s.DependsOn {
			if dep.Condition != want[name][on] {
				t.Errorf("%s waits for %s: %s, want %q", name, on, dep.Condition, want[name][on])
			}
			if dep.Condition == healthy && p.Services[on].HealthCheck == nil {
				t.Errorf("%s waits for the health of %s, which has no health check", name, on)
			}
			if dep.Condition == done && p.Services[on].Restart != "no" {
				t.Errorf("%s waits for the end of %s, which is restarted: %q", name, on, p.Services[on].Restart)
			}
		}
		if len(s.DependsOn) != len(want[name]) {
			t.Errorf("%s waits for %d services, want %d", name, len(s.DependsOn), len(want[name]))
		}
		if words := strings.Join(append(s.Entrypoint, s.Command...), " "); strings.Contains(words, "sleep") {
			t.Errorf("%s sleeps: %s", name, words)
		}
	}
}

func TestHealthChecks(t *testing.T) {
	p := load(t, monitoring)
	for name, part := range map[string]string{"prometheus": "/-/ready", "postgres": "pg_isready", "kafka": "kafka-broker-api-versions", "ready": "http://outboxcdc:9464/readyz"} {
		h := service(t, p, name).HealthCheck
		if h == nil || h.Disable || !strings.Contains(strings.Join(h.Test, " "), part) {
			t.Errorf("the health check of %s does not ask %s: %+v", name, part, h)
			continue
		}
		if h.Timeout == nil || h.Interval == nil || h.Retries == nil || h.StartPeriod == nil {
			t.Errorf("the health check of %s leaves a value to the default: %+v", name, h)
		}
	}
}

func TestImagesArePinned(t *testing.T) {
	for name, s := range load(t, monitoring).Services {
		_, tag, ok := strings.Cut(s.Image, ":")
		if !ok || tag == "" || strings.Contains(tag, "latest") {
			t.Errorf("%s has image %q: name a version", name, s.Image)
		}
	}
}

func TestPostgresDecodesLogically(t *testing.T) {
	s := service(t, load(t), "postgres")
	if !slices.Contains(s.Command, "wal_level=logical") {
		t.Errorf("command %v lacks wal_level=logical", s.Command)
	}
}

func TestKafkaIsKRaft(t *testing.T) {
	env := service(t, load(t), "kafka").Environment
	for name, want := range map[string]string{
		"KAFKA_PROCESS_ROLES":             "broker,controller",
		"KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
		"KAFKA_ADVERTISED_LISTENERS":      "INSIDE://kafka:9092,OUTSIDE://localhost:29092",
	} {
		if got := env[name]; got == nil || *got != want {
			t.Errorf("%s is %v, want %s", name, got, want)
		}
	}
	for name := range env {
		if strings.Contains(name, "ZOOKEEPER") {
			t.Errorf("%s: Kafka 4 has none", name)
		}
	}
}

// The daemon is not root, cannot write, and may take longer to stop than draining takes.
func TestDaemon(t *testing.T) {
	p := load(t)
	for _, name := range []string{"outboxcdc", "setup"} {
		s := service(t, p, name)
		if s.User != "65532:65532" || !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") {
			t.Errorf("%s: user %q, read-only %v, dropped %v", name, s.User, s.ReadOnly, s.CapDrop)
		}
		if s.Build == nil || s.Build.Context != p.WorkingDir {
			t.Errorf("%s is not built from here: %+v", name, s.Build)
		}
		if s.Restart != "no" {
			t.Errorf("%s is restarted (%s) whatever its exit code says", name, s.Restart)
		}
	}
	s := service(t, p, "outboxcdc")
	if !slices.Equal(s.Command, types.ShellCommand{"run"}) {
		t.Errorf("command %v", s.Command)
	}
	timeout := s.Environment["OUTBOXCDC_SHUTDOWN_TIMEOUT"]
	if timeout == nil {
		t.Fatal("OUTBOXCDC_SHUTDOWN_TIMEOUT is not set")
	}
	drain, err := time.ParseDuration(*timeout)
	if err != nil {
		t.Fatal(err)
	}
	if s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) <= drain {
		t.Errorf("stop_grace_period %v is not longer than shutdown_timeout %v", s.StopGracePeriod, drain)
	}
	for name := range s.Environment {
		if name == "OUTBOXCDC_SETUP_URL" {
			t.Error("the daemon has the privileges of setup")
		}
	}
}

// What the file mounts must be there.
func TestMounts(t *testing.T) {
	for name, s := range load(t, monitoring).Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if !v.ReadOnly {
				t.Errorf("%s can write to %s", name, v.Source)
			}
		}
	}
}

// No port is open to the network.
func TestPortsAreLocal(t *testing.T) {
	for name, s := range load(t, monitoring).Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q", name, port.Published, port.HostIP)
			}
		}
	}
}

// The image is as the comments of the compose file promise. The test reads lines: the only parser is Docker's own.
func TestDockerfile(t *testing.T) {
	b, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	_, last, ok := strings.Cut(text, "\nFROM scratch\n")
	if !ok {
		t.Fatal("the last stage is not FROM scratch")
	}
	for _, want := range []string{"USER 65532:65532", "/etc/ssl/certs/ca-certificates.crt", "org.opencontainers.image.licenses=\"Apache-2.0\"", "ENTRYPOINT [\"/outboxcdc\"]"} {
		if !strings.Contains(last, want) {
			t.Errorf("the image lacks %s", want)
		}
	}
	if !strings.Contains(text, "CGO_ENABLED=0") {
		t.Error("the binary is not static")
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "FROM ") && strings.Contains(line, "latest") {
			t.Errorf("%q is not pinned", line)
		}
	}
}
