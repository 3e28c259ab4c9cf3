package deploy

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestRunbookCommands checks that commands of the runbook name existing files, variables and binaries of the
// deployments.
func TestRunbookCommands(t *testing.T) {
	text, err := os.ReadFile("../docs/runbook.md")
	must(t, err)
	has := func(command string) {
		t.Helper()
		if !strings.Contains(string(text), "`"+command+"`") {
			t.Errorf("docs/runbook.md has no %s", command)
		}
	}
	u := unit(t)
	start := strings.Fields(only(t, u, "ExecStart")) // /usr/local/bin/outboxcdc run -c FILE
	var variables []string
	for _, credential := range u["LoadCredential"] {
		name, file, _ := strings.Cut(credential, ":")
		for _, variable := range u["Environment"] {
			if setting, ok := strings.CutSuffix(variable, "=%d/"+name); ok {
				variables = append(variables, setting+"="+file)
			}
		}
	}
	if len(variables) != 1 || len(start) != 4 {
		t.Fatalf("%q, %q", variables, start)
	}
	has(variables[0] + " outboxcdc " + start[2] + " " + start[3] + " status")

	chart, err := os.ReadFile("helm/outboxcdc/templates/deployment.yaml")
	must(t, err)
	image, err := os.ReadFile("../Dockerfile")
	must(t, err)
	if !strings.Contains(string(image), `ENTRYPOINT ["/outboxcdc"]`) || !strings.Contains(string(chart), "args: [run, -c, "+path.Dir(start[3])+`/{{ ternary "$(POD)" "`+strings.TrimSuffix(path.Base(start[3]), ".yaml")+`" (not (empty .Values.shards)) }}.yaml]`) {
		t.Error("the image or the chart starts something else")
	}
	has("kubectl exec deploy/outboxcdc -- /outboxcdc -c " + start[3] + " status")

	var compose struct {
		Services map[string]struct {
			Entrypoint, Command any
			Environment         map[string]string
		}
	}
	file, err := os.ReadFile("../docker-compose.yml")
	must(t, err)
	must(t, yaml.Unmarshal(file, &compose))
	daemon, ok := compose.Services["outboxcdc"]
	if !ok || daemon.Entrypoint != nil || daemon.Environment["OUTBOXCDC_POSTGRES_URL"] == "" {
		t.Errorf("the service outboxcdc of docker-compose.yml: %+v", daemon)
	}
	has("docker compose exec outboxcdc /outboxcdc status")
	unitText, err := os.ReadFile(unitFile)
	must(t, err)
	if !slices.Contains(strings.Split(string(unitText), "\n"), "# "+variables[0]+" outboxcdc -c "+start[3]+" status") {
		t.Error("the unit's comment has another command")
	}
}
