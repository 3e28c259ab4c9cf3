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
		"topic: a template is required": func(c *Config) { c.Topic = "" },
		"{ without }":                   func(c *Config) { c.Topic = "a.{b" },
		`character '}' is not`:          func(c *Config) { c.Topic = "a}" },
		"{} names no column":            func(c *Config) { c.Topic = "a{}" },
		"{{x} names no column":          func(c *Config) { c.Topic = "{{x}}" },
		`character '/' is not`:          func(c *Config) { c.Topic = "a/{b}" },
		`the topic cannot be ".."`:      func(c *Config) { c.Topic = ".." },
		"more than 249":                 func(c *Config) { c.Topic = strings.Repeat("a", 250) },
		"columns.id: a column":          func(c *Config) { c.Columns.ID = "" },
		"columns.aggregate_id":          func(c *Config) { c.Columns.AggregateID = "" },
		"columns.payload":               func(c *Config) { c.Columns.Payload = "" },
		`null_key: "" is none`:          func(c *Config) { c.NullKey = "" },
		`null_payload: "x" is`:          func(c *Config) { c.NullPayload = "x" },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	// All at once, so that a file is corrected once.
	if err := (Config{}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("got %v", err)
	}
}
