package sql

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

//go:embed failover_*.txt
var failoverFiles embed.FS

// FailoverPlatforms returns what runs the servers: the values of [Failover]'s platform.
func FailoverPlatforms() []string { return []string{"plain", "patroni", "cnpg", "rds"} }

// Failover renders the settings, for the servers and for what runs them, that let the slot survive repeated
// failovers. It is text to paste: settings, and comments that say where they belong.
func Failover(p Params, platform string, serverMajor int) (string, error) {
	switch {
	case !slices.Contains(FailoverPlatforms(), platform):
		return "", fmt.Errorf("render the settings for a failover: no platform %q, only %s", platform, strings.Join(FailoverPlatforms(), ", "))
	case serverMajor < failoverMajor:
		return "", fmt.Errorf("render the settings for a failover: PostgreSQL %d does not copy slots to its standbys, only %d and later do", serverMajor, failoverMajor)
	}
	p.Slot, p.Database = comment(p.Slot), comment(p.Database)
	if p.Database == "" {
		p.Database = "<database>"
	}
	t, err := template.New("").Funcs(template.FuncMap{"comment": comment, "literal": literal, "yaml": yamlString, "confName": confName}).
		ParseFS(failoverFiles, "failover_*.txt")
	if err != nil {
		return "", fmt.Errorf("parse the embedded settings: %w", err)
	}
	var b strings.Builder
	if err := t.ExecuteTemplate(&b, "failover_"+platform+".txt", p); err != nil {
		return "", fmt.Errorf("render the embedded settings: %w", err)
	}
	return b.String(), nil
}

// yamlString quotes a string for YAML, of which JSON is a part.
func yamlString(s string) (string, error) {
	text, err := json.Marshal(s)
	return string(text), err
}

// confName formats a name for a connection string inside a value of postgresql.conf.
func confName(name string) string {
	if hbaName(name) == name {
		return name
	}
	inner := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(name) + "'"
	return strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(inner)
}
