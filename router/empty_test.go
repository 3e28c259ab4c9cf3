package router

import "testing"

// TestEmptyIsNotNull: an empty value is no tombstone, and an empty key is no missing one, whatever the router has
// written before. A message of Protocol Buffers whose fields all have their defaults is empty.
func TestEmptyIsNotNull(t *testing.T) {
	payload := func(c *Config) {
		c.Format, c.Columns.EventType, c.Fields = FormatEnvelope, "", map[string]string{"eventId": "", "schemaVersion": "", "occurredAt": "", "traceId": "", "aggregateType": "", "aggregateId": ""}
	}
	for want, change := range map[string]func(*Config){
		`orders key="42" by="42" value=""`:                           func(*Config) {},
		`orders key="" by="" value=""`:                               func(c *Config) { c.Key = "{created_at}{headers}" },
		`orders key="42" by="42" value="{\"data\":\"\"}"`:            payload,
		`orders key="42" by="42" value="{\"x\":\"\",\"data\":\"\"}"`: func(c *Config) { payload(c); c.Fields["x"] = "{created_at}{headers}" },
	} {
		r := newRouter(t, func(c *Config) {
			c.Topic, c.Topics, c.PositionHeader = "", map[string]string{"order": "orders"}, false
			c.Columns.EventType, c.Columns.Headers = "", ""
			change(c)
		})
		ev := outbox("payload:17", `\x`, "created_at:25", "", "headers:25", "")
		for range 2 {
			var rec Record
			must(t, r.Route(ev, testPos, &rec))
			rec.Headers = nil
			if got := show(&rec); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			r.scratch = make([]byte, 0, maxScratch+1) // as after a huge row: the memory is freed
		}
	}
}
