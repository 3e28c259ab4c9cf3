package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxIdentifier is PostgreSQL's NAMEDATALEN - 1. The server cuts longer names without an error.
const maxIdentifier = 63

// Lower bounds. Below them the daemon would send mostly status updates, or drop healthy connections.
const (
	minStatusInterval   = 10 * time.Millisecond
	minParkAfter        = time.Second
	minWALSenderTimeout = time.Second
	minInFlightBytes    = 64 << 10
)

const maxRequests = 5

// maxServerTimeout is the largest value of a PostgreSQL setting in milliseconds.
const maxServerTimeout = math.MaxInt32 * time.Millisecond

// Validate checks the values, without reading files or opening connections. It returns all errors, joined. Each one is
// an [*Error] with the origin of the value, the path, the value and the remedy.
func (c *Config) Validate() error {
	v := &validation{c: c}
	v.enumerations()
	v.postgres(&c.Postgres)
	v.sources()
	v.messages(&c.Messages)
	v.poison(&c.Poison)
	v.delivery(&c.Delivery)
	v.retention(&c.Retention)
	v.kafka(&c.Kafka)
	v.sink(&c.Receiver)
	v.tls(&c.TLS)
	v.report("http.listen", checkListen(c.HTTP.Listen))
	if c.HTTP.WebConfigFile != "" && c.HTTP.Listen == "" {
		v.report("http.web_config_file", "is set, but http.listen is empty; write an address there, or remove this")
	}
	v.atLeast("shutdown_timeout", c.ShutdownTimeout, time.Millisecond)
	if _, err := parseMissingTopic(c.Route.MissingTopic); err != nil {
		v.report("route.missing_topic", err.Error())
	}
	v.tuning(&c.Tuning)
	return errors.Join(v.errs...)
}

// validation collects errors. An empty problem is not an error.
type validation struct {
	c    *Config
	errs []error
}

func (v *validation) report(path, problem string) {
	if problem != "" {
		v.errs = append(v.errs, &Error{Where: v.c.origins[path], Path: path, Problem: problem})
	}
}

func (v *validation) atLeast(path string, d, least time.Duration) {
	if d < least {
		v.report(path, fmt.Sprintf("%s is too short; write at least %s", formatDuration(d), formatDuration(least)))
	}
}

func (v *validation) enumerations() {
	for _, s := range knownSettings() {
		v.report(s.path, s.checkChoice(s.value(v.c)))
	}
}

func (v *validation) postgres(p *Postgres) {
	v.report("postgres.url", checkPostgresURL(p.URL))
	if p.URL != "" && p.URLFile != "" {
		v.report("postgres.url_file", fmt.Sprintf("postgres.url is set too (%s); remove one of the two", v.c.Origin("postgres.url")))
	}
	v.report("postgres.password_command", checkCommand(p.PasswordCommand))
	if len(p.PasswordCommand) > 0 && dsnParameter(p.URL, "password") != "" {
		v.report("postgres.password_command", fmt.Sprintf("is set, and postgres.url (%s) has a password; remove one of the two", v.c.Origin("postgres.url")))
	}
	v.report("postgres.standbys", checkStandbys(p.Standbys))
	v.report("postgres.slot", checkSlot(p.Slot))
	v.report("postgres.publication", checkIdentifier("a publication", p.Publication))
}

func (v *validation) retention(p *Retention) {
	v.atLeast("retention.keep", p.Keep, time.Second)
	for i, slot := range p.Slots {
		switch problem := checkSlot(slot); {
		case problem != "":
			v.report("retention.slots", fmt.Sprintf("entry %d: %s", i+1, problem))
		case slot == v.c.Postgres.Slot:
			v.report("retention.slots", fmt.Sprintf("entry %d: %s is postgres.slot, which counts anyway; remove it here", i+1, slot))
		}
	}
	if len(p.Archive) > 0 && p.Archive[0] == "" {
		v.report("retention.archive", "the first entry is empty; write the name of a program")
	}
	if p.Mode == "off" {
		return
	}
	for i, s := range v.c.Sources() {
		if s.Columns.CreatedAt == "" {
			v.errs = append(v.errs, v.c.SourceProblem(i, "columns.created_at", "is empty, so the age of rows is not known; name a column, or set retention.mode: off"))
		}
	}
}

