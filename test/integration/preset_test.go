package integration

import (
	"bytes"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// preset: debezium with the table and the publication of Debezium's connector: records are as its router creates them;
// rows of other tables, and updates and deletes of ours, become no records.
func TestPresetDebezium(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	o.exec(`DROP PUBLICATION outboxcdc`)
	o.exec(`DROP TABLE outbox`)
	o.exec(`CREATE TABLE outbox (id uuid NOT NULL DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL DEFAULT '` + o.name + `',
		aggregateid varchar(255) DEFAULT '42', type varchar(255) NOT NULL DEFAULT 'OrderPlaced', payload jsonb DEFAULT '{"total":  9.50}',
		note text, PRIMARY KEY (id))`)
	o.exec(`GRANT SELECT ON outbox TO ` + role)
	o.exec(`CREATE PUBLICATION dbz_publication FOR ALL TABLES`) // as the connector makes it
	recreateSlot(o)
	routed1, routed2 := "outbox.event."+o.name, "outbox.event.customer_"+o.name
	for _, topic := range []string{routed1, routed2} {
		must(t, kafkatest.CreateTopic(testContext(t), o.kafka.Brokers(), topic, 3, nil))
		t.Cleanup(func() { _ = kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), topic) })
	}
	topics := []string{routed1, routed2}
	env := []string{
		"OUTBOXCDC_PRESET=debezium", "OUTBOXCDC_POSTGRES_PUBLICATION=dbz_publication", "OUTBOXCDC_ROUTE_TOPIC=outbox.event.{aggregate_type}",
	}
	justID := []string{"id=$id"}
	o.exec(`INSERT INTO counter (key) VALUES ('no event')`)
	o.testRoutes(t, routingGroup{"defaults", env, []routed{
		{topic: routed1, headers: justID},
		{columns: "aggregatetype, aggregateid, payload", values: "'customer_" + o.name + "', 'ü 7', '[1, 1.0]'", topic: routed2, key: "ü 7", headers: justID},
		{columns: "payload", values: "NULL", topic: routed1, value: "NULL", headers: justID},
		{columns: "aggregateid", values: "NULL", topic: routed1, noKey: true, headers: justID},
	}, topics})
	// route.tombstone.on.empty.payload=true, and an expression that does not match: the type is the topic.
	o.testRoutes(t, routingGroup{"blank", append(env, "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=note", "OUTBOXCDC_ROUTE_BLANK_PAYLOAD=null",
		"OUTBOXCDC_ROUTE_REPLACE_REGEX=x_(.*)", "OUTBOXCDC_ROUTE_REPLACE_WITH=$1", "OUTBOXCDC_ROUTE_HEADERS=type:eventType"), []routed{
		{columns: "note, aggregatetype", values: "' ', 'x_" + o.name + "'", topic: routed1, value: "NULL", headers: []string{"id=$id", "eventType=OrderPlaced"}},
		{columns: "note, aggregatetype", values: "'x', '" + routed2 + "'", topic: routed2, value: "'x'::bytea", headers: []string{"id=$id", "eventType=OrderPlaced"}},
	}, topics})
	// A blank text that is not to become a tombstone.
	o.testRoutes(t, routingGroup{"kept", append(env, "OUTBOXCDC_OUTBOX_COLUMNS_PAYLOAD=note"), []routed{
		{columns: "note", values: "' '", topic: routed1, value: "' '::bytea", headers: justID},
	}, topics})

	r := o.startStreaming(env...)
	if got := r.logged(inFlightRepeats); len(got) != 1 { // there is no position header
		t.Errorf("logged %d times: %s", len(got), inFlightRepeats)
	}
	var id string
	must(t, o.admin.scan(`INSERT INTO outbox DEFAULT VALUES RETURNING id::text`, &id))
	o.exec(`UPDATE outbox SET payload = '{"changed": 1}' WHERE id = $1`, id)
	o.exec(`UPDATE outbox SET id = gen_random_uuid(), payload = '{"changed": 2}' WHERE id = $1`, id) // its key changes too
	o.exec(`DELETE FROM outbox WHERE payload @> '{"changed": 2}'`)
	o.exec(`DELETE FROM counter`)
	must(t, o.admin.scan(`INSERT INTO outbox DEFAULT VALUES RETURNING id::text`, new(string)))
	o.awaitConfirmed(o.walFlushed(), patience)
	all, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), topics...)
	must(t, err)
	const inserted = 7 + 2
	if len(all) != inserted {
		t.Errorf("%d records, want one for each of %d rows inserted", len(all), inserted)
	}
	for _, rec := range all {
		if got, _ := headerOf(rec, "id"); got == id && !bytes.Equal(rec.Value, []byte(`{"total": 9.50}`)) {
			t.Errorf("the value of the row that was updated later is %s", rec.Value)
		}
	}
	m, err := r.metrics()
	must(t, err)
	for name, want := range map[string]float64{
		`outboxcdc_replication_messages_total{type="update"}`: 2, `outboxcdc_replication_messages_total{type="delete"}`: 1,
	} {
		if m[name] != want {
			t.Errorf("%s is %v, want %v", name, m[name], want)
		}
	}
}

// inFlightRepeats is logged at the start of a daemon with delivery.mode at_least_once.
const inFlightRepeats = "delivering at least once: a crash repeats events in flight"
