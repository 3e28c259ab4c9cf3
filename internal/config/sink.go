package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Sinks besides Kafka.
const (
	SinkHTTP     = "http"
	SinkRabbitMQ = "rabbitmq"
	SinkRedis    = "redis"
	SinkNATS     = "nats"
	SinkSQS      = "sqs"
	SinkSNS      = "sns"
)

// schemes are those of receiver.url, by the sink. A sink that is not here has no receiver.
var schemes = map[string][]string{
	SinkHTTP:     {"http", "https"},
	SinkRabbitMQ: {"amqp", "amqps"},
	SinkRedis:    {"redis", "rediss"},
	SinkNATS:     {"nats", "tls"},
	SinkSQS:      {"https", "http"},
	SinkSNS:      {"https", "http"},
}

// ofOneSink are settings that only one sink has, or two.
var ofOneSink = map[string]string{
	"receiver.lanes": SinkHTTP, "receiver.batch": SinkHTTP, "receiver.secret": SinkHTTP, "receiver.secret_file": SinkHTTP + " " + SinkNATS,
	"receiver.max_length": SinkRedis, "receiver.wait_replicas": SinkRedis,
	"receiver.stream": SinkNATS, "tls.enabled": "kafka",
}

// HasReceiver reports whether events are delivered to receiver.url, and not to Kafka.
func (c *Config) HasReceiver() bool { return schemes[c.Sink] != nil }

const (
	maxLanes           = 1000 // bounds the connections to a receiver
	maxHTTPBatch       = 1000
	minReceiverTimeout = 100 * time.Millisecond
)

// sink checks the settings of the sink, and refuses those that only another one has.
func (v *validation) sink(s *Receiver) {
	defaults := Default()
	for _, s := range knownSettings() {
		section, _, _ := strings.Cut(s.path, ".")
		only, one := ofOneSink[s.path]
		foreign := section == "kafka" && v.c.HasReceiver() || section == "receiver" && !v.c.HasReceiver() || one && !slices.Contains(strings.Fields(only), v.c.Sink)
		if foreign && !reflect.DeepEqual(s.value(v.c), s.value(defaults)) {
			v.report(s.path, "is set, but sink is "+v.c.Sink+"; remove it, or write another sink")
		}
	}
	if v.c.HasReceiver() {
		v.receiver(s)
		v.kafkaOnly()
	}
}

func (v *validation) receiver(s *Receiver) {
	switch {
	case s.URL != "" && s.URLFile != "":
		v.report("receiver.url_file", fmt.Sprintf("receiver.url is set too (%s); remove one of the two", v.c.Origin("receiver.url")))
	case s.URL == "" && s.URLFile == "":
		v.report("receiver.url", "is empty; write the address of the receiver, e.g. "+v.c.exampleURL()+", here or in receiver.url_file")
	case s.URL != "":
		v.report("receiver.url", v.c.checkReceiver(s.URL))
	}
	if s.Secret != "" && s.SecretFile != "" {
		v.report("receiver.secret_file", fmt.Sprintf("receiver.secret is set too (%s); remove one of the two", v.c.Origin("receiver.secret")))
	}
	for path, n := range map[string]struct{ value, most int }{"lanes": {s.Lanes, maxLanes}, "batch": {s.Batch, maxHTTPBatch}} {
		if n.value < 1 || n.value > n.most {
			v.report("receiver."+path, fmt.Sprintf("%d is out of range; write 1 to %d", n.value, n.most))
		}
	}
	for path, n := range map[string]int{"max_length": s.MaxLength, "wait_replicas": s.WaitReplicas} {
		if n < 0 {
			v.report("receiver."+path, fmt.Sprintf("%d is negative; write 0 or more", n))
		}
	}
	if v.c.Sink == SinkNATS && !streamName.MatchString(s.Stream) {
		v.report("receiver.stream", fmt.Sprintf("%s is no name of a stream; write the name of the stream that has the topics as its subjects, e.g. EVENTS", quote(s.Stream)))
	}
	v.atLeast("receiver.timeout", s.Timeout, minReceiverTimeout)
}