func (v *validation) tuning(p *Tuning) {
	v.atLeast("tuning.status_interval", p.StatusInterval, minStatusInterval)
	v.atLeast("tuning.park_after", p.ParkAfter, minParkAfter)
	v.atLeast("tuning.wal_sender_timeout", p.WALSenderTimeout, minWALSenderTimeout)
	if p.WALSenderTimeout > maxServerTimeout {
		v.report("tuning.wal_sender_timeout", fmt.Sprintf("%s is more than PostgreSQL allows; write at most 24 days (576h)", formatDuration(p.WALSenderTimeout)))
	}
	if p.MaxInFlight.Records < 1 {
		v.report("tuning.max_in_flight.records", fmt.Sprintf("%d is too small; write at least 1", p.MaxInFlight.Records))
	}
	if p.MaxInFlight.Bytes < minInFlightBytes {
		v.report("tuning.max_in_flight.bytes", fmt.Sprintf("%s is too small; write at least %s", p.MaxInFlight.Bytes, ByteSize(minInFlightBytes)))
	}
	if p.RequestsPerBroker < 1 || p.RequestsPerBroker > maxRequests {
		v.report("tuning.requests_per_broker", fmt.Sprintf("%d is out of range; write 1 to %d", p.RequestsPerBroker, maxRequests))
	}
	for path, n := range map[string]int{"tuning.max_held.keys": p.MaxHeld.Keys, "tuning.max_held.letters": p.MaxHeld.Letters} {
		if n < 1 || n > MostHeld {
			v.report(path, fmt.Sprintf("%d is out of range; write 1 to %d", n, MostHeld))
		}
	}
	v.atLeast("tuning.fence_wait", p.FenceWait, minFenceWait)
}

func (v *validation) messages(m *Messages) {
	switch {
	case strings.ContainsRune(m.Prefix, 0):
		v.report("messages.prefix", "contains a NUL, which PostgreSQL does not allow in a prefix")
	case !utf8.ValidString(m.Prefix):
		v.report("messages.prefix", "is not UTF-8")
	}
}

func (v *validation) columns(prefix string, c *Columns) {
	cols := []struct {
		key, name string
		required  bool
	}{
		{"id", c.ID, true},
		{"aggregate_type", c.AggregateType, false},
		{"aggregate_id", c.AggregateID, false},
		{"event_type", c.EventType, false},
		{"payload", c.Payload, true},
		{"headers", c.Headers, false},
	}
	for _, col := range cols {
		if col.name == "" && !col.required {
			continue
		}
		v.report(prefix+"columns."+col.key, checkIdentifier("a column", col.name))
	}
}

// route checks the values one by one. The router finds contradictions (see Problem).
func (v *validation) route(prefix string, r *Route) {
	if r.Topic != "" {
		v.report(prefix+"route.topic", checkTopicTemplate(r.Topic))
	}
	for topic, n := range r.Partitions {
		if n < 1 || n > math.MaxInt32 {
			v.report("route.partitions", fmt.Sprintf("%d partitions of topic %s: write at least 1", n, quote(topic)))
		}
	}
	for path, column := range map[string]string{"route.partition": r.Partition, "route.timestamp": r.Timestamp, "route.trace_context": r.TraceContext} {
		if column != "" {
			v.report(prefix+path, checkIdentifier("a column", column))
		}
	}
}

// poisonCauses are the causes of poison events, and poisonPolicies the policies for them.
var (
	poisonCauses = []string{
		"too_large", "rejected", "no_route", "illegal_topic", "null_id", "null_key", "null_payload", "bad_headers", "bad_partition", "bad_timestamp", "bad_payload",
		"missing_topic", "update",
	}
	poisonPolicies = []string{"stop", "dead_letter", "hold_key", "skip"}
)

