package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"
)

// SinkHTTP is the sink that is a receiver of CloudEvents.
const SinkHTTP = "http"

// maxLanes bounds the connections to a receiver, and maxHTTPBatch the events of a request.
const (
	maxLanes         = 1000
	maxHTTPBatch     = 1000
	minHTTPTimeout   = 100 * time.Millisecond
	minRetryAfterMax = time.Second
)

// sink checks the settings of the sink, and refuses those that only the other one has.
func (v *validation) sink(s *HTTPSink) {
	other, isSet := "http_sink.", "is set, but sink is kafka; write sink: http, or remove this"
	if v.c.Sink == SinkHTTP {
		other, isSet = "kafka.", "is set, but sink is http; remove it"
	}
	defaults := Default()
	for _, s := range knownSettings() {
		if strings.HasPrefix(s.path, other) && !reflect.DeepEqual(s.value(v.c), s.value(defaults)) {
			v.report(s.path, isSet)
		}
	}
	if v.c.Sink != SinkHTTP {
		return
	}
	v.httpSink(s)
	v.kafkaOnly()
}

func (v *validation) httpSink(s *HTTPSink) {
	switch {
	case s.URL != "" && s.URLFile != "":
		v.report("http_sink.url_file", fmt.Sprintf("http_sink.url is set too (%s); remove one of the two", v.c.Origin("http_sink.url")))
	case s.URL == "" && s.URLFile == "":
		v.report("http_sink.url", "is empty; write the address of the receiver, e.g. https://shop.example/events/{topic}, here or in http_sink.url_file")
	case s.URL != "":
		v.report("http_sink.url", checkReceiver(s.URL))
	}
	if s.Secret != "" && s.SecretFile != "" {
		v.report("http_sink.secret_file", fmt.Sprintf("http_sink.secret is set too (%s); remove one of the two", v.c.Origin("http_sink.secret")))
	}
	for path, n := range map[string]struct{ value, most int }{"lanes": {s.Lanes, maxLanes}, "batch": {s.Batch, maxHTTPBatch}} {
		if n.value < 1 || n.value > n.most {
			v.report("http_sink."+path, fmt.Sprintf("%d is out of range; write 1 to %d", n.value, n.most))
		}
	}
	v.atLeast("http_sink.timeout", s.Timeout, minHTTPTimeout)
	v.atLeast("http_sink.retry_after_max", s.RetryAfterMax, minRetryAfterMax)
	v.certificate("http_sink.tls.", s.TLS.CertFile, s.TLS.KeyFile)
}

// kafkaOnly refuses what needs a broker that can be read, or asked before an event is sent.
func (v *validation) kafkaOnly() {
	c := v.c
	if c.Deduplicated() {
		v.report("delivery.mode", "deduplicated (the default) reads in Kafka what was delivered, and a receiver cannot be read; write delivery.mode: at_least_once, and let the receiver decide by the id")
	}
	deadLetters := "dead_letter needs Kafka, where the dlq commands read dead letters; write stop or skip"
	if c.Poison.Policy == "dead_letter" {
		v.report("poison.policy", deadLetters)
	}
	for path, policies := range map[string]map[string]string{"poison.causes": c.Poison.Causes, "poison.decisions": c.Poison.Decisions} {
		if slices.Contains(slices.Collect(maps.Values(policies)), "dead_letter") {
			v.report(path, deadLetters)
		}
	}
	if c.MissingTopicAfter() > 0 {
		v.report("route.missing_topic", "a receiver cannot be asked for a topic before an event is sent, so events wait while it answers 404; write wait")
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
	if r.Format != "cloudevents_structured" {
		report("route.format", "is "+r.Format+", but sink: http sends CloudEvents; write cloudevents_structured, with route.fields: {source: …} (docs/routing.md)")
	}
	if r.Partition != "" {
		report("route.partition", "a receiver has no partitions; remove it")
	}
	if r.Timestamp != "produce" {
		report("route.timestamp", "a request has no timestamp, and the attribute time is in route.fields; remove it")
	}
}

// checkReceiver checks the address of a receiver. The message does not contain it.
func checkReceiver(text string) string {
	u, err := url.Parse(strings.ReplaceAll(text, "{topic}", "topic"))
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "the value (not shown) is not an http or https URL with a host; write e.g. https://shop.example/events/{topic}"
	case u.Fragment != "":
		return "the value (not shown) has a part after #, which is not sent; remove it, or write %23 for #"
	case strings.Contains(text, "{topic}") && u.Host != hostOf(text):
		return "the value (not shown) has {topic} in its host; write it into the path or the query"
	}
	return ""
}

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
	return u.Scheme + "://" + u.Host + "/" + masked
}

// HTTPSinkURL is http_sink.url, or the content of http_sink.url_file. Call it for each session.
func (c *Config) HTTPSinkURL() (string, error) {
	text, err := c.httpSinkSecret("http_sink.url_file", c.HTTPSink.URL, c.HTTPSink.URLFile, "the address of the receiver")
	if err == nil {
		if problem := checkReceiver(text); problem != "" {
			err = c.Problem("http_sink.url_file", quote(c.HTTPSink.URLFile)+": "+problem)
		}
	}
	return text, err
}

// HTTPSinkSecret is http_sink.secret, or the content of http_sink.secret_file. Call it for each session.
func (c *Config) HTTPSinkSecret() (string, error) {
	return c.httpSinkSecret("http_sink.secret_file", c.HTTPSink.Secret, c.HTTPSink.SecretFile, "the secret")
}

func (c *Config) httpSinkSecret(setting, value, file, what string) (string, error) {
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
