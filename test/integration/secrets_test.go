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

// hiddenPart is part of every secret of these tests, and must not be in any output, in any encoding.
const hiddenPart = "Geh3im"

// mayNotShow fails the test if text has a secret.
func mayNotShow(t *testing.T, what string, text []byte) {
	t.Helper()
	if i := strings.Index(strings.ToLower(string(text)), strings.ToLower(hiddenPart)); i >= 0 {
		t.Errorf("%s shows a secret: …%s…", what, text[max(0, i-80):min(len(text), i+40)])
	}
}

// leafCommands returns the binary's commands without subcommands, found by their help, so that new ones are included.
func leafCommands(t *testing.T, path ...string) (all [][]string) {
	t.Helper()
	out, err := exec.Command(testSuite.binary, append(slices.Clone(path), "--help")...).CombinedOutput()
	must(t, err)
	_, list, has := strings.Cut(string(out), "\nAvailable Commands:\n")
	if !has {
		return [][]string{path}
	}
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "help" {
			all = append(all, leafCommands(t, append(slices.Clone(path), words[0])...)...)
		}
	}
	return all
}

// No secret is in any output: of a daemon that works, that cannot log in, or that reloads, at level debug, nor in its
// HTTP responses; of any command, whether it succeeds or not; of any error about a configuration.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	const pgPassword = hiddenPart + "/pg@1%#"
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
	sasl := []string{"OUTBOXCDC_KAFKA_SASL_MECHANISM=SCRAM-SHA-512", "OUTBOXCDC_KAFKA_SASL_USER=u", "OUTBOXCDC_KAFKA_SASL_PASSWORD=" + hiddenPart + "-kafka"}
	unknown := "OUTBOXCDC_POSTGRES_URL=" + o.pg.URL(o.name, login, hiddenPart+"-wrong")

	// The commands print a secret, repeat it in their standard error, and fail.
	script := file("prints.sh", "echo "+hiddenPart+"; echo "+hiddenPart+" is expired >&2; exit 1")
	printsAndFails := func(setting string) string { return setting + "=sh," + script }

	// Daemons.
	good := o.startStreaming("OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_POSTGRES_STANDBYS="+url+",host=127.0.0.1 port=1 password="+hiddenPart)
	hiddenReceiver := "OUTBOXCDC_RECEIVER_URL=http://u:" + hiddenPart + "@127.0.0.1:1/" + hiddenPart + "?key=" + hiddenPart
	signed := "OUTBOXCDC_RECEIVER_SECRET=whsec_" + strings.Repeat(hiddenPart, 5) + "Ge"
	daemons := map[string]*relay{
		"no receiver": o.startAs([]string{"run"}, o.httpEnv("", "OUTBOXCDC_POSTGRES_URL="+url, hiddenReceiver, signed)),
		"no Redis":    o.startAs([]string{"run"}, o.redisEnv("u:"+hiddenPart+"@127.0.0.1:1", "OUTBOXCDC_POSTGRES_URL="+url)),
		"no NATS": o.startAs([]string{"run"}, o.natsEnv("nats://u:"+hiddenPart+"@127.0.0.1:1,nats://u:"+hiddenPart+"@127.0.0.1:1", "OUTBOXCDC_POSTGRES_URL="+url,
			"OUTBOXCDC_RECEIVER_SECRET_FILE="+file("nkey", "SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY"))),
		"no SQS": o.startAs([]string{"run"}, o.sqsEnv("http://127.0.0.1:1/000000000000", "OUTBOXCDC_POSTGRES_URL="+url, "AWS_SECRET_ACCESS_KEY="+hiddenPart)),
		"no SNS": o.startAs([]string{"run"}, o.sqsEnv("http://127.0.0.1:1/000000000000", "OUTBOXCDC_SINK=sns", "OUTBOXCDC_POSTGRES_URL="+url, "AWS_SECRET_ACCESS_KEY="+hiddenPart)),
		"no RabbitMQ": o.startAs([]string{"run"}, o.redisEnv("", "OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_SINK=rabbitmq",
			"OUTBOXCDC_RECEIVER_URL=amqp://u:"+hiddenPart+"@127.0.0.1:1/"+hiddenPart)),
		"wrong password": o.start(unknown),
		"kafka refuses":  o.start(append(sasl, "OUTBOXCDC_POSTGRES_URL="+url)...),
		"no token": o.start("OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_KAFKA_SASL_MECHANISM=OAUTHBEARER", "OUTBOXCDC_KAFKA_SASL_USER=u",
			"OUTBOXCDC_KAFKA_SASL_PASSWORD_FILE="+file("client", hiddenPart+"-client"), "OUTBOXCDC_KAFKA_SASL_TOKEN_URL=http://127.0.0.1:1/token?key="+hiddenPart),
		"no password": o.start("OUTBOXCDC_POSTGRES_URL="+strings.Replace(unknown, hiddenPart+"-wrong", "", 1)[len("OUTBOXCDC_POSTGRES_URL="):], printsAndFails("OUTBOXCDC_POSTGRES_PASSWORD_COMMAND")),
		"no AWS keys": o.start("OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_KAFKA_SASL_MECHANISM=AWS_MSK_IAM", "OUTBOXCDC_TLS_ENABLED=true", "AWS_REGION=eu-central-1",
			printsAndFails("OUTBOXCDC_KAFKA_SASL_TOKEN_COMMAND")),
		"no token printed": o.start("OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_KAFKA_SASL_MECHANISM=OAUTHBEARER", printsAndFails("OUTBOXCDC_KAFKA_SASL_TOKEN_COMMAND")),
	}
	for what, r := range daemons {
		await(t, patience, what+" to fail", func() error { return waitFor(r.hasBeenIn("reconnecting")) })
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
		says(t, string(log), "xxxxx")
		mayNotShow(t, what+": the log", log)
	}

	// Every command, with working, failing and invalid settings; beside a daemon.
	ended := func(args []string, env ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, testSuite.binary, args...)
		cmd.Dir, cmd.Env = dir, append(append(o.env(), "OUTBOXCDC_SETUP_URL="+setupURL), env...)
		out, _ := cmd.CombinedOutput() // it may fail
		mayNotShow(t, strings.Join(args, " "), out)
	}
	debezium := file("debezium.properties", "connector.class=io.debezium.connector.postgresql.PostgresConnector\nname=x\ndatabase.hostname=h\ndatabase.user=u\n"+
		"database.password="+hiddenPart+"\ndatabase.dbname=d\ntransforms=outbox\ntransforms.outbox.type=io.debezium.transforms.outbox.EventRouter\n")
	more := map[string][]string{"config from-debezium": {debezium}, "config print": {"--origin"}, "peek": {"--limit", "1"}, "standby clean": {"--host", "127.0.0.1"}}
	commands := leafCommands(t)
	if len(commands) < 12 {
		t.Fatalf("only %d commands were found: %v", len(commands), commands)
	}
	for _, command := range commands {
		name := strings.Join(command, " ")
		if name == "run" || strings.HasPrefix(name, "completion") {
			continue
		}
		args := append(slices.Clone(command), more[name]...)
		ended(args, "OUTBOXCDC_POSTGRES_URL="+url, "OUTBOXCDC_POSTGRES_STANDBYS="+url)
		ended(append(args, "-o", "json"), append(sasl, unknown, "OUTBOXCDC_POSTGRES_STANDBYS=host=127.0.0.1 port=1 password="+hiddenPart)...)
	}
	for _, args := range [][]string{
		{"setup", "apply", "--dry-run", "--url", "postgres://u:" + hiddenPart + "/x@h/d"},
		{"setup", "apply", "--dry-run", "--url", "host=127.0.0.1 port=1 user=u password=" + hiddenPart},
		{"setup", "apply", "--dry-run", "--url", "host=h port=" + hiddenPart},
		{"config", "validate", "--set", "kafka.sasl.password=" + hiddenPart},
		{"config", "validate", "--set", "postgres.url=" + hiddenPart},
	} {
		ended(args)
	}

	// Errors about configurations.
	for i, yaml := range []string{
		"postgres: {url: '" + hiddenPart + "'}\n", "postgres: {url: 'postgres://u:" + hiddenPart + "/@h/d', slot: A}\n", "postgres: {url: [" + hiddenPart + "]}\n",
		"postgres:\n  url: postgres://u:" + hiddenPart + "@h/d\n  url_file: /nope\n", "postgres:\n  url: \"postgres://u:" + hiddenPart + "@h/d\n",
		"postgres:\n  url: postgres://u:" + hiddenPart + "@h/d\n slot: x\n", "postgres: {url: {a: " + hiddenPart + "}}\n", "kafka: {sasl: {password: " + hiddenPart + "}}\n",
		"postgres: {standbys: ['" + hiddenPart + "']}\n", "postgres: {standbys: ['postgres://u:" + hiddenPart + "@h:x/d']}\n",
		"postgres: {standbys: [auto, 'host=h password=" + hiddenPart + "']}\n", "postgres: {standbys: ['host=h password=''" + hiddenPart + "']}\n",
		"kafka: {sasl: {mechanism: PLAIN, password: *" + "x}}\n", "kafka: {sasl: {mechanism: PLAIN, user: u, password: " + hiddenPart + ", password_file: /nope}}\n",
		"kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: p, token_url: 'https://u:" + hiddenPart + "@h/'}}\n",
		"kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: p, token_url: 'h/?" + hiddenPart + "'}}\n",
		"receiver: {url: '" + hiddenPart + "'}\n", "sink: http\nreceiver: {url: 'h/" + hiddenPart + "', secret: " + hiddenPart + "}\n",
		"sink: http\nreceiver: {url: 'http://h/', secret: " + hiddenPart + "}\ndelivery: {mode: at_least_once}\nroute: {format: cloudevents_structured, fields: {source: //x}}\n",
		"sink: rabbitmq\nreceiver: {url: 'amqp://u:" + hiddenPart + "@h/?" + hiddenPart + "'}\ndelivery: {mode: at_least_once}\n",
		"sink: redis\nreceiver: {url: 'redis://u:" + hiddenPart + "@h/x?" + hiddenPart + "'}\ndelivery: {mode: at_least_once}\n",
		"sink: sns\nroute: {topic: x.fifo}\nreceiver: {url: 'https://u:" + hiddenPart + "@h/000000000000'}\ndelivery: {mode: at_least_once}\n",
		"sink: sqs\nroute: {topic: x.fifo}\nreceiver: {url: 'https://u:" + hiddenPart + "@h/000000000000'}\ndelivery: {mode: at_least_once}\n",
		"sink: nats\nreceiver: {url: 'nats://u:" + hiddenPart + "@h/x,nats://u:" + hiddenPart + "@h', stream: S}\ndelivery: {mode: at_least_once}\n",
		"sink: nats\nreceiver: {url: 'nats://u:" + hiddenPart + "@h', stream: S, secret_file: " + file("creds", hiddenPart) + "}\ndelivery: {mode: at_least_once}\n",
		"sink: http\nreceiver: {url: 'http://h/', url_file: /nope, secret: [" + hiddenPart + "]}\n", "receiver: {url_file: " + file("receiver", hiddenPart) + "}\n",
		"postgres: {url: 'postgres://u:" + hiddenPart + "@${env:NOPE}/d'}\n", "postgres: {url_file: " + file("url", hiddenPart) + "}\n",
		"kafka: {sasl: {mechanism: PLAIN, user: u, password: '${file:" + file("password", hiddenPart) + "}'}}\n",
	} {
		path := file("wrong.yaml", yaml)
		for _, args := range [][]string{{"config", "validate", "-c", path}, {"config", "print", "-o", "json", "-c", path}, {"setup", "sql", "-c", path}} {
			cmd := exec.Command(testSuite.binary, args...)
			cmd.Env = cleanEnv()
			out, _ := cmd.CombinedOutput()
			if len(out) == 0 {
				t.Errorf("%d %v prints nothing", i, args)
			}
			mayNotShow(t, strings.Join(args, " ")+" of "+yaml, out)
		}
	}
}
