package integration

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/golden"
)

// difference is an intended one.
type difference struct {
	only string // case; "": any case, and at least one
	part string // as differing returns it; with * at its end, all with that prefix
	doc  string // beginning of its row in docs/debezium.md, which has the reason
	// ours is our value of the part, in the format of golden.Text, for headers and values.
	ours string
	// check returns what is wrong with the difference itself.
	check func(theirs, ours golden.Record) error
}

func (d *difference) matches(name, part string) bool {
	if d.only != "" && d.only != name {
		return false
	}
	begin, many := strings.CutSuffix(d.part, "*")
	return part == d.part || many && strings.HasPrefix(part, begin)
}

// Rows of docs/debezium.md.
const (
	docContext   = "headers `__debezium.context.*`"
	docPK        = "an update of the primary key"
	docDefault   = "NULL in a column that has a DEFAULT"
	docNullID    = "a NULL or empty id"
	docByteText  = "`StringConverter` with `bytea`"
	docJSON      = "`JsonConverter`"
	docJSONNull  = "`JsonConverter`, a NULL payload"
	docExpand    = "`table.expand.json.payload`"
	docEnvelope  = "`column:envelope`"
	docHeader    = "header values that are not text"
	docBoolKey   = "a boolean key"
	docEpoch     = "a timestamp of 1970-01-01 00:00:00"
	docTopic     = "an illegal topic, a type of NULL"
	docLarge     = "a record too large"
	docTime      = "a time before 1970"
	docTimeType  = "`timestamptz` in `table.field.event.timestamp`"
	docPartition = "a partition that does not exist"
	docPartType  = "`smallint` and `bigint` as partition"
	docUpdate    = "`table.op.invalid.behavior=fatal`"
	docColumn    = "a column that is missing"
	docByteArray = "`ByteArrayConverter` or `BinaryDataConverter` with text or JSON"
	docMissing   = "a topic that is missing"
)

// quotedDifferences: JsonConverter puts key and payload in quotes.
var quotedDifferences = []difference{
	{part: "key", doc: docJSON, check: func(theirs, ours golden.Record) error { return checkUnquoted(theirs.Key, ours.Key) }},
	{part: "partition", doc: docJSON}, // because the key differs
	{only: "NULL", part: "value", doc: docJSONNull, ours: "null"},
	{part: "value", doc: docJSON, check: func(theirs, ours golden.Record) error { return checkUnquoted(theirs.Value, ours.Value) }},
}

// intendedDifferences are the intended differences of each set.
var intendedDifferences = map[string][]difference{
	"defaults": {
		{part: "header __debezium.context.*", doc: docContext},
		{only: "the primary key is updated", part: "number of records", doc: docPK},
	},
	"column_default": {
		{only: "a key of NULL", part: "key", doc: docDefault},
		{only: "a key of NULL", part: "partition", doc: docDefault},
		{only: "a payload of NULL", part: "value", doc: docDefault, ours: "null"},
		{only: "a header of NULL", part: "header tenant", doc: docDefault, ours: "null"},
	},
	"id_null": {{only: "id NULL", part: "number of records", doc: docNullID}},
	"key_bool": {
		{part: "key", doc: docBoolKey}, {part: "partition", doc: docBoolKey},
	},
	"timestamp":          {{only: "'1970-01-01 00:00:00'", part: "time", doc: docEpoch}},
	"payload_bytea_text": {{only: `'\x00ff'`, part: "value", doc: docByteText, ours: "=hex:00ff"}},
	"headers":            headerDifferences(),
	"json_jsonb":         quotedDifferences,
	"json_text":          quotedDifferences,
	"json_bytea": {
		quotedDifferences[0], quotedDifferences[1], quotedDifferences[2], {only: `'\x00ff'`, part: "value", doc: docJSON, ours: "=hex:00ff"},
	},
	"expand": {
		{only: "NULL", part: "value", doc: docJSONNull, ours: "null"},
		{part: "value", doc: docExpand, check: func(theirs, ours golden.Record) error { return checkSameJSON(*theirs.Value, *ours.Value) }},
	},
	"expand_text":     {{part: "value", doc: docExpand, check: checkStruct}},
	"envelope":        {{part: "value", doc: docEnvelope, check: func(theirs, ours golden.Record) error { return checkSameJSON(*theirs.Value, *ours.Value) }}},
	"envelope_expand": {{part: "value", doc: docEnvelope, check: func(theirs, ours golden.Record) error { return checkSameJSON(*theirs.Value, *ours.Value) }}},
	"envelope_text":   {{part: "value", doc: docEnvelope, check: checkStruct}},
}

// moreSettings are settings of a set that avoid a stop of ours.
var moreSettings = map[string][]string{"id_null": {"OUTBOXCDC_POISON_POLICY=skip"}}

// expectedNotes are the options that `config from-debezium` has to mention, because the records differ by them.
var expectedNotes = map[string][]string{
	"json_jsonb":      {"key.converter", "value.converter"},
	"json_text":       {"key.converter", "value.converter"},
	"json_bytea":      {"key.converter", "value.converter"},
	"expand":          {"value.converter", "transforms.outbox.table.expand.json.payload"},
	"envelope":        {"value.converter", "transforms.outbox.table.fields.additional.placement"},
	"envelope_expand": {"transforms.outbox.table.fields.additional.placement"},
	"envelope_text":   {"transforms.outbox.table.fields.additional.placement"},
	"renamed":         {"transforms.outbox.table.field.event.type"},
}