func (v *validation) poison(p *Poison) {
	for _, cause := range slices.Sorted(maps.Keys(p.Causes)) {
		if !slices.Contains(poisonCauses, cause) {
			v.report("poison.causes", fmt.Sprintf("the cause %s is unknown; write %s", quote(cause), strings.Join(poisonCauses, " | ")))
		}
	}
	for path, policies := range map[string]map[string]string{"poison.causes": p.Causes, "poison.decisions": p.Decisions} {
		for _, key := range slices.Sorted(maps.Keys(policies)) {
			if !slices.Contains(poisonPolicies, policies[key]) {
				v.report(path, fmt.Sprintf("the policy %s of %s is unknown; write %s", quote(policies[key]), quote(key), strings.Join(poisonPolicies, " | ")))
			}
		}
	}
	v.report("poison.topic", checkTopic(p.Topic))
	if p.Holds() {
		v.holdKey(p)
	}
}

// MostHeld bounds the memory for held keys and their letters, to a few hundred MiB: neither limit can be larger.
const MostHeld = 1_000_000

// holdKey checks what the policy hold_key needs: a key decides the partition of its events, and the daemon finds its
// own letters by their position.
func (v *validation) holdKey(p *Poison) {
	other := v.otherPolicy(p)
	if p.Oversize == "cut" {
		v.report("poison.oversize", "is cut, but a letter that was cut cannot be retried, so it would hold its key until it is dropped; "+
			"write stop, or "+other)
	}
	for i, s := range v.c.Sources() {
		v.holdKeyRoute(&s.Route, other, func(path, problem string) { v.errs = append(v.errs, v.c.SourceProblem(i, path, problem)) })
	}
	if v.c.Messages.Prefix != "" && (len(v.c.Outboxes) > 0 || len(v.c.Sources()) == 0) {
		v.holdKeyRoute(&v.c.Route, other, v.report)
	}
}

// otherPolicy says where the policy hold_key is to be replaced, and by what.
func (v *validation) otherPolicy(p *Poison) string {
	const policies = "dead_letter, stop or skip"
	var at []string
	if p.Policy == HoldKey && v.c.origins["poison.policy"] == "" {
		at = append(at, "set poison.policy, whose default is hold_key, to "+policies)
	} else if p.Policy == HoldKey {
		at = append(at, "set poison.policy to "+policies)
	}
	for path, of := range map[string]map[string]string{"poison.causes": p.Causes, "poison.decisions": p.Decisions} {
		for key, policy := range of {
			if policy == HoldKey {
				at = append(at, fmt.Sprintf("set %s of %s to %s", quote(key), path, policies))
			}
		}
	}
	slices.Sort(at)
	return strings.Join(at, ", and ")
}

func (v *validation) holdKeyRoute(r *Route, other string, report func(path, problem string)) {
	if r.Partition != "" {
		report("route.partition", "chooses partitions, but a letter of the policy hold_key is retried to the partition of its key, "+
			"where it would not be in order with later events; remove it, or "+other)
	}
	if !r.PositionHeader {
		report("route.position_header", "is false, but the policy hold_key recognizes the letters of a session by their position; "+
			"write true, or "+other)
	}
}

// Problem is an error about a setting, for packages that use it, with the origin of the value.
func (c *Config) Problem(path, problem string) error {
	return &Error{Where: c.origins[path], Path: path, Problem: problem}
}

func (v *validation) kafka(k *Kafka) {
	if len(k.Brokers) == 0 {
		v.report("kafka.brokers", "is empty; name at least one host:port")
	}
	for _, b := range k.Brokers {
		v.report("kafka.brokers", checkBroker(b))
	}
	for path, n := range map[string]struct{ value, least, most int }{
		"partitions": {k.CreateTopics.Partitions, 0, math.MaxInt32}, "replication_factor": {k.CreateTopics.ReplicationFactor, 1, math.MaxInt16},
	} {
		if n.value < n.least || n.value > n.most {
			v.report("kafka.create_topics."+path, fmt.Sprintf("%d is out of range; write %d to %d", n.value, n.least, n.most))
		}
	}
	if c := &k.CreateTopics; c.Partitions == 0 && (c.ReplicationFactor != Default().Kafka.CreateTopics.ReplicationFactor || len(c.Config) > 0) {
		v.report("kafka.create_topics", "says how to create topics, but without partitions the daemon creates none; set partitions, or remove it")
	}
	v.sasl(&k.SASL)
}

