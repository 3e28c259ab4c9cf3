package fromdebezium

import (
	"strings"
	"testing"
)

// Files around a connector are called what they are: their lines must not be read as properties.
func TestFileForms(t *testing.T) {
	const unknown = "the form of this file is not understood"
	for name, c := range map[string]struct{ text, says string }{
		"Terraform": {"resource \"kafka-connect_connector\" \"x\" {\n  config = {\n    \"connector.class\" = \"PostgresConnector\"\n  }\n}\n", unknown},
		"Compose":   {"services:\n  connect:\n    image: quay.io/debezium/connect\n", unknown},
		"Strimzi":   {"apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaConnector\nspec:\n  config:\n    database.hostname: \"db\"\n    transforms: o\n    transforms.o.type: io.debezium.transforms.outbox.EventRouter\n", unknown},
		"ksqlDB":    {"CREATE SOURCE CONNECTOR x WITH (\n'connector.class' = 'PostgresConnector', 'transforms' = 'outbox');", unknown},
		"a script":  {"curl -X POST ${CONNECT}/connectors -d '{\"name\": \"x\", \"config\": {\n\"connector.class\": \"PostgresConnector\",\n\"transforms\": \"outbox\"}}'\n", unknown},
		"variables": {"DEBEZIUM_SINK_TYPE=kafka\nDEBEZIUM_SOURCE_CONNECTOR_CLASS=io.debezium.connector.postgresql.PostgresConnector\n", unknown},
		"prose":     {"We use Debezium.", unknown},
		"no router": {"connector.class=PostgresConnector\n", "does not use the outbox event router"},
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
		"kafka.auth.mode=KAFKA_API_KEY": "kafka.auth.mode: not converted: set tls and kafka.sasl",
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
