package fromdebezium

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Note is a remark about an option, for people.
type Note struct {
	Option string
	Value  string // "" for what may be a secret
	Text   string
}

// Result is the configuration of outboxcdc, with notes.
type Result struct {
	YAML string
	// Notes list the options that have no counterpart, differ, or need a manual step.
	Notes []Note
}

// Options say how to convert.
type Options struct {
	IgnoreTransforms bool // ignore transformations without a counterpart
}

// classes are the names of Debezium's connector: its own, its alias, and those of Confluent Cloud.
var classes = []string{"PostgresConnector", "Postgres", "PostgresCdcSource", "PostgresCdcSourceV2"}

// Convert converts the configuration of a connector. It returns an error if the connector has no outbox event router,
// or has a transformation without a counterpart, which may change the records.
func Convert(connector Connector, o Options) (*Result, error) {
	c := &conversion{props: withPresentNames(connector.Props), used: map[string]bool{}, replaced: map[string]string{}}
	if class := c.get("connector.class"); class != "" && !slices.Contains(classes, simpleName(class)) {
		return nil, fmt.Errorf("connector.class is %s: only Debezium's connector for PostgreSQL can be converted", class)
	}
	if err := c.chain(o.IgnoreTransforms); err != nil {
		return nil, err
	}
	c.line(0, "preset", "debezium")
	c.postgres()
	c.outbox()
	if err := c.route(); err != nil {
		return nil, err
	}
	c.kafka()
	c.tuning()
	if connector.Server {
		c.server()
	}
	c.rest()
	c.placeholders()
	slices.SortStableFunc(c.notes, func(a, b Note) int { return strings.Compare(a.Option, b.Option) })
	return &Result{YAML: c.yaml.String(), Notes: c.notes}, nil
}

type conversion struct {
	props map[string]string
	used  map[string]bool
	smt   string // "transforms.<name>."

	replaced map[string]string // host name in the connection string → reference to the environment
	renamed  *rename           // the RegexRouter after the event router; nil: there is none

	yaml  strings.Builder
	notes []Note
}

// get returns an option. Options that are never returned are listed by rest.
func (c *conversion) get(name string) string {
	c.used[name] = true
	return strings.TrimSpace(c.props[name])
}

// router returns an option of the event router.
func (c *conversion) router(name string) string { return c.get(c.smt + name) }

func (c *conversion) note(option, format string, args ...any) {
	value := c.props[option]
	for _, word := range []string{"pass", "pwd", "jaas", "sasl", "secret", "token", "credential", "key", "auth"} {
		if strings.Contains(strings.ToLower(option), word) && !strings.HasSuffix(option, ".converter") {
			value = "" // may be a secret
		}
	}
	c.notes = append(c.notes, Note{option, value, fmt.Sprintf(format, args...)})
}

// line writes a setting, quoted if YAML would not read it as text.
func (c *conversion) line(depth int, key, value string) {
	fmt.Fprintf(&c.yaml, "%s%s: %s\n", strings.Repeat("  ", depth), key, yamlText(value))
}

// list writes a setting whose value is a list.
func (c *conversion) list(key string, values []string) {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	fmt.Fprintf(&c.yaml, "  %s: [%s]\n", key, strings.Join(quoted, ", "))
}

