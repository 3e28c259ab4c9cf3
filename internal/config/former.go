package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// formerNames maps former names of settings to present ones. A configuration with former names is still accepted.
// Sample and reference do not have them, and `config print` shows the present names.
var formerNames = map[string]string{
	"postgres.status_interval":    "tuning.status_interval",
	"postgres.park_after":         "tuning.park_after",
	"postgres.wal_sender_timeout": "tuning.wal_sender_timeout",
	"postgres.read_interval":      "tuning.read_interval",
	"postgres.receive_buffer":     "tuning.receive_buffer",
	"postgres.decoding_work_mem":  "tuning.decoding_work_mem",
	"kafka.max_in_flight.records": "tuning.max_in_flight.records",
	"kafka.max_in_flight.bytes":   "tuning.max_in_flight.bytes",
	"kafka.requests_per_broker":   "tuning.requests_per_broker",
	"delivery.look_back":          "tuning.look_back",
	"delivery.fence_wait":         "tuning.fence_wait",
}

// find returns the setting with this name or former name.
func (t tree) find(name string) (*setting, bool) {
	if s, ok := t.leaves[name]; ok {
		return s, true
	}
	s, ok := t.leaves[formerNames[name]]
	return s, ok
}

// formerKeys are the keys of former names in a section.
func formerKeys(section string) []string {
	var keys []string
	for name := range formerNames {
		if rest, ok := strings.CutPrefix(name, section+"."); ok {
			key, _, _ := strings.Cut(rest, ".")
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// names maps each setting to the name that a source uses for it. A source may not use two names for a setting.
type names map[*setting]string

func (n names) check(s *setting, name string) error {
	if other, ok := n[s]; ok && other != name {
		return fmt.Errorf("is the same setting as %s; write %s only", other, s.path)
	}
	n[s] = name
	return nil
}

// convertMissingTopic converts the former route.missing_topic: poison, whose duration was a setting of its own.
func (c *Config) convertMissingTopic() error {
	const now, former = "route.missing_topic", "route.missing_topic_after"
	r, after := &c.Route, c.Route.MissingTopicAfter
	where := c.origins[former]
	r.MissingTopicAfter = Default().Route.MissingTopicAfter
	delete(c.origins, former)
	delete(c.formerNames, former)
	switch {
	case r.MissingTopic == "poison":
		r.MissingTopic = formatDuration(after)
		if where != "" {
			c.origins[now] = where
			c.noteName(knownTree().leaves[now], former)
		}
	case where != "" && r.MissingTopic != "wait":
		return &Error{Where: where, Path: former, Problem: fmt.Sprintf("%s already has the duration (%s); remove this", now, c.Origin(now))}
	}
	return nil
}

// MissingTopicAfter is how long a topic may be missing before its events become poison; 0: no limit.
func (c *Config) MissingTopicAfter() time.Duration {
	d, _ := parseMissingTopic(c.Route.MissingTopic)
	return d
}

func parseMissingTopic(text string) (time.Duration, error) {
	if text == "wait" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New(quote(text) + " is neither wait nor a duration, e.g. 5m")
	case d < time.Second:
		return 0, errors.New(formatDuration(d) + " is too short; write at least 1s")
	}
	return d, nil
}

// noteName notes that s was set by name, which may be a former name.
func (c *Config) noteName(s *setting, name string) {
	delete(c.formerNames, s.path)
	if name == s.path {
		return
	}
	if c.formerNames == nil {
		c.formerNames = map[string]string{}
	}
	c.formerNames[s.path] = name
}
