package config

import (
	"errors"
	"time"
)

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
