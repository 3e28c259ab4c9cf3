package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// loadText loads a file with this text, and environment variables.
func loadText(yaml string, environ ...string) (*Config, error) {
	return load([]source{{"t.yaml", []byte(yaml)}}, environ)
}

func TestDefaultsAreValid(t *testing.T) {
	must(t, Default().Validate())
	c, err := load(nil, []string{"PATH=/bin", "PGHOST=db"})
	if err != nil || !reflect.DeepEqual(c, Default()) {
		t.Fatalf("nothing set: %v\n%v", err, c)
	}
	if c.Route.NullKey != "poison" || c.Tuning.MaxInFlight.Bytes != 16<<20 || c.Tuning.ParkAfter != 30*time.Second || !c.Route.PositionHeader {
		t.Errorf("defaults are not those of the contract:\n%s", c)
	}
}

// beside are settings that surface.yaml does not have.
var beside = []string{
	"postgres.url_file", "postgres.standbys", "route.blank_payload", "route.trace_context",
	"kafka.sasl.password_file", "kafka.sasl.token_url", "kafka.sasl.scopes", "outbox.columns.created_at", "outbox.order",
}

// surface.yaml is a configuration with every setting at its default. It loads to the defaults.
func TestContractSampleIsTheDefault(t *testing.T) {
	data, err := os.ReadFile("testdata/surface.yaml")
	must(t, err)
	c, err := loadText(string(data))
	must(t, err)
	for _, s := range c.Settings() {
		if !strings.HasPrefix(s.Origin, "t.yaml:") && !slices.Contains(beside, s.Path) {
			t.Errorf("%s is not in the contract's sample", s.Path)
		}
	}
	want := Default()
	want.Postgres.URL = "postgres://outboxcdc@db/shop"
	want.origins = c.origins
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got\n%s\nwant\n%s", c, want)
	}
}

func TestEverySettingIsReachable(t *testing.T) {
	names := map[string]string{}
	for _, s := range knownSettings() {
		if other, dup := names[EnvName(s.path)]; dup {
			t.Errorf("%s and %s share %s", other, s.path, EnvName(s.path))
		}
		names[EnvName(s.path)] = s.path
		if isForeign(EnvName(s.path), "x") {
			t.Errorf("%s would be taken for a foreign variable", EnvName(s.path))
		}
		if _, isTree := knownTree().sections[s.path]; isTree {
			t.Errorf("%s is a setting and a section", s.path)
		}
	}
}

func TestLayersAndMerge(t *testing.T) {
	base := source{"base.yaml", []byte("kafka:\n  brokers: [a:1, b:2]\n  compression: zstd\ntuning:\n  max_in_flight: {records: 10}\nlog: {level: debug}\n")}
	over := source{"over.yaml", []byte("kafka:\n  brokers: [c:3]\ntuning:\n  max_in_flight: {bytes: 1MiB}\n")}
	c, err := load([]source{base, over}, []string{
		"OUTBOXCDC_LOG_LEVEL=warn", "OUTBOXCDC_TUNING_STATUS_INTERVAL=250ms", "OUTBOXCDC_HTTP_LISTEN=", "OUTBOXCDC_TLS_ENABLED=true",
	})
	must(t, err)
	k := c.Kafka
	if !slices.Equal(k.Brokers, []string{"c:3"}) || k.Compression != "zstd" || c.Tuning.MaxInFlight != (MaxInFlight{10, 1 << 20}) {
		t.Errorf("files: %+v", k)
	}
	if c.Log.Level != "warn" || c.Tuning.StatusInterval != 250*time.Millisecond || c.HTTP.Listen != "" || !c.TLS.Enabled {
		t.Errorf("environment: %+v %+v %+v", c.Log, c.Postgres, c.HTTP)
	}
	for path, want := range map[string]string{
		"kafka.brokers": "over.yaml:2:12", "kafka.compression": "base.yaml:3:16",
		"log.level": "OUTBOXCDC_LOG_LEVEL", "postgres.slot": "default",
	} {
		if got := c.Origin(path); got != want {
			t.Errorf("origin of %s: %s, want %s", path, got, want)
		}
	}
	c, err = load([]source{base}, []string{"OUTBOXCDC_KAFKA_BROKERS=x:1, y:2,[::1]:3"})
	if err != nil || !slices.Equal(c.Kafka.Brokers, []string{"x:1", "y:2", "[::1]:3"}) {
		t.Errorf("list from the environment: %v %v", c, err)
	}
}

