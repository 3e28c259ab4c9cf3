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

// Config says how a row becomes a record. The zero value of each optional field is its default.
type Config struct {
	// Messages says that the source is no table: its events are bodies of logical messages. Columns are MessageColumns then.
	Messages bool

	// Topic is a template: {name} stands for a role (id, aggregate_type, aggregate_id, event_type) that Columns gives a
	// column, else for the column of that name, else {table} for the table's own name. "": only Topics route.
	Topic string
	// Topics is looked up first: the aggregate type as it is in the row, and its topic.
	Topics map[string]string
	// Replace changes the aggregate type before Topic takes it in.
	Replace Replace
	// Unmatched is what becomes of an aggregate type that Replace does not match as a whole, or, without Topic, that is not
	// in Topics: "" or "poison", "keep" (the aggregate type is the topic), or the name of a topic.
	Unmatched string

	// PositionTopic is a topic that takes no events, because the daemon keeps its position records there; "" is none.
	PositionTopic string
	// LetterTopic takes no events either, because dead letters go there; "" is none.
	LetterTopic string

	Columns Columns
	// Key is the template of the record's key, and ID that of the event's id, with the names of Topic; "" is the column of
	// the role. One column alone goes out as raw says, more of them as text.
	Key, ID string
	// Headers are further columns that become headers: "column" or "column:header". They win over a member of the headers
	// column with the same name. SQL NULL is a null header.
	Headers []string
	// TraceContext is a column of Java properties whose traceparent and tracestate become headers, as Debezium's
	// tracingspancontext; "" is none. They win over members of the headers column, and Headers over them.
	TraceContext string
	// Partition is the column (smallint, integer or bigint) that holds the partition's number; "" hashes the key, as SQL
	// NULL does.
	Partition string
	// Timestamp is the record's time: "" or "produce", "commit", or the name of a column (timestamptz, timestamp as UTC, or a
	// number of seconds, milliseconds or microseconds since 1970, told apart by its size). SQL NULL: as produce.
	Timestamp string

	// Format of the value; "" is raw.
	Format Format
	// Envelope changes the envelope's fields: name → source, "" takes a field out. A source is a template; {payload},
	// {commit_time} and {trace_id}, each alone, are no columns. A literal that is JSON stands as that.
	Envelope map[string]string
	// CloudEvents is for CloudEvents what Envelope is for the envelope: attribute → source. The attribute source is required.
	CloudEvents map[string]string

	// UpdateIsPoison makes an update poison; without it an update is none of the router's business (see Skips).
	UpdateIsPoison bool

	NullKey     NullKeyPolicy
	NullPayload NullPayloadPolicy
	// IgnoreMissing ignores a column of Headers, Envelope or Partition that the table does not have: there is no such header, no such
	// field, and no partition of the row's own.
	IgnoreMissing bool
	// BlankIsNull makes NullPayload meet text payloads of nothing but white space, too.
	BlankIsNull bool
	// PositionHeader adds the header outboxcdc-position. Without it a consumer can still de-duplicate by id, but it cannot
	// tell a replay from a second event.
	PositionHeader bool
}

// Replace is a regular expression (RE2) for whole aggregate types, and what each becomes: Regex's groups are $1, $name or
// ${name} in With. An empty Regex replaces nothing.
type Replace struct{ Regex, With string }

// Unmatched, other than the name of a topic.
const (
	UnmatchedPoison = "poison"
	UnmatchedKeep   = "keep"
)

// Timestamp, other than the name of a column.
const (
	TimestampProduce = "produce"
	TimestampCommit  = "commit"
)

// Columns names the column of each role; "" means that the table has none. ID, AggregateID and Payload are required, the
// first two unless a template stands in for them. A column that is named must exist, also an optional one: a header that
// is silently missing is a fault found too late.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers string
}

// NullKeyPolicy says what becomes of a row whose aggregate_id is NULL.
type NullKeyPolicy string

// The policies for a NULL key.
const (
	NullKeyPoison NullKeyPolicy = "poison"
	NullKeyAllow  NullKeyPolicy = "allow" // no key; partitioned by the id, so that a replay lands on the same partition
)

