package router

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Config defines how a row becomes a record. The zero value of each optional field is its default.
type Config struct {
	// Messages means that the events are bodies of logical messages and not rows of a table. Columns are then
	// MessageColumns.
	Messages bool

	// Topic is a template: {name} means the column of that role (id, aggregate_type, aggregate_id, event_type), else the
	// column of that name, and {table} else means the name of the table. "": only Topics is used.
	Topic string
	// Topics has the topics of aggregate types. It is used before Topic, with the aggregate type from the row.
	Topics map[string]string
	// Replace changes the aggregate type in Topic.
	Replace Replace
	// Unmatched decides about an aggregate type that Replace does not match as a whole or, without Topic, that is not in
	// Topics: "" or "poison", "keep" (the aggregate type is the topic), or the name of a topic.
	Unmatched string

	// PositionTopic is the topic of position records, which cannot take events; "": none.
	PositionTopic string
	// DeadLetterTopic is the topic of dead letters, which cannot take events; "": none.
	DeadLetterTopic string

	Columns Columns
	// Key is the template of the record's key, and ID that of the event's id, with the names of Topic; "" means the
	// column of the role. A key that is a single column has the bytes of that column; other keys and ids are text.
	Key, ID string
	// Headers are additional columns that become headers: "column" or "column:header". They replace members of the
	// headers column with the same name. SQL NULL becomes a null header.
	Headers []string
	// TraceContext is a column of Java properties whose traceparent and tracestate become headers, like Debezium's
	// tracingspancontext; "": none. They replace members of the headers column, and Headers replace them.
	TraceContext string
	// Partition is the column (smallint, integer or bigint) with the number of the partition. With "" or SQL NULL the
	// partition is chosen by the hash of the key.
	Partition string
	// Timestamp is the record's time: "" or "produce", "commit", or the name of a column (timestamptz, timestamp in UTC,
	// or a number of seconds, milliseconds or microseconds since 1970, distinguished by its size). SQL NULL means
	// "produce".
	Timestamp string

	// Format of the value; "" is raw.
	Format Format
	// Fields changes the envelope's fields, or the attributes of the CloudEvent: name → source; "" removes one. A source
	// is a template. {payload}, {commit_time} and {trace_id} are not columns, and cannot be part of a longer template. A
	// literal of the envelope that is valid JSON is written as JSON. A CloudEvent requires the attribute source.
	Fields map[string]string

	// UpdateIsPoison makes an update poison. Otherwise updates are skipped (see Skips).
	UpdateIsPoison bool

	NullKey     NullKeyPolicy
	NullPayload NullPayloadPolicy
	// IgnoreMissing allows that the table lacks a column of Headers, Fields or Partition: the record then lacks the
	// header or field, or its partition is chosen by the hash of the key.
	IgnoreMissing bool
	// BlankIsNull applies NullPayload to text payloads that are empty or only white space, too.
	BlankIsNull bool
	// PositionHeader adds the header outboxcdc-position. Without it a consumer can deduplicate by id, but cannot
	// distinguish a duplicate from a second event with the same id.
	PositionHeader bool
}

// Replace is a regular expression (RE2) that must match the whole aggregate type, and its replacement. Groups of
// Regex are $1, $name or ${name} in With. An empty Regex replaces nothing.
type Replace struct{ Regex, With string }

// Values of Unmatched, other than the name of a topic.
const (
	UnmatchedPoison = "poison"
	UnmatchedKeep   = "keep"
)

// Values of Timestamp, other than the name of a column.
const (
	TimestampProduce = "produce"
	TimestampCommit  = "commit"
)

// Columns has the column of each role; "" means that the table has none. Payload is required, and so are ID and
// AggregateID unless a template replaces them. Every column that is named must exist, so that no header is silently
// missing.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
}

// NullKeyPolicy decides about a row whose key is NULL.
type NullKeyPolicy string

// The policies for a NULL key.
const (
	NullKeyPoison NullKeyPolicy = "poison"
	NullKeyAllow  NullKeyPolicy = "allow" // no key; partitioned by the id, so that a duplicate is in the same partition
)

// NullPayloadPolicy decides about a row whose payload is NULL.
type NullPayloadPolicy string

// The policies for a NULL payload.
const (
	NullPayloadTombstone NullPayloadPolicy = "tombstone" // a null value
	NullPayloadEmpty     NullPayloadPolicy = "empty"     // an empty value
	NullPayloadPoison    NullPayloadPolicy = "poison"
)