// headerDifferences: Connect prints its own conversion of a column, ours is what Postgres prints.
func headerDifferences() (all []difference) {
	for name, ours := range map[string]string{
		"alias_numeric": "12.3000", "c_real2": "1e+20", "c_double2": "1e+300", "alias_bool": "t", "alias_date": "2026-11-21", "c_time": "11:12:13.5",
		"alias_timetz": "11:12:13.5+01", "c_timestamp": "2026-11-21 11:12:13.123456", "alias_timestamp3": "2026-11-21 11:12:13.123",
		"c_timestamptz": "2026-11-21 10:12:13.5+00", "alias_interval": "1 day 02:03:04", "c_bytea": `\x00ff`, "alias_ints": "{1,2,3}",
		"c_texts": `{a,"b c",NULL}`, "c_bit": "101",
	} {
		all = append(all, difference{only: "a value of each type", part: "header " + name, doc: docHeader, ours: "=" + ours})
	}
	return all
}

// stop is our behaviour where Debezium does not get further: stop too, wait in a state, or deliver one record.
type stop struct {
	doc         string
	exit        int
	words       []string
	waits       string
	value, time string
}

const usualValue = `={"total": 9.50}`

var stops = map[string]stop{
	"stop_topic":              {doc: docTopic, exit: 65, words: []string{"illegal_topic"}},
	"stop_type_null":          {doc: docTopic, exit: 65, words: []string{"no_route"}},
	"stop_large":              {doc: docLarge, value: "=sha256:044fd88a0b67132c4c4e4ed5b774b88eaee6a2f0b50c2eead9a94c9095969bf2 of 2000000 bytes"},
	"stop_time":               {doc: docTime, exit: 65, words: []string{"bad_timestamp"}},
	"stop_timestamptz":        {doc: docTimeType, value: usualValue, time: "2026-11-21T11:12:13Z"},
	"stop_partition":          {doc: docPartition, exit: 65, words: []string{"bad_partition"}},
	"stop_partition_negative": {doc: docPartition, exit: 65, words: []string{"bad_partition"}},
	"stop_partition_bigint":   {doc: docPartType, value: usualValue},
	"stop_update":             {doc: docUpdate, value: usualValue, exit: 65, words: []string{"cause=update"}},
	"stop_column":             {doc: docColumn, exit: 78, words: []string{"nosuch"}},
	"stop_bytes":              {doc: docByteArray, value: usualValue},
	"stop_expand_array":       {doc: docExpand, value: "=[1, 2]"},
	"stop_expand_large":       {doc: docExpand, value: `={"n": 123456789012345678901234567890}`},
	"stop_missing_topic":      {doc: docMissing, waits: "waiting_for_topic"},
}

// checkUnquoted checks that theirs is a JSON string with our value. Of long values only hashes are known.
func checkUnquoted(theirs, ours *string) error {
	if theirs == nil || ours == nil {
		return fmt.Errorf("%s and %s", formatValue(theirs), formatValue(ours))
	}
	if strings.HasPrefix(*theirs, "sha256:") {
		return nil
	}
	var text string
	if err := json.Unmarshal([]byte(*theirs), &text); err != nil {
		return err
	}
	if text = *golden.Text([]byte(text)); text != *ours {
		return fmt.Errorf("theirs is %s", text)
	}
	return nil
}

// checkSameJSON checks for the same document, after removing what expansion loses: digits beyond those of a double,
// null members, empty arrays. A part that was not expanded is a string of JSON.
func checkSameJSON(theirs, ours string) error {
	var a, b any
	if err := json.Unmarshal([]byte(theirs), &a); err != nil {
		return fmt.Errorf("theirs: %w", err)
	}
	if err := json.Unmarshal([]byte(ours), &b); err != nil {
		return fmt.Errorf("ours: %w", err)
	}
	if text, ok := a.(string); ok {
		if text != ours {
			return fmt.Errorf("theirs is %s", text)
		}
		return nil
	}
	if m, ok := a.(map[string]any); ok {
		if text, ok := m["payload"].(string); ok {
			var inner any
			if err := json.Unmarshal([]byte(text), &inner); err != nil {
				return fmt.Errorf("their payload: %w", err)
			}
			m["payload"] = inner
		}
	}
	if a, b = prune(a), prune(b); !reflect.DeepEqual(a, b) {
		return fmt.Errorf("different documents: %v and %v", a, b)
	}
	return nil
}

func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			list, isList := member.([]any)
			if member == nil || isList && len(list) == 0 {
				delete(v, name)
				continue
			}
			v[name] = prune(member)
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	}
	return v
}

// checkStruct checks that theirs is a structure as Java prints it, and ours is JSON.
func checkStruct(theirs, ours golden.Record) error {
	if !strings.HasPrefix(formatValue(theirs.Value), "=Struct{") || ours.Value == nil || !json.Valid([]byte(*ours.Value)) {
		return fmt.Errorf("no structure there, or no JSON here")
	}
	return nil
}