// kafkaOnly refuses what needs a broker that can be read, or asked before an event is sent.
func (v *validation) kafkaOnly() {
	c := v.c
	if c.Deduplicated() {
		v.report("delivery.mode", "deduplicated (the default) reads in Kafka what was delivered, and a receiver cannot be read; write delivery.mode: at_least_once, and let the receiver decide by the id")
	}
	deadLetters := "dead letters (dead_letter, hold_key) need Kafka, where the dlq commands read them; write stop or skip"
	sends := func(policy string) bool { return policy == "dead_letter" || policy == HoldKey }
	if sends(c.Poison.Policy) {
		v.report("poison.policy", deadLetters)
	}
	for path, policies := range map[string]map[string]string{"poison.causes": c.Poison.Causes, "poison.decisions": c.Poison.Decisions} {
		if slices.ContainsFunc(slices.Collect(maps.Values(policies)), sends) {
			v.report(path, deadLetters)
		}
	}
	if c.MissingTopicAfter() > 0 {
		v.report("route.missing_topic", "a receiver cannot be asked for a topic before an event is sent, so events wait; write wait")
	}
	if len(c.Route.Partitions) > 0 {
		v.report("route.partitions", "a receiver has no partitions; remove it")
	}
	for i, s := range c.Sources() {
		v.receiverRoute(&s.Route, func(path, problem string) { v.errs = append(v.errs, c.SourceProblem(i, path, problem)) })
	}
	if c.Messages.Prefix != "" && (len(c.Outboxes) > 0 || len(c.Sources()) == 0) {
		v.receiverRoute(&c.Route, v.report)
	}
}

// receiverRoute checks the routes of a table. A request is a CloudEvent, and has no partition and no timestamp.
func (v *validation) receiverRoute(r *Route, report func(path, problem string)) {
	if v.c.Sink == SinkHTTP && r.Format != "cloudevents_structured" {
		report("route.format", "is "+r.Format+", but sink: http sends CloudEvents; write cloudevents_structured, with route.fields: {source: …} (docs/routing.md)")
	}
	if v.c.Sink == SinkRedis && !r.PositionHeader {
		report("route.position_header", "is false, but sink: redis makes the position the id of an entry; write true")
	}
	if v.c.Sink == SinkNATS && !r.PositionHeader {
		report("route.position_header", "is false, but sink: nats makes the position the id of a message; write true")
	}
	if v.c.ofAWS() {
		v.fifoRoute(r, report)
	}
	if r.Partition != "" {
		report("route.partition", "a receiver has no partitions; remove it")
	}
	if r.Timestamp != "produce" {
		report("route.timestamp", "a request has no timestamp, and the attribute time is in route.fields; remove it")
	}
}

// ofAWS reports whether the receiver is an account of AWS.
func (c *Config) ofAWS() bool { return c.Sink == SinkSQS || c.Sink == SinkSNS }

// fifoRoute checks that topics are names of FIFO queues or topics, as far as the settings say it.
func (v *validation) fifoRoute(r *Route, report func(path, problem string)) {
	what := map[string]string{SinkSQS: "queue", SinkSNS: "topic of SNS"}[v.c.Sink]
	if !r.PositionHeader {
		report("route.position_header", "is false, but sink: "+v.c.Sink+" makes the position the deduplication id of a message; write true")
	}
	check := func(path, name string) {
		if name != "" && !fifoName.MatchString(column.ReplaceAllString(name, "x")) {
			report(path, quote(name)+" is no name of a FIFO "+what+", which has up to 75 letters, digits, - and _, and .fifo; write e.g. {aggregate_type}.fifo")
		}
	}
	check("route.topic", r.Topic)
	for _, name := range r.Topics {
		check("route.topics", name)
	}
	if r.Unmatched != "poison" && r.Unmatched != "keep" {
		check("route.unmatched", r.Unmatched)
	}
}