// DefaultConfig returns the configuration for the bundled layout of the outbox table.
func DefaultConfig() Config {
	return Config{
		Topic: "outbox.event.{aggregate_type}",
		Columns: Columns{
			ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type",
			Payload: "payload", Headers: "headers",
		},
		NullKey:        NullKeyPoison,
		NullPayload:    NullPayloadTombstone,
		PositionHeader: true,
	}
}

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Setting string // topic, topics, replace.regex, columns.id, …
	Text    string
}

// Validate returns an error with all problems of c.
func (c Config) Validate() error {
	var errs []error
	for _, p := range c.Problems() {
		errs = append(errs, fmt.Errorf("%s: %s", p.Setting, p.Text))
	}
	return errors.Join(errs...)
}

// Problems returns the problems of c, each with its setting.
func (c Config) Problems() []Problem {
	v := &validation{}
	v.routes(&c)
	for _, required := range []struct{ role, column, template string }{
		{"id", c.Columns.ID, c.ID}, {"aggregate_id", c.Columns.AggregateID, c.Key}, {"payload", c.Columns.Payload, ""},
	} {
		if required.column == "" && required.template == "" {
			v.fail("columns."+required.role, "a column is required")
		}
	}
	v.template("key", c.Key)
	v.template("id", c.ID)
	if _, err := parseTemplate(c.ID); err == nil && len(c.IDColumns()) == 0 {
		v.fail("id", "template %q names no column: all events would have the same id", c.ID)
	}
	v.headers(&c)
	if c.Format != "" {
		v.oneOf("format", string(c.Format), string(FormatRaw), string(FormatEnvelope), string(FormatCloudEventsBinary), string(FormatCloudEventsStructured))
	}
	v.envelope(&c)
	v.cloudEvents(&c)
	v.oneOf("null_key", string(c.NullKey), string(NullKeyPoison), string(NullKeyAllow))
	v.oneOf("null_payload", string(c.NullPayload), string(NullPayloadTombstone), string(NullPayloadEmpty), string(NullPayloadPoison))
	v.message(&c)
	return v.problems
}

type validation struct{ problems []Problem }

func (v *validation) add(setting string, err error) {
	if err != nil {
		v.problems = append(v.problems, Problem{setting, err.Error()})
	}
}

func (v *validation) fail(setting, format string, args ...any) {
	v.add(setting, fmt.Errorf(format, args...))
}

func (v *validation) oneOf(setting, got string, choices ...string) {
	if !slices.Contains(choices, got) {
		v.fail(setting, "%q is none of %s", got, strings.Join(choices, ", "))
	}
}

// routes checks the settings that determine the topic.
func (v *validation) routes(c *Config) {
	if c.Topic != "" {
		_, err := topicTemplate(c.Topic)
		v.add("topic", err)
		setting, topic := c.fixedTopic()
		v.checkTarget(c, setting, topic, "")
	}
	named := c.Unmatched != "" && c.Unmatched != UnmatchedPoison && c.Unmatched != UnmatchedKeep
	if named {
		v.topic("unmatched", c.Unmatched)
		v.checkTarget(c, "unmatched", c.Unmatched, "")
	}
	if c.Topic == "" && len(c.Topics) == 0 && c.Unmatched != UnmatchedKeep && !named {
		v.fail("topic", "a template is required, or topics, or unmatched")
	}
	for _, typ := range slices.Sorted(maps.Keys(c.Topics)) {
		if why := checkTopic([]byte(c.Topics[typ])); why != "" {
			v.fail("topics", "of %q: %s", typ, why)
		}
		v.checkTarget(c, "topics", c.Topics[typ], fmt.Sprintf("of %q: ", typ))
	}
	if c.Replace.Regex != "" {
		re, err := compileWhole(c.Replace.Regex)
		v.add("replace.regex", err)
		if err == nil {
			v.groups(re, c.Replace.With)
		}
	} else if c.Replace.With != "" {
		v.fail("replace.with", "has no effect without replace.regex")
	}
	// Unmatched decides only where there is no template of the topic, or Replace.
	unmatched := c.Topic == "" && (named || c.Unmatched == UnmatchedKeep)
	if c.Columns.AggregateType == "" && (len(c.Topics) > 0 || c.Replace.Regex != "" || unmatched) {
		v.fail("columns.aggregate_type", "a column is required by topics, replace and unmatched; without one, write the topic into topic")
	}
}

// groups refuses a replacement with a group that the expression does not have, because such a group is replaced by
// nothing.
func (v *validation) groups(re *regexp.Regexp, with string) {
	for _, m := range group.FindAllStringSubmatch(with, -1) {
		name := cmp.Or(m[1], m[2])
		n, err := strconv.Atoi(name)
		if name != "" && (err == nil && n > re.NumSubexp() || err != nil && re.SubexpIndex(name) < 0) {
			v.fail("replace.with", "%q names the group %q, which replace.regex does not have; write ${1} if letters follow a number, and $$ for a dollar sign", with, name)
		}
	}
}

