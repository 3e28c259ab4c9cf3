// Package fromdebezium converts the configuration of a Debezium connector for PostgreSQL with the outbox event router.
// It lists the options without a counterpart. It opens no connection.
//
// The options: https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html and
// https://debezium.io/documentation/reference/stable/connectors/postgresql.html
package fromdebezium

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Connector is the configuration of one connector.
type Connector struct {
	Name   string // "" if the file has none
	Props  map[string]string
	Server bool // of Debezium Server, not of Kafka Connect
}

// forms are what Read understands, for error texts.
const forms = "want a .properties file of Kafka Connect or Debezium Server, or the JSON that Connect's REST interface prints (GET /connectors/NAME), " +
	"which has every connector, also one of Strimzi or ksqlDB"

// Read reads the connectors of a file: a .properties file of Connect or of Debezium Server, or JSON as Connect's REST
// interface accepts and returns it (one connector, an array, or GET /connectors?expand=info). Another form, and a file
// without a connector, is an error.
func Read(data []byte) ([]Connector, error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	var found []Connector
	var err error
	if len(data) > 0 && (data[0] == '{' || data[0] == '[') {
		found, err = readJSON(data)
	} else {
		var props map[string]string
		if props, err = readProperties(string(data)); err == nil && (isResource(data) || !isUnderstood(props)) {
			err = errors.New("the form of this file is not understood: " + forms)
		}
		found = []Connector{{Name: props["name"], Props: props}}
	}
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, errors.New("the file has no connector")
	}
	for i := range found {
		if found[i].Server = isServer(found[i].Props); found[i].Server {
			if found[i].Props, err = fromServer(found[i].Props); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// Choose returns the connector of that name or, without a name, the only connector with the outbox event router.
func Choose(all []Connector, name string) (Connector, error) {
	var names, relays []string
	var chosen []Connector
	for _, c := range all {
		names = append(names, c.Name)
		if name != "" && c.Name == name {
			return c, nil
		}
		if findRouter(c.Props) != "" {
			relays, chosen = append(relays, c.Name), append(chosen, c)
		}
	}
	switch {
	case name != "":
		return Connector{}, fmt.Errorf("the file has no connector %q, only %s", name, strings.Join(names, ", "))
	case len(all) == 1:
		return all[0], nil
	case len(chosen) == 1:
		return chosen[0], nil
	case len(chosen) == 0:
		return Connector{}, fmt.Errorf("none of the connectors %s has the outbox event router", strings.Join(names, ", "))
	}
	return Connector{}, fmt.Errorf("several connectors have the outbox event router: choose one of %s with --connector", strings.Join(relays, ", "))
}

// readJSON reads connectors as Connect's REST interface accepts and returns them.
func readJSON(data []byte) ([]Connector, error) {
	var top any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&top); err != nil {
		line, column := place(data, err)
		return nil, fmt.Errorf("read the JSON: line %d, column %d: %w", line, column, err)
	}
	list, ok := top.([]any)
	if !ok {
		list = []any{top}
	}
	var found []Connector
	for _, item := range list {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, errors.New("read the JSON: want a connector's object, or an array of them")
		}
		if connectors := expanded(object); connectors != nil {
			object = connectors
		} else {
			object = map[string]any{"": object}
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			c, err := readConnector(object[key].(map[string]any))
			if err != nil {
				return nil, err
			}
			found = append(found, c)
		}
	}
	return found, nil
}

// place is the line and column of a JSON error, counted from 1.
func place(data []byte, err error) (line, column int) {
	offset := len(data)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = int(min(syntax.Offset, int64(len(data))))
	}
	before := data[:max(offset-1, 0)]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// expanded are the objects under "info" of GET /connectors?expand=info, nil for other JSON.
func expanded(object map[string]any) map[string]any {
	out := map[string]any{}
	for name, v := range object {
		member, _ := v.(map[string]any)
		info, ok := member["info"].(map[string]any)
		if !ok {
			return nil
		}
		out[name] = info
	}
	return out
}

// readConnector reads a connector: its configuration, or an object with name and configuration.
func readConnector(object map[string]any) (Connector, error) {
	name, _ := object["name"].(string)
	if inner, ok := object["config"].(map[string]any); ok {
		object = inner
	}
	props, err := texts(object)
	return Connector{Name: name, Props: props}, err
}

// texts converts the values of options to text.
func texts(options map[string]any) (map[string]string, error) {
	out := map[string]string{}
	for name, v := range options {
		switch v := v.(type) {
		case map[string]any, []any:
			return nil, fmt.Errorf("option %s: want text, a number or true and false, not a list or an object", name)
		case bool:
			out[name] = strconv.FormatBool(v)
		case nil:
		default:
			out[name] = fmt.Sprint(v)
		}
	}
	return out, nil
}

// isResource reports whether the text is a Kubernetes resource as YAML, whose lines could be read as properties.
func isResource(data []byte) bool {
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("kind:")) || bytes.HasPrefix(line, []byte("apiVersion:")) {
			return true
		}
	}
	return false
}

// isUnderstood reports whether options are those of a connector or of Debezium Server.
func isUnderstood(props map[string]string) bool {
	return props["connector.class"] != "" || props["transforms"] != "" || isServer(props)
}