// NullPayloadPolicy says what becomes of a row whose payload is NULL.
type NullPayloadPolicy string

// The policies for a NULL payload.
const (
	NullPayloadTombstone NullPayloadPolicy = "tombstone" // Kafka's null
	NullPayloadEmpty     NullPayloadPolicy = "empty"     // a value of no bytes
	NullPayloadPoison    NullPayloadPolicy = "poison"
)

// DefaultConfig is the bundled layout of the outbox table.
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

// Validate says everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	for _, p := range c.Problems() {
		errs = append(errs, fmt.Errorf("%s: %s", p.Setting, p.Text))
	}
	return errors.Join(errs...)
}

// Problems is Validate for callers that know where each setting comes from.
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

// routes looks at everything that makes the topic.
func (v *validation) routes(c *Config) {
	if c.Topic != "" {
		_, err := topicTemplate(c.Topic)
		v.add("topic", err)
		setting, topic := c.fixedTopic()
		v.target(c, setting, topic, "")
	}
	named := c.Unmatched != "" && c.Unmatched != UnmatchedPoison && c.Unmatched != UnmatchedKeep
	if named {
		v.topic("unmatched", c.Unmatched)
		v.target(c, "unmatched", c.Unmatched, "")
	}
	if c.Topic == "" && len(c.Topics) == 0 && c.Unmatched != UnmatchedKeep && !named {
		v.fail("topic", "a template is required, or topics, or unmatched: nothing would be routed")
	}
	for _, typ := range slices.Sorted(maps.Keys(c.Topics)) {
		if why := checkTopic([]byte(c.Topics[typ])); why != "" {
			v.fail("topics", "of %q: %s", typ, why)
		}
		v.target(c, "topics", c.Topics[typ], fmt.Sprintf("of %q: ", typ))
	}
	if c.Replace.Regex != "" {
		re, err := whole(c.Replace.Regex)
		v.add("replace.regex", err)
		if err == nil {
			v.groups(re, c.Replace.With)
		}
	} else if c.Replace.With != "" {
		v.fail("replace.with", "has no effect without replace.regex")
	}
	if c.Columns.AggregateType == "" && (len(c.Topics) > 0 || c.Replace.Regex != "" || c.Unmatched != "") {
		v.fail("columns.aggregate_type", "a column is required by topics, replace and unmatched")
	}
}

// groups refuses a replacement with a group that the expression does not have: it would be replaced by nothing.
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

// target refuses topics that take no events; which says what of the setting it is.
func (v *validation) target(c *Config, setting, topic, which string) {
	if why := c.noTarget(topic); why != "" {
		v.fail(setting, "%s%s", which, why)
	}
}

// fixedTopic is the topic of all events, or of all that Replace matches, and the setting that it comes from; "" if the topic
// depends on a column.
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

// headers looks at the further headers: their names must be theirs alone.
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
			v.fail("headers", "%q: the header name %q is taken", s, name)
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

// whole compiles a regular expression that matches whole values only.
func whole(regex string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(regex); err != nil { // by itself, for an error that shows what was written
		return nil, err
	}
	return regexp.Compile(`^(?:` + regex + `)$`)
}

// templateColumn is the column that {name} stands for. A role without a column is no role: the name then means a column.
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

// Needs are the columns that a table must have, without the empty ones, each once.
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
		parts, _ := parseTemplate(template) // an empty one names nothing
		for _, p := range parts {
			all = append(all, c.needed(p))
		}
	}
	sources, _ := c.sources() // Validate has seen them
	if c.IgnoreMissing && c.Format == FormatEnvelope {
		sources = nil
	}
	for _, s := range sources {
		for _, p := range s.parts {
			if !notColumn(p.name) {
				all = append(all, c.needed(p))
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// needed is the column that a part of a template needs, or "".
func (c *Config) needed(p part) string {
	if p.name == "" || p.name == tableName {
		return ""
	}
	return c.Columns.templateColumn(p.name)
}