// group is a reference in a replacement, as [regexp.Regexp.Expand] reads it; $$ is a dollar sign.
var group = regexp.MustCompile(`\$(?:\$|(\w+)|\{(\w+)\})`)

// checkTarget refuses topics that cannot take events. which is the part of the setting, for the text.
func (v *validation) checkTarget(c *Config, setting, topic, which string) {
	if why := c.targetProblem(topic); why != "" {
		v.fail(setting, "%s%s", which, why)
	}
}

// fixedTopic returns the topic of all events, or of all events that Replace matches, and its setting. The topic is ""
// if it depends on a column.
func (c *Config) fixedTopic() (setting, topic string) {
	setting = "topic"
	parts, _ := parseTemplate(c.Topic)
	for _, p := range parts {
		switch {
		case p.name == "":
			topic += p.literal
		case c.Replace.Regex != "" && !strings.Contains(c.Replace.With, "$") && c.Columns.templateColumn(p.name) == c.Columns.AggregateType:
			setting = "replace.with"
			topic += c.Replace.With
		default:
			return "", ""
		}
	}
	return setting, topic
}

func (v *validation) template(setting, template string) {
	if template != "" {
		_, err := parseTemplate(template)
		v.add(setting, err)
	}
}

func (v *validation) topic(setting, name string) {
	if why := checkTopic([]byte(name)); why != "" {
		v.fail(setting, "%s", why)
	}
}

// headers checks that the names of additional headers are unique.
func (v *validation) headers(c *Config) {
	seen := map[string]bool{headerID: true}
	if c.Columns.EventType != "" {
		seen[headerType] = true
	}
	for _, s := range c.Headers {
		column, name := splitHeader(s)
		switch {
		case column == "" || name == "":
			v.fail("headers", "%q is neither column nor column:header", s)
		case seen[name] || strings.HasPrefix(name, headerPrefix):
			v.fail("headers", "%q: the header name %q is used already", s, name)
		}
		seen[name] = true
	}
}

// splitHeader reads "column" or "column:header".
func splitHeader(s string) (column, name string) {
	column, name, named := strings.Cut(s, ":")
	if !named {
		return s, s
	}
	return column, name
}

// compileWhole compiles a regular expression that matches whole values only.
func compileWhole(regex string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(regex); err != nil { // for an error with the text of the setting
		return nil, err
	}
	return regexp.Compile(`^(?:` + regex + `)$`)
}

// templateColumn returns the column of {name} in a template: that of the role, or the column of that name if the role
// has no column.
func (c *Columns) templateColumn(name string) string {
	var column string
	switch name {
	case "id":
		column = c.ID
	case "aggregate_type":
		column = c.AggregateType
	case "aggregate_id":
		column = c.AggregateID
	case "event_type":
		column = c.EventType
	}
	if column == "" {
		return name
	}
	return column
}

// Needs returns the columns that a table must have, each once.
func (c Config) Needs() []string {
	all := []string{c.Columns.ID, c.Columns.AggregateType, c.Columns.AggregateID, c.Columns.EventType, c.Columns.Payload, c.Columns.Headers, c.TraceContext}
	if c.Timestamp != TimestampProduce && c.Timestamp != TimestampCommit {
		all = append(all, c.Timestamp)
	}
	if !c.IgnoreMissing {
		all = append(all, c.Partition)
		for _, h := range c.Headers {
			column, _ := splitHeader(h)
			all = append(all, column)
		}
	}
	for _, template := range []string{c.Topic, c.Key, c.ID} {
		parts, _ := parseTemplate(template) // an empty template is an error, and has no names
		for _, p := range parts {
			all = append(all, c.neededColumn(p))
		}
	}
	sources, _ := c.sources() // Validate returns the error
	if c.IgnoreMissing && c.Format == FormatEnvelope {
		sources = nil
	}
	for _, s := range sources {
		for _, p := range s.parts {
			if !isReservedName(p.name) {
				all = append(all, c.neededColumn(p))
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// IDColumns returns the columns of a table that the ids of its events consist of.
func (c Config) IDColumns() (all []string) {
	parts, _ := parseTemplate(cmp.Or(c.ID, "{id}")) // Validate returns the error
	for _, p := range parts {
		if name := c.neededColumn(p); name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// neededColumn returns the column of a part of a template, or "".
func (c *Config) neededColumn(p part) string {
	if p.name == "" || p.name == tableName {
		return ""
	}
	return c.Columns.templateColumn(p.name)
}
