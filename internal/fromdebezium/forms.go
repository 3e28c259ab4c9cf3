package fromdebezium

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// forms are what Read understands, for error texts.
const forms = "want a .properties file of Kafka Connect or Debezium Server, the JSON of Connect's REST interface (also in a shell script with curl), " +
	"a KafkaConnector of Strimzi, CREATE SOURCE CONNECTOR of ksqlDB, or the environment variables of Debezium Server (env file, Compose, Kubernetes, docker run)"

// ksqlConnector begins a connector of ksqlDB, and ksqlOption is one of its options.
var (
	ksqlConnector = regexp.MustCompile(`(?i)\bcreate\s+(?:source\s+)?connector\s+(?:if\s+not\s+exists\s+)?([^\s(]+)\s+with\s*\(`)
	ksqlOption    = regexp.MustCompile(`(?:'((?:[^']|'')*)'|"([^"]*)")\s*=\s*(?:'((?:[^']|'')*)'|([0-9.]+|(?i:true|false)))`)
)

func readKsql(text string) (found []Connector) {
	starts := ksqlConnector.FindAllStringSubmatchIndex(text, -1)
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		c := Connector{Name: strings.Trim(text[at[2]:at[3]], "`\""), Props: map[string]string{}}
		for _, m := range ksqlOption.FindAllStringSubmatch(text[at[1]:end], -1) {
			c.Props[strings.ReplaceAll(m[1], "''", "'")+m[2]] = strings.ReplaceAll(m[3], "''", "'") + m[4]
		}
		found = append(found, c)
	}
	return found
}

// isScript reports whether the text is a shell script that sends a connector to Connect.
func isScript(data []byte) bool {
	return bytes.HasPrefix(data, []byte("#!")) || regexp.MustCompile(`(?m)^[^#\n]*\bcurl\s`).Match(data)
}

// readScript reads the JSON objects of a shell script that contain connectors.
func readScript(data []byte) (found []Connector, err error) {
	for at := 0; at < len(data); {
		i := bytes.IndexByte(data[at:], '{')
		if i < 0 {
			break
		}
		at += i
		dec := json.NewDecoder(bytes.NewReader(data[at:]))
		var object json.RawMessage
		err := dec.Decode(&object)
		switch syntax, broken := errors.AsType[*json.SyntaxError](err); {
		case err == nil:
			connectors, err := readJSON(object)
			if err != nil {
				return nil, err
			}
			found = append(found, connectors...)
			at += int(dec.InputOffset())
		case broken && bytes.Contains(data[at:at+int(syntax.Offset)], []byte(`":`)):
			line, column := place(data, &json.SyntaxError{Offset: int64(at) + syntax.Offset})
			return nil, fmt.Errorf("read the JSON in the shell script: line %d, column %d: %w", line, column, err)
		default: // ${VARIABLE}, or the braces of a function
			at++
		}
	}
	if len(found) == 0 {
		return nil, errors.New("the shell script has no JSON of a connector: pass the JSON that it sends to Connect")
	}
	return found, nil
}

// serverVariable is an environment variable of Debezium Server, with its value on the same line or, in Kubernetes, on
// the next one.
var serverVariable = regexp.MustCompile(`(?m)^[^#\n]*?\b(DEBEZIUM_[A-Z0-9_]+)["']?[ \t]*(?:[=:][ \t]*|\r?\n[ \t]*value:[ \t]*)(.*?)[ \t]*\\?\r?$`)

// readEnvironment reads the environment variables of Debezium Server. In their names a dot is an underscore, and
// there are no small letters (https://debezium.io/documentation/reference/stable/operations/debezium-server.html).
func readEnvironment(text string) map[string]string {
	props := map[string]string{}
	for _, m := range serverVariable.FindAllStringSubmatch(text, -1) {
		value := m[2]
		for _, quote := range []string{`"`, "'"} {
			if inner, ok := strings.CutPrefix(value, quote); ok {
				value = strings.TrimSuffix(inner, quote)
				break
			}
		}
		props[strings.ReplaceAll(strings.ToLower(m[1]), "_", ".")] = value
	}
	// The names of transformations and predicates are written as in the lists that name them.
	for _, list := range []string{"debezium.transforms", "debezium.predicates"} {
		for _, name := range splitList(props[list]) {
			plain := list + "." + regexp.MustCompile(`[^a-z0-9]`).ReplaceAllString(strings.ToLower(name), ".") + "."
			for option, value := range props {
				if rest, ok := strings.CutPrefix(option, plain); ok {
					delete(props, option)
					props[list+"."+name+"."+rest] = value
				}
			}
		}
	}
	return props
}

// isUnderstood reports whether options are those of a connector or of Debezium Server.
func isUnderstood(props map[string]string) bool {
	return props["connector.class"] != "" || props["transforms"] != "" || isServer(props)
}

// former are options by their names in earlier versions of Debezium.
var former = map[string]string{
	"table.whitelist": "table.include.list", "table.blacklist": "table.exclude.list",
	"schema.whitelist": "schema.include.list", "schema.blacklist": "schema.exclude.list",
	"column.whitelist": "column.include.list", "column.blacklist": "column.exclude.list",
}

// formerRouter are those of the event router.
var formerRouter = map[string]string{"debezium.expand.json.payload": "table.expand.json.payload"}

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