var (
	slotName     = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	backfillSlot = regexp.MustCompile(`_backfill_[0-9a-f]{8}$`)
)

func checkSlot(s string) string {
	switch {
	case s == "pg_conflict_detection":
		return quote(s) + " is reserved: PostgreSQL itself creates a slot of that name; use another name"
	case !slotName.MatchString(s):
		return quote(s) + " is not a slot name; use 1–63 of a–z, 0–9 and _"
	case strings.HasSuffix(s, "_recovery") || backfillSlot.MatchString(s):
		return quote(s) + " ends as the slots do that recover and backfill create beside the daemon's; use another name " +
			"(pg_copy_logical_replication_slot copies an existing slot with its position)"
	}
	return ""
}

func checkIdentifier(what, name string) string {
	switch {
	case name == "":
		return "is empty; name " + what
	case len(name) > maxIdentifier:
		return fmt.Sprintf("%s is %d bytes long; names in PostgreSQL have at most %d", quote(name), len(name), maxIdentifier)
	case strings.ContainsRune(name, 0):
		return quote(name) + " contains a NUL, which PostgreSQL does not allow in a name"
	case !utf8.ValidString(name):
		return quote(name) + " is not UTF-8"
	}
	return ""
}

// checkPostgresURL finds values that are not a connection string. The parser of pgconn is not used, because it reads
// the environment and files. The message does not contain the value.
func checkPostgresURL(dsn string) string {
	if target := dsnParameter(dsn, "target_session_attrs"); target == "standby" || target == "read-only" {
		return "target_session_attrs=" + target + " is for standbys, but events are read on the primary; write read-write, or remove it"
	}
	return checkDSN(dsn)
}

// checkDSN checks that text is a connection string, without its values.
func checkDSN(dsn string) string {
	switch {
	case strings.ContainsRune(dsn, 0):
		return "the value (not shown) contains a NUL"
	case isURL(dsn) && misplacedAt(dsn):
		return "the value (not shown) has an @ after the first / ? or #; percent-encode special characters in user and password (%40 for @, %2F for /, %3F for ?, %23 for #)"
	case dsn == "", isURL(dsn), !strings.Contains(dsn, "://") && strings.Contains(dsn, "="):
		return ""
	}
	return `the value (not shown) is not a connection string; write postgres://user@host/database or "host=… user=… dbname=…"`
}

// checkStandbys checks postgres.standbys: connection strings with a host, or auto alone.
func checkStandbys(all []string) string {
	for i, dsn := range all {
		at := fmt.Sprintf("entry %d: ", i+1)
		switch problem := checkDSN(dsn); {
		case dsn == "auto" && len(all) > 1:
			return at + "auto means the hosts of postgres.url; write it alone, or name every host"
		case dsn == "auto":
		case dsn == "":
			return at + `is empty; write "host=…", or postgres://host`
		case problem != "":
			return at + problem + " (in the environment, commas separate the strings)"
		case dsnParameter(dsn, "host") == "":
			return at + `names no host; write "host=…", or postgres://host`
		}
	}
	return ""
}

func checkBroker(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, " \t/@\x00") || !isPort(port, 1) {
		return quote(s) + " is not host:port; write e.g. kafka-1:9092 or [2001:db8::1]:9092"
	}
	return ""
}

func checkListen(s string) string {
	if s == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " \t/@\x00") || !isPort(port, 0) {
		return quote(s) + ` is not an address to listen on; write :9464, 127.0.0.1:9464, or "" for none`
	}
	return ""
}

// isPort reports whether s is a port. least is 1 for connecting and 0 for listening, where the system may choose.
func isPort(s string, least int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= least && n <= math.MaxUint16
}
