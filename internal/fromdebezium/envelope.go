package fromdebezium

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ownFields are those that our envelope has unless told otherwise.
var ownFields = []string{"eventId", "schemaVersion", "occurredAt", "traceId", "aggregateType", "aggregateId", "data"}

// placement reads table.fields.additional.placement and writes what stands for it, except for the headers, which it returns.
func (c *conversion) placement() (headers []string) {
	option := c.smt + "table.fields.additional.placement"
	fields := map[string]string{} // of the envelope: name → column
	partition := ""               // the last one counts, as there
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
			c.note(option, "%q: records have one header %s only; Debezium adds a second one", placement, name)
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
			c.note(option, "%q: Debezium has no such placement either, and fails with the first row", placement)
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

// envelope writes the object around the payload: the payload is its field of that name, and beside it are the columns.
func (c *conversion) envelope(option string, columns map[string]string) {
	sources := map[string]string{}
	for _, name := range ownFields {
		sources[name] = ""
	}
	sources["payload"] = "{payload}"
	roles := map[string]string{ // what {name} means whatever columns there are
		"id": cmp.Or(c.router("table.field.event.id"), "id"), "aggregate_type": cmp.Or(c.router("route.by.field"), "aggregatetype"),
		"aggregate_id": cmp.Or(c.router("table.field.event.key"), "aggregateid"), "payload": cmp.Or(c.router("table.field.event.payload"), "payload"),
	}
	for name, column := range columns {
		if meant, role := roles[column]; role && meant != column {
			c.note(option, "the column %q has the name of a role here, which {%s} means instead; give it another name", column, column)
		}
		sources[name] = "{" + column + "}"
	}
	c.line(1, "format", "envelope")
	var fields []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		fields = append(fields, strconv.Quote(name)+": "+strconv.Quote(sources[name]))
	}
	fmt.Fprintf(&c.yaml, "  envelope: {%s}\n", strings.Join(fields, ", "))
	if c.router("route.tombstone.on.empty.payload") != "true" {
		c.line(1, "null_payload", "empty") // "payload":null, as there
	}
	text := "the envelope is written as JSON with its fields in the order of their names, the payload last; bytea is base64, as there, and any other payload that is not JSON is poison"
	if c.router("table.expand.json.payload") != "true" {
		text += "; the payload is in it as JSON, where Debezium without table.expand.json.payload has it as a text in quotes: consumers have to be told"
	}
	c.note(option, "%s", text)
}