func TestYAMLForms(t *testing.T) {
	for _, yaml := range []string{
		"", "# nothing\n", "---\n", "\ufeffpostgres: {slot: s}\n", "kafka:\nlog:\n  # level: debug\n", "postgres:\r\n  slot: s\r\n",
		"postgres: {slot: &a s, publication: *a}\n", "postgres:\n  slot: !!str 5\n", "poison: {topic: 4.0}\n",
		"postgres: &p\n  slot: s\n", "http:\n  listen: |\n    :1\n  web_config_file: x\n",
	} {
		c, err := loadText(yaml)
		if strings.Contains(yaml, "|") { // the block ends with a newline, which an address may not contain
			if err == nil {
				t.Errorf("%q: accepted %q", yaml, c.HTTP.Listen)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", yaml, err)
		}
	}
	if c, _ := loadText("poison: {topic: 4.0}"); c.Poison.Topic != "4.0" {
		t.Errorf("a number became %q, want it as written", c.Poison.Topic)
	}
	for _, null := range []string{"null", `"null"`} { // a choice, and not the absence of one
		if c, err := loadText("route: {blank_payload: " + null + "}"); err != nil || c.Route.BlankPayload != "null" {
			t.Errorf("%s became %q: %v", null, c.Route.BlankPayload, err)
		}
	}
}

// TestLoadErrors has a row for each mistake: the input, and the texts of the error.
func TestLoadErrors(t *testing.T) {
	tests := []struct {
		yaml string
		env  string
		want []string
	}{
		{yaml: "postgres:\n  slt: x\n", want: []string{`t.yaml:2:3: unknown key "slt"; did you mean "slot"?`}},
		{yaml: "slot: x\n", want: []string{`t.yaml:1:1: unknown key "slot"`, `under "postgres"`}},
		{yaml: "postgre:\n  slot: x\n", want: []string{`t.yaml:1:1`, `did you mean "postgres"?`}},
		{yaml: "log: {zzzzzzzzz: 1}\n", want: []string{"t.yaml:1:7", "known under log: level"}},
		{yaml: "kafka.brokers: [a:1]\n", want: []string{`t.yaml:1:1: unknown key "kafka.brokers"`}},
		{yaml: "postgres: {slot: a}\npostgres: {slot: b}\n", want: []string{"t.yaml:2:1", "already defined"}},
		{yaml: "postgres: {slot: a}\n---\nlog: {level: info}\n", want: []string{"t.yaml:3", "second YAML document"}},
		{yaml: "postgres: [a]\n", want: []string{"t.yaml:1:11: postgres: must have keys and values: url, "}},
		{yaml: "- a\n", want: []string{"t.yaml:1", "must have keys and values"}},
		{yaml: "log:\n  level:\n", want: []string{"t.yaml:2", "log.level: has no value"}},
		{yaml: "log: {level: null}\n", want: []string{"t.yaml:1", "log.level: has no value"}},
		{yaml: "route:\n  blank_payload:\n", want: []string{"t.yaml:2", "route.blank_payload: has no value"}},
		{yaml: "log: {level: [a]}\n", want: []string{"log.level: must be a single value"}},
		{yaml: "kafka: {brokers: {a: 1}}\n", want: []string{"kafka.brokers: must be a list"}},
		{yaml: "kafka: {brokers: [[a]]}\n", want: []string{"kafka.brokers: must be a list"}},
		{yaml: "tuning: {max_in_flight: {records: many}}\n", want: []string{"t.yaml:1:35: tuning.max_in_flight.records", "whole number"}},
		{yaml: "tuning: {max_in_flight: {bytes: 16Mi}}\n", want: []string{`"16Mi" is not a size`}},
		{yaml: "tuning: {max_in_flight: {bytes: 9999999999GiB}}\n", want: []string{"too large"}},
		{yaml: "shutdown_timeout: 30\n", want: []string{`shutdown_timeout: "30" is not a duration`, "30s"}},
		{yaml: "tls: {enabled: yes}\n", want: []string{`"yes" is neither true nor false`}},
		{yaml: "log: &l {level: info}\nhttp:\n  <<: *l\n", want: []string{"t.yaml:3:3", "merge keys"}},
		{yaml: "log: {level: *nope}\n", want: []string{"t.yaml:1:14", `no anchor "&nope"`}},
		{yaml: "log: &a *a\n", want: []string{"t.yaml:1"}}, // an error of the parser; resolve has its own limit
		{yaml: "log: {level: !secret x}\n", want: []string{"tags"}},
		{yaml: strings.Repeat("[", 60000), want: []string{"nested too deeply"}},
		{yaml: strings.Repeat("#", maxFileBytes+1), want: []string{"larger than"}},
		{yaml: "log: {level: \xff}\n", want: []string{"not UTF-8"}},
		{yaml: "log: {level: loud}\n", want: []string{`t.yaml:1:14: log.level: "loud" is unknown; write debug | info | warn | error`}},
		{yaml: "preset: kafka\n", want: []string{`t.yaml:1:9: preset: "kafka" is unknown; write outboxcdc | debezium`}},
		{yaml: "route:\n  topics: {order: [a]}\n", want: []string{"t.yaml:2:11: route.topics", "must be a mapping of single values"}},
		{yaml: "route:\n  topics: orders\n", want: []string{`t.yaml:2:11: route.topics: "orders" is not key=value`}},
		{yaml: "route:\n  partitions: {orders: many}\n", want: []string{`route.partitions: orders: "many" is not a whole number`}},
		{env: "OUTBOXCDC_ROUTE_PARTITIONS=a=1,a=2", want: []string{`route.partitions: the key "a" occurs twice`}},
		{yaml: "poison: {policy: hold_key, oversize: cut}\n", want: []string{"poison.oversize: is cut, but a letter that was cut cannot be retried"}},
		{yaml: "poison: {causes: {too_large: hold_key}}\nroute: {partition: p}\n", want: []string{"route.partition: chooses partitions"}},
		{yaml: "preset: debezium\npoison: {policy: hold_key}\n", want: []string{"route.position_header: is false, but the policy hold_key"}},
		{yaml: "outboxes: [{table: public.a, route: {partition: p}}, {table: public.b}]\npoison: {policy: hold_key}\n", want: []string{"outboxes[0].route.partition: chooses partitions"}},
		{yaml: "tuning: {max_held: {keys: 0, letters: 2000000}}\n", want: []string{"tuning.max_held.keys: 0 is out of range", "tuning.max_held.letters: 2000000 is out of range"}},
		{yaml: "poison: {policy: ignore}\n", want: []string{`"ignore" is unknown; write hold_key | dead_letter | stop | skip`}},
		{yaml: "tls: {ca_file: /ca.pem, cert_file: k}\n", want: []string{"t.yaml:1:16: tls.ca_file: is set, but tls.enabled is false", "tls.cert_file"}},
		{yaml: "tls: {enabled: true, cert_file: /c.pem}\n", want: []string{"tls.key_file: is empty, but tls.cert_file is set"}},
		{yaml: "tls: {enabled: true, key_file: /k.pem}\n", want: []string{"tls.cert_file: is empty"}},
		{env: "OUTBOXCDC_KAFKA_SASL_PASSWORD=s3cr3t", want: []string{"OUTBOXCDC_KAFKA_SASL_PASSWORD: kafka.sasl.password: is set, but kafka.sasl.mechanism is empty; write PLAIN |"}},
		{yaml: "kafka: {create_topics: {partitions: -1, replication_factor: 40000}}\n", want: []string{
			"t.yaml:1:37: kafka.create_topics.partitions: -1 is out of range; write 0 to 2147483647", "kafka.create_topics.replication_factor: 40000 is out of range; write 1 to 32767",
		}},
		{yaml: "kafka: {create_topics: {replication_factor: 1}}\n", want: []string{"kafka.create_topics: says how to create topics, but without partitions"}},
		{yaml: "kafka: {create_topics: {config: {retention.ms: 1}}}\n", want: []string{"kafka.create_topics: says how to create topics, but without partitions"}},
		{yaml: "postgres: {url: 'postgres://h/d?target_session_attrs=standby'}\n", want: []string{"t.yaml:1:17: postgres.url: target_session_attrs=standby is for standbys"}},
		{yaml: "postgres: {url: 'host=a,b target_session_attrs=read-only password=s3cr3t'}\n", want: []string{"postgres.url: target_session_attrs=read-only is for standbys"}},
		{yaml: "postgres: {url: 'postgres://u:12?s3cr3t@h/d'}\n", want: []string{"postgres.url: the value (not shown) has an @ after the first / ? or #"}},
		{yaml: "kafka: {sasl: {mechanism: SCRAM}}\n", want: []string{`kafka.sasl.mechanism: "SCRAM" is unknown; write PLAIN | SCRAM-SHA-256`}},
		{yaml: "kafka: {sasl: {mechanism: PLAIN}}\n", want: []string{"kafka.sasl.user: is empty; PLAIN needs one", "kafka.sasl.password: is empty; PLAIN needs one"}},
		{yaml: "kafka: {sasl: {mechanism: PLAIN, user: u, password: s3cr3t, token_url: \"http://s\"}}\n", want: []string{"kafka.sasl.token_url: is only for OAUTHBEARER"}},
		{yaml: "kafka: {sasl: {mechanism: PLAIN, user: u, password: s3cr3t, password_file: /p}}\n", want: []string{"kafka.sasl.password_file: kafka.sasl.password is set too"}},
		{yaml: "kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: s3cr3t}}\n", want: []string{`kafka.sasl.token_url: "" is not the URL`}},
		{yaml: "kafka: {sasl: {mechanism: OAUTHBEARER, user: u, password: s3cr3t, token_url: \"https://u:s3cr3t@s\"}}\n", want: []string{"kafka.sasl.token_url: contains a user"}},
		{yaml: "delivery: {mode: transactional}\n", want: []string{
			`t.yaml:1:18: delivery.mode: "transactional" is unknown; write at_least_once | deduplicated`,
		}},
		{yaml: "delivery: {mode: exactly_once}\n", want: []string{`delivery.mode: "exactly_once" is unknown; write at_least_once | deduplicated`}},
		{env: "OUTBOXCDC_ROUTE_TOPICS=a", want: []string{"OUTBOXCDC_ROUTE_TOPICS: route.topics", `"a" is not key=value`}},
		{env: "OUTBOXCDC_POSTGRES_SLT=x", want: []string{"OUTBOXCDC_POSTGRES_SLT: unknown environment variable; did you mean OUTBOXCDC_POSTGRES_SLOT?"}},
		{env: "OUTBOXCDC_HTTP_PORT=9464", want: []string{"OUTBOXCDC_HTTP_PORT: unknown environment variable"}},
		{env: "OUTBOXCDC_LOG_LEVEL=loud", want: []string{`OUTBOXCDC_LOG_LEVEL: log.level: "loud" is unknown`}},
		{
			yaml: "postgres:\n  url: postgres://u@h/d\n", env: "OUTBOXCDC_POSTGRES_URL_FILE=/run/x",
			want: []string{"OUTBOXCDC_POSTGRES_URL_FILE: postgres.url_file: postgres.url is set too (t.yaml:2:8)"},
		},
	}
	for _, test := range tests {
		var environ []string
		if test.env != "" {
			environ = []string{test.env}
		}
		_, err := loadText(test.yaml, environ...)
		if err == nil {
			t.Errorf("%.60q %s: accepted", test.yaml, test.env)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%.60q %s:\n got %v\nwant %s", test.yaml, test.env, err, want)
			}
		}
		var e interface{ ExitCode() int }
		if !errors.As(err, &e) || e.ExitCode() != 78 {
			t.Errorf("%.60q: exit code is not 78: %v", test.yaml, err)
		}
		if strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	_, err := loadText("log: {level: loud}\npostgres: {slt: x}\n", "OUTBOXCDC_NOPE=1")
	if n := len(strings.Split(err.Error(), "\n")); n != 3 {
		t.Errorf("%d errors, want 3: %v", n, err)
	}
	_, err = loadText("postgres: {slot: A, publication: ''}\nkafka: {brokers: [a]}\n")
	if n := len(strings.Split(err.Error(), "\n")); n != 3 {
		t.Errorf("%d errors, want 3: %v", n, err)
	}
}

func TestForeignVariables(t *testing.T) {
	_, err := load(nil, []string{
		"OUTBOXCDC_TEST_SEED=1", "OUTBOXCDC_CACHE=/c", "OUTBOXCDC_PG_BIN_17=/p", "OUTBOXCDC_SETUP_URL=postgres://x",
		// What Kubernetes adds for Services called outboxcdc and outboxcdc-metrics.
		"OUTBOXCDC_SERVICE_HOST=10.0.0.1", "OUTBOXCDC_SERVICE_PORT=9464", "OUTBOXCDC_SERVICE_PORT_HTTP=9464",
		"OUTBOXCDC_PORT=tcp://10.0.0.1:9464", "OUTBOXCDC_PORT_9464_TCP=tcp://10.0.0.1:9464",
		"OUTBOXCDC_PORT_9464_TCP_ADDR=10.0.0.1", "OUTBOXCDC_PORT_9464_TCP_PROTO=tcp", "OUTBOXCDC_METRICS_SERVICE_HOST=10.0.0.1",
		"OUTBOXCDC_METRICS_PORT=tcp://10.0.0.1:9464", "OUTBOXCDCX=1", "OTHER",
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLoadFiles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if c, err := Load(nil, nil); err != nil || c.Postgres.Slot != "outboxcdc" || Find(nil) != nil {
		t.Fatalf("no file at all: %v", err)
	}
	must(t, os.WriteFile("outboxcdc.yaml", []byte("postgres: {slot: found}\n"), 0o600))
	c, err := Load(nil, nil)
	if err != nil || c.Postgres.Slot != "found" || c.Origin("postgres.slot") != "./outboxcdc.yaml:1:18" {
		t.Fatalf("file in the working directory: %v %v", c.Origin("postgres.slot"), err)
	}
	must(t, os.WriteFile("later.yaml", []byte("postgres: {slot: later}\n"), 0o600))
	if c, err = Load([]string{"outboxcdc.yaml", "later.yaml"}, nil); err != nil || c.Postgres.Slot != "later" {
		t.Errorf("two files, the later wins: %v", err)
	}
	_, err = Load([]string{filepath.Join(dir, "missing.yaml")}, nil)
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("a named file that is missing: %v", err)
	}
	if _, err = Load([]string{dir}, nil); !errors.As(err, &e) {
		t.Errorf("a directory: %v", err)
	}
}

// TestDelivery checks that deduplicated delivery is the default, and that it requires the position header.
func TestDelivery(t *testing.T) {
	c, err := loadText("")
	if err != nil || !c.Deduplicated() {
		t.Errorf("the default is %+v: %v", c.Delivery, err)
	}
	if _, err := loadText("route: {position_header: false}\n"); err == nil || !strings.Contains(err.Error(), "write delivery.mode: at_least_once") {
		t.Errorf("without the header: %v", err)
	}
	for _, text := range []string{
		"route: {position_header: false}\ndelivery: {mode: at_least_once}\npoison: {policy: stop}\n",
		"preset: debezium\nroute: {position_header: true}\ndelivery: {mode: deduplicated}\n",
	} {
		if _, err := loadText(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestPreset checks that a preset changes defaults and no setting that was set.
func TestPreset(t *testing.T) {
	c, err := load([]source{{"t.yaml", []byte("preset: debezium\noutbox: {columns: {aggregate_id: key}}\n")}}, []string{"OUTBOXCDC_ROUTE_NULL_KEY=poison"})
	must(t, err)
	if got := c.Outbox.Columns; got != (Columns{ID: "id", AggregateType: "aggregatetype", AggregateID: "key", Payload: "payload", CreatedAt: "created_at"}) {
		t.Errorf("columns %+v", got)
	}
	if r := c.Route; r.NullKey != "poison" || r.Unmatched != "keep" || r.PositionHeader {
		t.Errorf("route %+v", r)
	}
	if c.Deduplicated() || c.Origin("delivery.mode") != "preset: debezium" {
		t.Errorf("delivery.mode %s by %s: there is no position header to deduplicate by", c.Delivery.Mode, c.Origin("delivery.mode"))
	}
	if c.Poison.Holds() || c.Origin("poison.policy") != "preset: debezium" {
		t.Errorf("poison.policy %s by %s: no letter is recognized without the header", c.Poison.Policy, c.Origin("poison.policy"))
	}
	if got := c.Origin("route.unmatched"); got != "preset: debezium" {
		t.Errorf("origin %q", got)
	}
	again, err := load([]source{{"again.yaml", []byte(c.String())}}, nil)
	if err != nil || again.Route.Unmatched != "keep" {
		t.Errorf("what is printed does not load to the same: %v", err)
	}
}

// TestEveryKindOfErrorAtOnce checks that errors of reading and of validation are reported together, except in a section
// that could not be read.
func TestEveryKindOfErrorAtOnce(t *testing.T) {
	_, err := loadText("postgres: {slot: A, slt: x}\ntls: {enabled: maybe, ca_file: /c}\nkafka: {sasl: {usr: x, mechanism: PLAIN}}\nlog: {level: loud}\n", "OUTBOXCDC_SHUTDOWN_TIMEOUT=0s")
	var got []string
	for _, e := range Errors(err) {
		got = append(got, e.Where+" "+e.Path)
	}
	want := []string{"t.yaml:1:21 ", "t.yaml:2:16 tls.enabled", "t.yaml:3:16 ", "t.yaml:4:14 log.level", "t.yaml:1:18 postgres.slot", "OUTBOXCDC_SHUTDOWN_TIMEOUT shutdown_timeout"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q\n%v", got, want, err)
	}
}

func TestFlags(t *testing.T) {
	c, err := load([]source{{"t.yaml", []byte("log: {level: warn}\n")}}, []string{"OUTBOXCDC_LOG_LEVEL=error"}, "log.level=info", "log.level=debug", "route.topics=a=b,c=d")
	if err != nil || c.Log.Level != "debug" || c.Origin("log.level") != "--set" || c.Route.Topics["c"] != "d" {
		t.Errorf("%v %v", c, err)
	}
	for flag, want := range map[string]string{
		"log.level":                   `--set: "log.level" is not setting=value`,
		"log.levl=x":                  `--set: unknown setting "log.levl"; did you mean "log.level"?`,
		"log.level=loud":              `--set: log.level: "loud" is unknown`,
		"kafka.sasl.password=s3cr3t":  "--set: kafka.sasl.password: is a secret",
		"postgres.url=postgres://s3c": "use OUTBOXCDC_POSTGRES_URL, OUTBOXCDC_POSTGRES_URL_FILE or a file",
		"postgres.standbys=host=s3c":  "use OUTBOXCDC_POSTGRES_STANDBYS or a file",
	} {
		if _, err := load(nil, nil, flag); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3c") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestReferences checks that references in values of files are replaced, and that any other $ is kept.
func TestReferences(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(name, []byte("pa$$\n"), 0o600))
	c, err := loadText(`
postgres: {url: "postgres://u:${env:PW}@${env:HOST}/d"}
kafka: {brokers: ["${env:HOST}:1", "b:2"], sasl: {mechanism: PLAIN, user: 'a$b$$c${x}', password: "${file:`+name+`}"}}
route: {topics: {a: "t.${env:HOST}"}, replace: {regex: "(.*)", with: '$1${name}$$'}, fields: {x: '$${env:HOST}'}}
outboxes: [{table: 'public.${env:HOST}'}]
`, "PW=p${env:HOST}", "HOST=db")
	must(t, err)
	for got, want := range map[string]string{
		c.Postgres.URL: "postgres://u:p${env:HOST}@db/d", c.Kafka.Brokers[0]: "db:1", c.Kafka.SASL.User: "a$b$$c${x}", c.Kafka.SASL.Password: "pa$$",
		c.Route.Topics["a"]: "t.db", c.Route.Replace.With: "$1${name}$$", c.Route.Fields["x"]: "${env:HOST}", c.Outboxes[0].Table: "public.db",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if again, err := loadText(c.String()); err != nil || again.Route.Fields["x"] != "${env:HOST}" {
		t.Errorf("what is printed does not load to the same: %v", err)
	}
	for yaml, want := range map[string]string{
		"postgres: {url: 'postgres://s3cr3t@${env:NOPE}/'}\n": "t.yaml:1:17: postgres.url: ${env:NOPE}: the environment has no such variable",
		"log:\n  level: ${file:/nope}\n":                      "t.yaml:2:10: log.level: ${file:/nope}: open /nope",
	} {
		if _, err := loadText(yaml, "NOP=s3cr3t"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v", yaml, err)
		}
	}
}

// must fails the test with an error that no step of it expects.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
