package compose

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"
)

// read reads a file of deploy/ and checks that the service mounts it at the given path.
func read(t *testing.T, s types.ServiceConfig, file, at string, into any) {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("../../deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
		rest, within := strings.CutPrefix(source, v.Source)
		return within && v.Target+rest == at
	}) {
		t.Errorf("%s does not have deploy/%s as %s", s.Name, file, at)
	}
	text, err := os.ReadFile(source)
	if err == nil && strings.HasSuffix(file, ".json") {
		err = json.Unmarshal(text, into)
	} else if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("deploy/%s: %v", file, err)
	}
}

// Prometheus scrapes the daemon, under the job name that the alerts expect, and has the alerts.
func TestPrometheusScrapesTheDaemon(t *testing.T) {
	p := load(t, monitoring)
	s := service(t, p, "prometheus")
	var conf struct {
		Rules []string `yaml:"rule_files"`
		Jobs  []struct {
			Name   string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	read(t, s, "prometheus/prometheus.yml", "/etc/prometheus/prometheus.yml", &conf)
	if len(conf.Jobs) != 1 || conf.Jobs[0].Name != "outboxcdc" || len(conf.Jobs[0].Static) != 1 {
		t.Fatalf("jobs %+v", conf.Jobs)
	}
	host, port, _ := strings.Cut(conf.Jobs[0].Static[0].Targets[0], ":")
	if ports := service(t, p, host).Ports; len(ports) != 1 || port != "9464" || ports[0].Target != 9464 {
		t.Errorf("it scrapes %s:%s, which has %+v", host, port, ports)
	}
	for _, rules := range conf.Rules {
		read(t, s, "prometheus/"+rules, "/etc/prometheus/"+rules, &map[string]any{})
	}
	if len(conf.Rules) == 0 {
		t.Error("no alerts are loaded")
	}
}

// Grafana has Prometheus as its data source, and finds the dashboard.
func TestGrafanaIsProvisioned(t *testing.T) {
	p := load(t, monitoring)
	s := service(t, p, "grafana")
	var sources struct {
		Datasources []struct {
			Type, URL string
			IsDefault bool `yaml:"isDefault"`
		}
	}
	read(t, s, "grafana/provisioning/datasources/prometheus.yaml", "/etc/grafana/provisioning/datasources/prometheus.yaml", &sources)
	if d := sources.Datasources; len(d) != 1 || d[0].Type != "prometheus" || d[0].URL != "http://prometheus:9090" || !d[0].IsDefault {
		t.Errorf("data sources %+v", d)
	}
	service(t, p, "prometheus")
	var boards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	read(t, s, "grafana/provisioning/dashboards/outboxcdc.yaml", "/etc/grafana/provisioning/dashboards/outboxcdc.yaml", &boards)
	if len(boards.Providers) != 1 || boards.Providers[0].Type != "file" {
		t.Fatalf("providers %+v", boards.Providers)
	}
	file := boards.Providers[0].Options.Path + "/outboxcdc.json"
	var board struct{ Title string }
	read(t, s, "grafana/outboxcdc.json", file, &board)
	if home := s.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]; board.Title == "" || home == nil || *home != file {
		t.Errorf("the dashboard %q is at %s, the home page is %v", board.Title, file, home)
	}
}
