package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// otherThanDefault has a value for each type of setting with a former name.
func otherThanDefault(s *setting) string {
	switch s.zero.(type) {
	case int:
		return "3"
	case time.Duration:
		return "50ms"
	case ByteSize:
		return "1MiB"
	}
	return "64MB"
}

// TestFormerNames checks that a former name sets the same setting as the present name, from each source, and that both
// in one source are an error.
func TestFormerNames(t *testing.T) {
	yaml := func(path, value string) string {
		var b strings.Builder
		keys := strings.Split(path, ".")
		for i, key := range keys {
			b.WriteString(strings.Repeat("  ", i) + key + ":")
			if i < len(keys)-1 {
				b.WriteString("\n")
			}
		}
		return b.String() + " " + value + "\n"
	}
	for former, now := range formerNames {
		s, ok := knownTree().leaves[now]
		if !ok {
			t.Errorf("%s has become %s, which is no setting", former, now)
			continue
		}
		if _, ok := knownTree().leaves[former]; ok {
			t.Errorf("%s is a setting and a former name", former)
		}
		value := otherThanDefault(s)
		if strings.HasSuffix(now, "_timeout") || strings.HasSuffix(now, "_after") || strings.HasSuffix(now, "_wait") {
			value = "9s"
		}
		for source, load := range map[string]func(name string) (*Config, error){
			"file":        func(name string) (*Config, error) { return loadText(yaml(name, value)) },
			"environment": func(name string) (*Config, error) { return load(nil, []string{EnvName(name) + "=" + value}) },
			"--set":       func(name string) (*Config, error) { return load(nil, nil, name+"="+value) },
		} {
			want, err := load(now)
			if err != nil {
				t.Errorf("%s, %s: %v", source, now, err)
				continue
			}
			got, err := load(former)
			if err != nil {
				t.Errorf("%s, %s: %v", source, former, err)
				continue
			}
			if !reflect.DeepEqual(s.value(got), s.value(want)) || reflect.DeepEqual(s.value(got), s.value(Default())) {
				t.Errorf("%s: %s sets %v, %s sets %v", source, former, s.value(got), now, s.value(want))
			}
			if !strings.HasSuffix(got.Origin(now), " ("+former+")") || strings.Contains(want.Origin(now), "(") {
				t.Errorf("%s: origins %q and %q", source, got.Origin(now), want.Origin(now))
			}
			if strings.Contains(got.String(), "  "+former[strings.IndexByte(former, '.')+1:]) && got.String() != want.String() {
				t.Errorf("%s: printed with its former name:\n%s", source, got)
			}
		}
		if _, err := loadText(yaml(former, value) + yaml(now, value)); err == nil || !strings.Contains(err.Error(), "is the same setting as "+former) {
			t.Errorf("%s and %s in one file: %v", former, now, err)
		}
		if _, err := load(nil, []string{EnvName(former) + "=" + value, EnvName(now) + "=" + value}); err == nil || !strings.Contains(err.Error(), "is the same setting as") {
			t.Errorf("%s and %s in one environment: %v", former, now, err)
		}
	}
}

// TestFormerNamesInLayers checks that a later source overrides an earlier one, with either name.
func TestFormerNamesInLayers(t *testing.T) {
	c, err := load([]source{{"a.yaml", []byte("tuning: {park_after: 7s}\n")}}, []string{"OUTBOXCDC_POSTGRES_PARK_AFTER=8s"})
	if err != nil || c.Tuning.ParkAfter != 8*time.Second {
		t.Errorf("former name in the environment: %v %v", c, err)
	}
	c, err = load([]source{{"a.yaml", []byte("postgres: {park_after: 7s}\n")}}, nil, "tuning.park_after=9s")
	if err != nil || c.Tuning.ParkAfter != 9*time.Second || c.Origin("tuning.park_after") != "--set" {
		t.Errorf("present name on the command line: %v %v", c, err)
	}
	_, err = loadText("postgres: {park_after: 1ms}\n")
	if err == nil || !strings.Contains(err.Error(), "t.yaml:1:24: tuning.park_after: 1ms is too short") {
		t.Errorf("a wrong value under a former name: %v", err)
	}
	_, err = loadText("kafka: {max_in_flight: 5}\n")
	if err == nil || !strings.Contains(err.Error(), "must have keys and values: bytes, records") {
		t.Errorf("a former section that is no mapping: %v", err)
	}
}

// TestFormerMissingTopic checks the former route.missing_topic: poison, whose duration was a setting of its own.
func TestFormerMissingTopic(t *testing.T) {
	for yaml, want := range map[string]time.Duration{
		"":                                 0,
		"route: {missing_topic: wait}\n":   0,
		"route: {missing_topic: 90s}\n":    90 * time.Second,
		"route: {missing_topic: poison}\n": 5 * time.Minute,
		"route: {missing_topic: poison, missing_topic_after: 10s}\n": 10 * time.Second,
		"route: {missing_topic_after: 10s}\n":                        0,
	} {
		c, err := loadText(yaml)
		if err != nil || c.MissingTopicAfter() != want {
			t.Errorf("%s: %v %v, want %v", yaml, c.MissingTopicAfter(), err, want)
			continue
		}
		again, err := loadText(c.String())
		if err != nil || again.MissingTopicAfter() != want || strings.Contains(c.String(), "missing_topic_after") {
			t.Errorf("%s: printed as\n%s\n%v", yaml, c, err)
		}
	}
	for yaml, want := range map[string]string{
		"route: {missing_topic: poison, missing_topic_after: 0s}\n": "t.yaml:1:53: route.missing_topic: 0s is too short",
		"route: {missing_topic: 9s, missing_topic_after: 5s}\n":     "t.yaml:1:49: route.missing_topic_after: route.missing_topic already has the duration (t.yaml:1:24); remove this",
		"route: {missing_topic_afte: 5s}\n":                         `did you mean "missing_topic"?`,
	} {
		if _, err := loadText(yaml); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", yaml, err, want)
		}
	}
	c, err := loadText("route: {missing_topic: poison, missing_topic_after: 10s}\n")
	if err != nil || c.Origin("route.missing_topic") != "t.yaml:1:53 (route.missing_topic_after)" {
		t.Errorf("origin %q, %v", c.Origin("route.missing_topic"), err)
	}
}