var (
	fifoName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}\.fifo$`)
	column   = regexp.MustCompile(`\{[^{}]*\}`) // of a template
)

// exampleURL is an address of a receiver, for messages.
func (c *Config) exampleURL() string {
	switch c.Sink {
	case SinkHTTP:
		return "https://shop.example/events/{topic}"
	case SinkSQS, SinkSNS:
		return "https://" + c.Sink + ".eu-central-1.amazonaws.com/123456789012"
	}
	return schemes[c.Sink][0] + "://user:password@host"
}

// checkReceiver checks the address of a receiver. The message does not contain it.
func (c *Config) checkReceiver(text string) string {
	if c.Sink == SinkNATS { // several servers of a cluster
		for part := range strings.SplitSeq(text, ",") {
			if problem := c.checkAddress(strings.TrimSpace(part)); problem != "" {
				return problem
			}
		}
		return ""
	}
	return c.checkAddress(text)
}

func (c *Config) checkAddress(text string) string {
	u, err := url.Parse(strings.ReplaceAll(text, "{topic}", "topic"))
	switch {
	case err != nil || u.Host == "" || !slices.Contains(schemes[c.Sink], u.Scheme):
		return "the value (not shown) is not a URL with a host that begins with " + strings.Join(schemes[c.Sink], ":// or ") + "://; write e.g. " + c.exampleURL()
	case u.Fragment != "":
		return "the value (not shown) has a part after #, which is not sent; remove it, or write %23 for #"
	case c.Sink == SinkRabbitMQ && u.RawQuery != "":
		return "the value (not shown) has a part after ?, which sink: rabbitmq does not read; remove it, and use tls for certificates"
	case c.Sink == SinkRedis && !redisPath.MatchString(u.Path+"?"+u.RawQuery):
		return "the value (not shown) has more than a host, a port and the number of a database; write e.g. " + c.exampleURL() + ":6379/0"
	case c.Sink == SinkNATS && (strings.Trim(u.Path, "/") != "" || u.RawQuery != ""):
		return "the value (not shown) has more than a host and a port; write e.g. " + c.exampleURL() + ":4222, and several servers separated by commas"
	case c.ofAWS() && (!accountPath.MatchString(u.Path) || u.RawQuery != "" || u.User != nil):
		return "the value (not shown) is not a host and the number of an account, without user and password; write e.g. " + c.exampleURL()
	case c.Sink != SinkHTTP && strings.Contains(text, "{topic}"):
		return "the value (not shown) has {topic}, which only sink: http has; remove it"
	case strings.Contains(text, "{topic}") && u.Host != hostOf(text):
		return "the value (not shown) has {topic} in its host; write it into the path or the query"
	}
	return ""
}

// streamName is a name that NATS takes for a stream.
var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)

// accountPath is the path of an address of SQS or SNS.
var accountPath = regexp.MustCompile(`^/[0-9]{12}/?$`)

// redisPath is the path and the query of an address of Redis.
var redisPath = regexp.MustCompile(`^(/[0-9]{0,5})?\?$`)

func hostOf(text string) string {
	if u, err := url.Parse(strings.ReplaceAll(text, "{topic}", "other")); err == nil {
		return u.Host
	}
	return ""
}

// redactReceiver shows scheme and host of an address; the rest may be a secret.
func redactReceiver(text string) string {
	u, err := url.Parse(text)
	if text == "" {
		return ""
	}
	if err != nil || u.Host == "" {
		return masked
	}
	first, _, _ := strings.Cut(u.Host, ",") // of several servers
	return u.Scheme + "://" + first + "/" + masked
}

// ReceiverURL is receiver.url, or the content of receiver.url_file. Call it for each session.
func (c *Config) ReceiverURL() (string, error) {
	text, err := c.receiverSecret("receiver.url_file", c.Receiver.URL, c.Receiver.URLFile, "the address of the receiver")
	if err == nil {
		if problem := c.checkReceiver(text); problem != "" {
			err = c.Problem("receiver.url_file", quote(c.Receiver.URLFile)+": "+problem)
		}
	}
	return text, err
}

// ReceiverSecret is receiver.secret, or the content of receiver.secret_file. Call it for each session.
func (c *Config) ReceiverSecret() (string, error) {
	return c.receiverSecret("receiver.secret_file", c.Receiver.Secret, c.Receiver.SecretFile, "the secret")
}

func (c *Config) receiverSecret(setting, value, file, what string) (string, error) {
	if file == "" {
		return value, nil
	}
	text, err := ReadSecret(file)
	if err == nil && strings.TrimSpace(text) == "" {
		err = errors.New(quote(file) + " is empty; put " + what + " into it")
	}
	if err != nil {
		return "", c.Problem(setting, "read the secret: "+err.Error())
	}
	return text, nil
}
