package router

import (
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	for _, topic := range []string{"a", "{x}", "{x}{y}", "a.{Mixed Case}.b", ".{x}", "{aggregate_type}"} {
		c := DefaultConfig()
		c.Topic = topic
		if _, err := New(c); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
	}
	for want, change := range map[string]func(*Config){
		"topic: a template is required":   func(c *Config) { c.Topic = "" },
		"{ without }":                     func(c *Config) { c.Topic = "a.{b" },
		`character '}' is not`:            func(c *Config) { c.Topic = "a}" },
		"{} names no column":              func(c *Config) { c.Topic = "a{}" },
		"{{x} names no column":            func(c *Config) { c.Topic = "{{x}}" },
		`character '/' is not`:            func(c *Config) { c.Topic = "a/{b}" },
		`the topic cannot be ".."`:        func(c *Config) { c.Topic = ".." },
		"more than 249":                   func(c *Config) { c.Topic = strings.Repeat("a", 250) },
		"columns.id: a column":            func(c *Config) { c.Columns.ID = "" },
		"id: template \"x{table}\" names": func(c *Config) { c.ID = "x{table}" },
		"columns.aggregate_id":            func(c *Config) { c.Columns.AggregateID = "" },
		"columns.payload":                 func(c *Config) { c.Columns.Payload = "" },
		"columns.aggregate_type: a column is required by topics": func(c *Config) { c.Columns.AggregateType, c.Topics = "", map[string]string{"a": "b"} },
		"columns.aggregate_type: a column is required":           func(c *Config) { c.Columns.AggregateType, c.Replace = "", Replace{"x", "y"} },
		"aggregate_type: a column is required by":                func(c *Config) { c.Columns.AggregateType, c.Topic, c.Unmatched = "", "", "rest" },
		"required by topics, replace and unmatched":              func(c *Config) { c.Columns.AggregateType, c.Topic, c.Unmatched = "", "", UnmatchedKeep },
		`null_key: "" is none`:                                   func(c *Config) { c.NullKey = "" },
		`null_payload: "x" is`:                                   func(c *Config) { c.NullPayload = "x" },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for want, change := range map[string]func(*Config){
		"topic: the topic \"pos\" takes no events":         func(c *Config) { c.Topic = "pos" },
		"topics: of \"a\": the topic \"pos\" takes no":     func(c *Config) { c.Topics = map[string]string{"a": "pos", "b": "orders"} },
		"unmatched: the topic \"pos\" takes no":            func(c *Config) { c.Replace, c.Unmatched = Replace{"x", "y"}, "pos" },
		"topic: the topic \"dead\" takes no events":        func(c *Config) { c.Topic, c.DeadLetterTopic = "dead", "dead" },
		"topic: the topic \"__x\" takes no events":         func(c *Config) { c.Topic = "__x" },
		"replace.with: \"a.$1x\" names the group \"1x\"":   func(c *Config) { c.Replace = Replace{"(.*)", "a.$1x"} },
		"replace.with: \"${n}\" names the group \"n\"":     func(c *Config) { c.Replace = Replace{"(?P<m>.*)", "${n}"} },
		"replace.with: \"$2\" names the group \"2\"":       func(c *Config) { c.Replace = Replace{"(.*)", "$2"} },
		"replace.with: the topic \"pos\" takes no":         func(c *Config) { c.Topic, c.Replace = "{aggregate_type}", Replace{"x", "pos"} },
		"replace.with: the topic \"pos\" takes no events,": func(c *Config) { c.Topic, c.Replace = "p{aggregate_type}", Replace{"x.*", "os"} },
	} {
		c := DefaultConfig()
		c.PositionTopic = "pos"
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Topic = "{aggregate_type}" },
		func(c *Config) { c.Topic, c.Replace = "{aggregate_type}", Replace{"(.*)", "$1"} },
		func(c *Config) { c.Topic, c.Replace = "{aggregate_type}", Replace{"(?P<m>.*)(x)", "$0${1}$m$$3"} },
		func(c *Config) { c.Topic, c.Replace = "{aggregate_id}", Replace{"x", "pos"} },
	} {
		c := DefaultConfig()
		c.PositionTopic = "pos"
		change(&c)
		if _, err := New(c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// All problems are reported together.
	if err := (Config{}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("got %v", err)
	}
}