func yamlText(s string) string {
	plain := s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' || r >= '0' && r <= '9' || r == '.' || r == '-')
	}) < 0
	if _, err := strconv.ParseFloat(s, 64); plain && err != nil && !slices.Contains([]string{"true", "false", "null", "yes", "no", "on", "off"}, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

func (c *conversion) postgres() {
	c.yaml.WriteString("postgres:\n")
	u := url.URL{Scheme: "postgres", Host: c.urlPart("database.hostname"), Path: "/" + c.urlPart("database.dbname")}
	if strings.Contains(u.Host, ":") && !strings.HasPrefix(u.Host, "[") { // IPv6
		u.Host = "[" + u.Host + "]"
	}
	if port := c.get("database.port"); port != "" && port != "5432" && foreign(port) == "" {
		u.Host += ":" + c.urlPart("database.port")
	}
	if user := c.urlPart("database.user"); user != "" {
		u.User = url.User(user)
	}
	query := url.Values{}
	if mode := c.get("database.sslmode"); mode != "" {
		query.Set("sslmode", strings.ReplaceAll(mode, "_", "-"))
	}
	for theirs, ours := range map[string]string{"database.sslrootcert": "sslrootcert", "database.sslcert": "sslcert", "database.sslkey": "sslkey"} {
		if v := c.get(theirs); v != "" {
			query.Set(ours, v)
		}
	}
	u.RawQuery = query.Encode()
	text := u.String()
	for name, value := range c.replaced { // see urlPart
		text = strings.Replace(text, name, value, 1)
	}
	c.line(1, "url", text)
	for _, option := range []string{"database.hostname", "database.dbname"} {
		if c.props[option] == "" {
			c.note(option, "not set, although Debezium requires it: complete postgres.url, in which a missing database means that of the user's name")
		}
	}
	if c.get("database.password") != "" {
		c.note("database.password", "not written: set PGPASSWORD or PGPASSFILE, or replace postgres.url by postgres.url_file with the whole URL in that file, as the systemd unit and the chart need")
	}
	if c.props["database.sslkey"] != "" {
		c.note("database.sslkey", "Java needs the key as PKCS #8 DER; outboxcdc needs PEM")
	}
	c.line(1, "slot", cmp.Or(c.get("slot.name"), "debezium"))
	c.line(1, "publication", cmp.Or(c.get("publication.name"), "dbz_publication"))
	if mode := c.get("publication.autocreate.mode"); mode != "disabled" {
		c.note("publication.autocreate.mode", "Debezium may have created its publication FOR ALL TABLES, or for updates and deletes as well; check with SELECT * FROM pg_publication")
	}
	if plugin := c.get("plugin.name"); plugin != "" && plugin != "pgoutput" {
		c.note("plugin.name", "only a slot with the plugin pgoutput can be taken over: stop Debezium when it has delivered everything, and create a new slot (outboxcdc setup)")
	} else if plugin == "" {
		c.note("plugin.name", "Debezium's default is decoderbufs, whose slot cannot be taken over; check with SELECT plugin FROM pg_replication_slots")
	}
}

func (c *conversion) tuning() {
	if ms := c.get("status.update.interval.ms"); ms != "" {
		c.yaml.WriteString("tuning:\n")
		c.line(1, "status_interval", ms+"ms")
	}
}

func (c *conversion) outbox() {
	c.yaml.WriteString("outbox:\n")
	tables := splitList(c.get("table.include.list"))
	for i := range tables {
		tables[i] = strings.TrimSuffix(strings.TrimPrefix(tables[i], "^"), "$")
		if strings.ContainsAny(tables[i], `*[(|+?`) {
			c.note("table.include.list", "%s is a regular expression: write the name of the table", tables[i])
		}
		tables[i] = c.table(strings.ReplaceAll(tables[i], `\`, ""))
	}
	switch len(tables) {
	case 0:
		c.note("table.include.list", "not set: outbox.table has its default, public.outbox")
	case 1:
		c.line(1, "table", tables[0])
	default:
		c.note("table.include.list", "several tables: each one becomes an outbox, with the columns and the route of the event router; remove the tables that are no outbox")
	}
	c.yaml.WriteString("  columns:\n")
	c.line(2, "id", cmp.Or(c.router("table.field.event.id"), "id"))
	c.line(2, "aggregate_type", cmp.Or(c.router("route.by.field"), "aggregatetype"))
	c.line(2, "aggregate_id", cmp.Or(c.router("table.field.event.key"), "aggregateid"))
	c.line(2, "payload", cmp.Or(c.router("table.field.event.payload"), "payload"))
	if len(tables) > 1 {
		c.yaml.WriteString("outboxes:\n")
		for _, t := range tables {
			c.yaml.WriteString("- table: " + yamlText(t) + "\n")
		}
	}
	if c.router("table.field.event.type") != "" {
		c.note(c.smt+"table.field.event.type", "Debezium accepts this option and never reads it; the event type is a header only by table.fields.additional.placement")
	}
	if c.router("table.field.event.schema.version") != "" {
		c.note(c.smt+"table.field.event.schema.version", "outboxcdc has no Connect schemas")
	}
}

// table quotes a name as in SQL, unless it is in lower case.
func (c *conversion) table(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		plain := part != "" && strings.IndexFunc(part, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r == '_' || r >= '0' && r <= '9')
		}) < 0 && (part[0] < '0' || part[0] > '9')
		if part == "" || plain || strings.Contains(part, `"`) {
			continue
		}
		parts[i] = `"` + part + `"`
		if lower := strings.ToLower(part); lower != part {
			c.note("table.include.list", "Debezium ignores case in this option: %s is quoted and so matches only this case; without quotes the name is %s", part, lower)
		}
	}
	return strings.Join(parts, ".")
}

func (c *conversion) route() error {
	c.yaml.WriteString("route:\n")
	if err := c.topic(); err != nil {
		return err
	}
	headers := c.placement()
	if len(headers) > 0 {
		c.list("headers", headers)
	}
	if column := c.router("table.field.event.timestamp"); column != "" {
		c.line(1, "timestamp", column)
	}
	if c.router("route.tombstone.on.empty.payload") == "true" {
		c.line(1, "blank_payload", "null")
	}
	if c.router("table.expand.json.payload") == "true" {
		c.note(c.smt+"table.expand.json.payload", "the payload is sent as Postgres prints it: the same JSON with every digit, in its own order, with its null members and white space")
	}
	for _, name := range []string{"table.json.payload.null.behavior", "table.json.payload.empty.array.behavior", "field.name.adjustment.mode"} {
		if c.router(name) != "" {
			c.note(c.smt+name, "the payload is sent as Postgres prints it")
		}
	}
	if c.router("table.field.additional.missing") == "ignore" || c.router("table.fields.additional.error.on.missing") == "false" {
		c.line(1, "missing_columns", "ignore")
	}
	if column := c.router("tracing.span.context.field"); column != "" {
		c.line(1, "trace_context", column)
		c.note(c.smt+"tracing.span.context.field", "traceparent and tracestate are sent as the application has stored them; outboxcdc creates no span")
	}
	if c.router("tracing.operation.name") != "" || c.router("tracing.with.context.field.only") != "" {
		c.note(c.smt+"tracing.operation.name", "outboxcdc creates no span")
	}
	return nil
}

// topic converts the expression and the replacement of the event router, and of a RegexRouter after it.
func (c *conversion) topic() error {
	const whole = "(?<routedByValue>.*)"
	regex, with := c.router("route.topic.regex"), c.router("route.topic.replacement")
	if regex == "" && with == "" && c.renamed == nil {
		return nil // the preset has the same default
	}
	regex, with = cmp.Or(regex, whole), cmp.Or(with, "outbox.event.${routedByValue}")
	before, after, simple := strings.Cut(with, "${routedByValue}")
	simple = simple && regex == whole && !strings.ContainsAny(before+after, `$\{}`)
	switch {
	case simple && c.renamed != nil:
		return c.renameTopic(before, after)
	case simple:
		c.line(1, "topic", before+"{aggregate_type}"+after)
		return nil
	case c.renamed != nil:
		return fmt.Errorf("%s: a RegexRouter after an event router with its own expression is not converted; "+
			"write route.replace for both yourself, and repeat the command with --ignore-transforms", c.renamed.option)
	}
	converted, err := replacement(with)
	if err != nil {
		c.note(c.smt+"route.topic.replacement", "%v", err)
	}
	return c.replace(c.smt+"route.topic.regex", regex, converted, true)
}

// replacement converts a replacement text of Java to Go. In Java, letters may follow $1, and \ escapes a character.
func replacement(java string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(java); i++ {
		switch java[i] {
		case '\\':
			if i++; i == len(java) {
				return java, errors.New(`it ends with a \`)
			}
			if java[i] == '$' {
				b.WriteByte('$')
			}
			b.WriteByte(java[i])
		case '$':
			rest := java[i+1:]
			n := 0
			for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
				n++
			}
			switch {
			case n > 0:
				fmt.Fprintf(&b, "${%s}", rest[:n])
				i += n
			case strings.HasPrefix(rest, "{") && strings.Contains(rest, "}"):
				end := strings.IndexByte(rest, '}')
				b.WriteString("$" + rest[:end+1])
				i += end + 1
			default:
				return java, errors.New("it has a $ that names no group")
			}
		default:
			b.WriteByte(java[i])
		}
	}
	return b.String(), nil
}

func splitList(s string) (out []string) {
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}
