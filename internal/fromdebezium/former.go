package fromdebezium

import "strings"

// former are options by their names in earlier versions of Debezium.
var former = map[string]string{
	"table.whitelist": "table.include.list", "table.blacklist": "table.exclude.list",
	"schema.whitelist": "schema.include.list", "schema.blacklist": "schema.exclude.list",
	"column.whitelist": "column.include.list", "column.blacklist": "column.exclude.list",
}

// formerRouter are those of the event router.
var formerRouter = map[string]string{
	"debezium.expand.json.payload": "table.expand.json.payload", "debezium.op.invalid.behavior": "table.op.invalid.behavior",
}

// withPresentNames returns the options by their present names.
func withPresentNames(props map[string]string) map[string]string {
	out := map[string]string{}
	router := findRouter(props)
	for name, value := range props {
		now := former[name]
		if option, ok := strings.CutPrefix(name, router); ok && router != "" && formerRouter[option] != "" {
			now = router + formerRouter[option]
		}
		if now == "" || props[now] != "" {
			now = name
		}
		out[now] = value
	}
	return out
}
