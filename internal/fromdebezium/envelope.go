package fromdebezium

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// defaultFields are the fields of outboxcdc's envelope by default.
var defaultFields = []string{"eventId", "schemaVersion", "occurredAt", "traceId", "aggregateType", "aggregateId", "data"}

// placement converts table.fields.additional.placement. It returns the headers and writes the rest.
func (c *conversion) placement() (headers []string) {
	option := c.smt + "table.fields.additional.placement"
	fields := map[string]string{} // of the envelope: name → column
	partition := ""               // as in Debezium, the last one is used
	var names []string            // of headers
	for _, placement := range splitList(c.get(option)) {
		parts := strings.Split(placement, ":")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		if len(parts) < 2 {
			c.note(option, "%q has no placement", placement)
			continue
		}
		column, name := parts[0], parts[0]
		if len(parts) > 2 {
			name = parts[2]
		}
		switch where := strings.ToLower(parts[1]); {
		case where == "header" && (name == "id" || strings.HasPrefix(name, "outboxcdc-") || slices.Contains(names, name)):
			c.note(option, "%q: records have only one header %s; Debezium adds a second one", placement, name)
		case where == "header":
			names = append(names, name)
			if name != column {
				column += ":" + name
			}
			headers = append(headers, column)
		case where == "partition":
			partition = column
		case where == "envelope":
			fields[name] = column
		default:
			c.note(option, "%q: Debezium has no such placement, and fails with the first row", placement)
		}
	}
	if partition != "" {
		c.line(1, "partition", partition)
	}
	if len(fields) > 0 {
		c.envelope(option, fields)
	}
	return headers
}

// envelope writes the fields of the envelope: the field payload, and a field for each column.
func (c *conversion) envelope(option string, columns map[string]string) {
	sources := map[string]string{}
	for _, name := range defaultFields {
		sources[name] = ""
	}
	sources["payload"] = "{payload}"
	roles := map[string]string{ // the column that {name} means, even if another column has that name
		"id": cmp.Or(c.router("table.field.event.id"), "id"), "aggregate_type": cmp.Or(c.router("route.by.field"), "aggregatetype"),
		"aggregate_id": cmp.Or(c.router("table.field.event.key"), "aggregateid"), "payload": cmp.Or(c.router("table.field.event.payload"), "payload"),
	}
	for name, column := range columns {
		if meant, role := roles[column]; role && meant != column {
			c.note(option, "{%[2]s} does not mean the column %[1]q but the column with that role; rename the column", column, column)
		}
		sources[name] = "{" + column + "}"
	}
	c.line(1, "format", "envelope")
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		fields = append(fields, strconv.Quote(name)+": "+strconv.Quote(sources[name]))
	}
	fmt.Fprintf(&c.yaml, "  fields: {%s}\n", strings.Join(fields, ", "))
	if c.router("route.tombstone.on.empty.payload") != "true" {
		c.line(1, "null_payload", "empty") // "payload":null, as in Debezium
	}
	text := "the envelope is written as JSON with its fields in the order of their names, the payload last; bytea is base64, as in Debezium, and any other payload that is not JSON makes the event poison"
	if c.router("table.expand.json.payload") != "true" {
		text += "; the payload is a JSON value, but a quoted string in Debezium without table.expand.json.payload: consumers have to be changed"
	}
	c.note(option, "%s", text)
}
