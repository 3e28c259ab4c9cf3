package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// A publication that sends updates: by default they are skipped, counted and logged once; as poison they are dead
// letters with the columns that the stream has. Positions do not depend on the choice.
func TestOnUpdate(t *testing.T) {
	for _, major := range fullOrShort([]string{"14", "18"}, []string{"17"}) {
		pg := sharedPostgres(t, major)
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, options{pg: pg, types: []string{"order", "dead"}})
			o.exec(`ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL`)
			o.exec(`ALTER PUBLICATION outboxcdc SET (publish = 'insert, update, delete, truncate')`)
			recreateSlot(o)
			transaction := func(id string) {
				o.exec(`DO $$ BEGIN
					INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES ('` + id + `', 'order', 'k', 'first',
						jsonb_build_object('large', (SELECT string_agg(sha256(g::text::bytea)::text, '') FROM generate_series(1, 100) g)));
					UPDATE outbox SET event_type = 'changed' WHERE id = '` + id + `';
					INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'k', 'last', '{}');
					DELETE FROM outbox; END $$`)
				o.awaitConfirmed(o.walFlushed(), patience)
			}
			ordinals := func(want ...string) {
				t.Helper()
				var got []string
				for _, rec := range o.readAll() {
					typ, _ := headerOf(rec, "type")
					position, _ := headerOf(rec, "outboxcdc-position")
					got = append(got, fmt.Sprintf("%s %s%s", strings.TrimPrefix(rec.Topic, o.name+"."), typ, position[strings.LastIndexByte(position, ':'):]))
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("records %q\nwant    %q", got, want)
				}
			}

			r := o.startStreaming()
			transaction("00000000-0000-0000-0000-000000000001")
			transaction("00000000-0000-0000-0000-000000000002")
			m, err := r.metrics()
			must(t, err)
			if n := m[`outboxcdc_events_skipped_total{reason="update"}`]; n != 2 {
				t.Errorf("%v updates are counted", n)
			}
			is(t, "log lines", len(r.logged("skipping updates")), 1)
			r.term()
			ordinals("order first:0", "order last:2", "order first:0", "order last:2")

			r = o.startStreaming("OUTBOXCDC_POISON_CAUSES=update=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
			transaction("00000000-0000-0000-0000-000000000003")
			r.term()
			ordinals("order first:0", "order last:2", "order first:0", "order last:2", "order first:0", "order last:2", "dead changed:1")
			dead, err := kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), o.topic("dead"))
			must(t, err)
			cause, _ := headerOf(dead[0], "outboxcdc-error")
			why, _ := headerOf(dead[0], "outboxcdc-error-message")
			if cause != "update" || !strings.Contains(why, `"payload" is large, unchanged`) || string(dead[0].Key) != "k" || dead[0].Value != nil {
				t.Errorf("the dead letter has cause %q, message %q, key %q and a value of %d bytes", cause, why, dead[0].Key, len(dead[0].Value))
			}

			// With the whole old row in the WAL, the stream has the columns that the update did not change.
			o.exec(`ALTER TABLE outbox REPLICA IDENTITY FULL`)
			r = o.startStreaming("OUTBOXCDC_POISON_CAUSES=update=dead_letter", "OUTBOXCDC_POISON_TOPIC="+o.topic("dead"))
			transaction("00000000-0000-0000-0000-000000000005")
			r.term()
			dead, err = kafkatest.ReadAll(testContext(t), o.kafka.Brokers(), o.topic("dead"))
			must(t, err)
			if len(dead) != 2 || len(dead[1].Value) < 5000 {
				t.Errorf("%d dead letters; the last has a value of %d bytes", len(dead), len(dead[len(dead)-1].Value))
			}

			// With stop it ends the daemon, and a decision about its id lets it continue.
			r = o.startStreaming("OUTBOXCDC_POISON_CAUSES=update=stop")
			o.exec(`INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type) VALUES ('00000000-0000-0000-0000-000000000004', 'order', 'k', 'x')`)
			o.exec(`UPDATE outbox SET event_type = 'y'`)
			r.awaitStop(patience, 65, "cause=update", "00000000-0000-0000-0000-000000000004")
			r = o.startStreaming("OUTBOXCDC_POISON_CAUSES=update=stop", "OUTBOXCDC_POISON_DECISIONS=00000000-0000-0000-0000-000000000004=skip")
			o.awaitConfirmed(o.walFlushed(), patience)
			r.term()
		})
	}
}
