package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hidden is part of every secret of these tests, and must not be in any output, in any encoding.
const hidden = "Geh3im"

// mayNotShow fails the test if text has a secret.
func mayNotShow(t *testing.T, what string, text []byte) {
	t.Helper()
	if i := strings.Index(strings.ToLower(string(text)), strings.ToLower(hidden)); i >= 0 {
		t.Errorf("%s shows a secret: …%s…", what, text[max(0, i-80):min(len(text), i+40)])
	}
}

// leaves returns the binary's commands without subcommands, found by their help, so that new ones are included.
func leaves(t *testing.T, path ...string) (all [][]string) {
	t.Helper()
	out, err := exec.Command(the.binary, append(slices.Clone(path), "--help")...).CombinedOutput()
	must(t, err)
	_, list, has := strings.Cut(string(out), "\nAvailable Commands:\n")
	if !has {
		return [][]string{path}
	}
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "help" {
			all = append(all, leaves(t, append(slices.Clone(path), words[0])...)...)
		}
	}
	return all
}

// No secret is in any output: of a daemon that works, that cannot log in, or that reloads, at level debug, nor in its
// HTTP responses; of any command, whether it succeeds or not; of any error about a configuration.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	const pgPassword = hidden + "/pg@1%#"
	login := o.name + "_login"
	o.exec(`CREATE ROLE ` + login + ` LOGIN REPLICATION PASSWORD '` + pgPassword + `'`)
	t.Cleanup(func() { _ = o.pg.Exec(testContext(t), "postgres", `DROP ROLE `+login) })
	url := o.pg.URL(o.name, login, pgPassword)
	setupURL := o.pg.URL(o.name, login, pgPassword) // a user who may log in and little else
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	sasl := []string{"OUTBOXCDC_KAFKA_SASL_MECHANISM=SCRAM-SHA-512", "OUTBOXCDC_KAFKA_SASL_USER=u", "OUTBOXCDC_KAFKA_SASL_PASSWORD=" + hidden + "-kafka"}
	unknown := "OUTBOXCDC_POSTGRES_URL=" + o.pg.URL(o.name, login, hidden+"-wrong")

	// Daemons.
	good := o.startStreaming("OUTBOXCDC_POSTGRES_URL=" + url)
	daemons := map[string]*relay{
		"wrong password": o.start(unknown),
		"kafka refuses":  o.start(append(sasl, "OUTBOXCDC_POSTGRES_URL="+url)...),
		"no token": o.start("OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_KAFKA_SASL_MECHANISM=OAUTHBEARER", "OUTBOXCDC_KAFKA_SASL_USER=u",
			"OUTBOXCDC_KAFKA_SASL_PASSWORD_FILE="+file("client", hidden+"-client"), "OUTBOXCDC_KAFKA_SASL_TOKEN_URL=http://127.0.0.1:1/token?key="+hidden),
	}
	for what, r := range daemons {
		await(t, patience, what+" to fail", func() error { return unless(r.hasBeen("reconnecting")) })
	}
	daemons["streaming"] = good
	o.insert("order", "k", 1, 3)
	o.awaitArrived(patience)
	good.hangUp(1)
	for what, r := range daemons {
		for _, path := range []string{"/status", "/metrics", "/readyz", "/version", "/", "/config"} {
			_, body, err := r.get(path)
			must(t, err)
			mayNotShow(t, what+": "+path, body)
		}
		log, err := os.ReadFile(r.log)
		must(t, err)
		if !strings.Contains(string(log), "xxxxx") {
			t.Errorf("%s: the log does not say that there is a secret", what)
		}
		mayNotShow(t, what+": the log", log)
	}

	// Every command, with working, failing and invalid settings; beside a daemon.
	ended := func(args []string, env ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, the.binary, args...)
		cmd.Dir, cmd.Env = dir, append(append(o.env(), "OUTBOXCDC_SETUP_URL="+setupURL), env...)
		out, _ := cmd.CombinedOutput() // it may fail
		mayNotShow(t, strings.Join(args, " "), out)
	}
	debezium := file("debezium.properties", "connector.class=io.debezium.connector.postgresql.PostgresConnector\nname=x\ndatabase.hostname=h\ndatabase.user=u\n"+
		"database.password="+hidden+"\ndatabase.dbname=d\ntransforms=outbox\ntransforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n")
	more := map[string][]string{"config from-debezium": {debezium}, "config print": {"--origin"}, "peek": {"--limit", "1"}}
	commands := leaves(t)
	if len(commands) < 12 {
		t.Fatalf("only %d commands were found: %v", len(commands), commands)
	}
	for _, command := range commands {
		name := strings.Join(command, " ")
		if name == "run" || strings.HasPrefix(name, "completion") {
			continue
		}
		args := append(slices.Clone(command), more[name]...)
		ended(args, "OUTBOXCDC_POSTGRES_URL="+url)
		ended(append(args, "-o", "json"), append(sasl, unknown)...)
	}
	for _, args := range [][]string{
		{"setup", "apply", "--dry-run", "--url", "postgres://u:" + hidden + "/x@h/d"},
		{"setup", "apply", "--dry-run", "--url", "host=127.0.0.1 port=1 user=u password=" + hidden},
		{"setup", "apply", "--dry-run", "--url", "host=h port=" + hidden},
		{"setup", "destroy", "--yes", "--url", "postgres://u:" + hidden + "@127.0.0.1:1/d"},
		{"validate", "--set", "kafka.sasl.password=" + hidden},
		{"validate", "--set", "postgres.url=" + hidden},
	} {
		ended(args)
	}

	// Errors about configurations.
	for i, yaml := range []string{
		"postgres: {url: '" + hidden + "'}\n", "postgres: {url: 'postgres://u:" + hidden + "/@h/d', slot: A}\n", "postgres: {url: [" + hidden + "]}\n",
		"postgres:\n  url: postgres://u:" + hidden + "@h/d\n  url_file: /nope\n", "postgres:\n  url: \"postgres://u:" + hidden + "@h/d\n",
		"postgres:\n  url: postgres://u:" + hidden + "@h/d\n slot: x\n", "postgres: {url: {a: " + hidden + "}}\n", "kafka: {sasl: {password: " + hidden + "}}\n",
		"kafka: {sasl: {mechanism: PLAIN, password: *" + "x}}\n", "kafka: {sasl: {mechanism: PLAIN, user: u, password: " + hidden + ", password_file: /nope}}\n",
		"kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: p, token_url: 'https://u:" + hidden + "@h/'}}\n",
		"kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: p, token_url: 'h/?" + hidden + "'}}\n",
		"postgres: {url: 'postgres://u:" + hidden + "@${env:NOPE}/d'}\n", "postgres: {url_file: " + file("url", hidden) + "}\n",
		"kafka: {sasl: {mechanism: PLAIN, user: u, password: '${file:" + file("password", hidden) + "}'}}\n",
	} {
		path := file("wrong.yaml", yaml)
		for _, args := range [][]string{{"validate", "-c", path}, {"config", "print", "-o", "json", "-c", path}, {"setup", "sql", "-c", path}} {
			cmd := exec.Command(the.binary, args...)
			cmd.Env = cleanEnv()
			out, _ := cmd.CombinedOutput()
			if len(out) == 0 {
				t.Errorf("%d %v says nothing", i, args)
			}
			mayNotShow(t, strings.Join(args, " ")+" of "+yaml, out)
		}
	}
}
