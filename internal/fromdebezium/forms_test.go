package fromdebezium

import (
	"strings"
	"testing"
)

const routerJSON = `{"name": "x", "config": {"connector.class": "PostgresConnector", "database.hostname": "db", "database.dbname": "parcel", "slot.name": "parcel_slot",
  "transforms": "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter", "transforms.outbox.route.topic.replacement": "${routedByValue}-events"}}`

// Files around a connector: the connector is found, or the file is called what it is.
func TestFileForms(t *testing.T) {
	const server = "DEBEZIUM_SINK_TYPE=kafka DEBEZIUM_SINK_KAFKA_PRODUCER_BOOTSTRAP_SERVERS=k:9092 DEBEZIUM_SOURCE_CONNECTOR_CLASS=io.debezium.connector.postgresql.PostgresConnector " +
		"DEBEZIUM_SOURCE_DATABASE_HOSTNAME=db DEBEZIUM_SOURCE_DATABASE_DBNAME=parcel DEBEZIUM_SOURCE_SLOT_NAME=parcel_slot DEBEZIUM_TRANSFORMS=outBox " +
		"DEBEZIUM_TRANSFORMS_OUTBOX_TYPE=io.debezium.transforms.outbox.EventRouter DEBEZIUM_TRANSFORMS_OUTBOX_ROUTE_TOPIC_REPLACEMENT=$${routedByValue}-events"
	lines := func(before, between, after string) string {
		var out strings.Builder
		for pair := range strings.FieldsSeq(server) {
			name, value, _ := strings.Cut(pair, "=")
			out.WriteString(before + name + between + value + after + "\n")
		}
		return out.String()
	}
	for name, text := range map[string]string{
		"curl":        "# creates it\nset -e\ncurl -sS -X POST ${CONNECT}/connectors -d '" + routerJSON + "'\n",
		"script":      "#!/bin/sh\nf() { echo ${1}; }\nhttp POST connect:8083/connectors <<EOF\n" + routerJSON + "\nEOF\n",
		"ksqlDB":      "-- it's\nCREATE SOURCE CONNECTOR x WITH (\n'connector.class' = 'PostgresConnector', \"database.hostname\"='db', 'database.dbname' = 'parcel', 'slot.name' = 'parcel_slot',\n'transforms' = 'outbox', 'transforms.outbox.type' = 'EventRouter', 'transforms.outbox.route.topic.replacement' = '${routedByValue}-events');",
		"env file":    "# of the server\n" + lines("", "=", ""),
		"exports":     lines("export ", `="`, `"`),
		"Compose map": "services:\n  debezium:\n    environment:\n" + lines("      ", `: "`, `"`),
		"Compose":     "services:\n  debezium:\n    environment:\n" + lines("      - ", "=", ""),
		"Kubernetes":  "kind: Deployment\nspec:\n" + lines("        - name: ", "\n          value: \"", `"`),
		"docker run":  "docker run \\\n" + lines("  -e ", "=", ` \`) + "  quay.io/debezium/server\n",
	} {
		r, err := converted(text, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range []string{"postgres://db/parcel", "slot: parcel_slot", `topic: "{aggregate_type}-events"`} {
			if !strings.Contains(r.YAML, want) {
				t.Errorf("%s: %s is missing:\n%s", name, want, r.YAML)
			}
		}
		if fromServer := strings.Contains(text, "DEBEZIUM_"); strings.Contains(r.YAML, "k:9092") != fromServer {
			t.Errorf("%s: the brokers:\n%s", name, r.YAML)
		}
	}
	for name, c := range map[string]struct{ text, says string }{
		"Terraform":        {"resource \"kafka-connect_connector\" \"x\" {\n  config = {\n    \"connector.class\" = \"PostgresConnector\"\n  }\n}\n", "the form of this file is not understood"},
		"Compose":          {"services:\n  connect:\n    image: quay.io/debezium/connect\n", "the form of this file is not understood"},
		"prose":            {"We use Debezium.", "the form of this file is not understood"},
		"a curl of a file": {"curl -d @connector.json http://${HOST}/connectors\n", "the shell script has no JSON of a connector"},
		"broken JSON":      {"curl -d '\n{\"a\": \"b\"\n \"c\": \"d\"}'", "read the JSON in the shell script: line 3, column 2"},
		"no router":        {"connector.class=PostgresConnector\n", "does not use the outbox event router"},
	} {
		if _, err := converted(c.text, Options{}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// Notes say only what matters, and nothing that is wrong.
func TestNotesThatMatter(t *testing.T) {
	const complete = "connector.class=PostgresConnector\ndatabase.hostname=db\ndatabase.dbname=shop\nplugin.name=pgoutput\npublication.autocreate.mode=disabled\nbootstrap.servers=k:1\n" +
		"table.include.list=public.outbox\nkey.converter=org.apache.kafka.connect.storage.StringConverter\nvalue.converter=org.apache.kafka.connect.storage.StringConverter\n" +
		"transforms=outbox\ntransforms.outbox.type=EventRouter\n"
	for more, want := range map[string]string{ // "": no note
		"": "",
		"errors.tolerance=all\nerrors.log.enable=true\nerrors.log.include.messages=true": "errors.tolerance: poison.policy is skip",
		"errors.deadletterqueue.topic.name=dlq":                                          "errors.deadletterqueue.topic.name: Connect has a dead-letter queue for sinks only",
		"value.converter=io.debezium.converters.ByteBufferConverter":                     "",
		"value.converter=io.debezium.converters.ByteBufferConverter\nvalue.converter.delegate.converter.type=org.apache.kafka.connect.json.JsonConverter": "value.converter: bytea is sent as bytes",
		"value.converter=org.apache.kafka.connect.json.JsonConverter":                                                                                     "value.converter: the bytes will differ",
		"transforms.outbox.debezium.expand.json.payload=true":                                                                                             "transforms.outbox.table.expand.json.payload: the payload is sent as Postgres prints it",
		"database.dbname=":  "database.dbname: not set, although Debezium requires it",
		"database.user\"=u": "database.user\": this is no name of an option",
		"predicates=p\npredicates.p.type=TopicNameMatches\npredicates.p.pattern=x\ntransforms.outbox.predicate=p": "",
		"predicates=p\npredicates.p.type=HasHeaderKey\npredicates.p.name=x\ntransforms.outbox.predicate=p":        "transforms.outbox.predicate: there is no counterpart: all rows",
		"producer.override.acks=all\nproducer.override.enable.idempotence=true":                                   "",
		"producer.override.acks=1":      "producer.override.acks: always all",
		"kafka.auth.mode=KAFKA_API_KEY": "kafka.auth.mode: not converted: set kafka.tls and kafka.sasl",
		"connector.class=PostgresCdcSourceV2\nkey.converter=\nvalue.converter=\noutput.data.format=STRING\noutput.key.format=STRING": "output.data.format: the bytes will differ unless; output.key.format: the bytes will differ unless",
	} {
		r, err := converted(complete+more, Options{})
		if err != nil {
			t.Errorf("%s: %v", more, err)
			continue
		}
		var notes []string
		for _, n := range r.Notes {
			notes = append(notes, n.Option+": "+n.Text)
		}
		wants := strings.Split(want, "; ")
		if want == "" {
			wants = nil
		}
		ok := len(notes) == len(wants)
		for i := range wants {
			ok = ok && strings.HasPrefix(notes[i], wants[i])
		}
		if !ok {
			t.Errorf("%s: notes %q, want %q", more, notes, wants)
		}
	}
	r, err := converted(strings.ReplaceAll(complete, "table.include.list", "table.whitelist"), Options{})
	if err != nil || len(r.Notes) > 0 || !strings.Contains(r.YAML, "table: public.outbox") {
		t.Errorf("table.whitelist: %+v %v", r, err)
	}
}
