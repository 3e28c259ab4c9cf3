package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestFiles loads files in the forms that YAML has for values, and refuses invalid ones.
func TestFiles(t *testing.T) {
	surface, err := os.ReadFile("testdata/surface.yaml")
	must(t, err)
	for _, text := range []string{
		string(surface), uncommented(Sample()), Default().String(),
		"kafka:\nlog:\n  # level: debug\n", "poison: {topic: 4.0}\nkafka: {brokers: 'a:1,b:2'}\nhttp: {listen: ''}\n",
		"tuning: {max_in_flight: {records: '10', bytes: 65536}, status_interval: 1h1.5s}\n", "tuning: {max_in_flight: {records: 5}}\nroute: {missing_topic: 9s}\n",
		"tuning: {max_in_flight: {bytes: 16 MiB}}\nroute: {topics: {a: b, c: 5}, partitions: {t: 3}, position_header: False}\ndelivery: {mode: at_least_once}\npoison: {policy: skip}\n",
		"outboxes:\n  - {table: public.a, route: {topic: a, headers: [x]}, columns: {id: i}}\n",
	} {
		if _, err := loadText(text); err != nil {
			t.Errorf("does not load: %v\n%s", err, text)
		}
	}
	for _, text := range []string{
		"postgres: {slt: x}\n", "slot: x\n", "log: {level: loud}\n", "route: {position_header: 'yes'}\n", "shutdown_timeout: 30\n", "shutdown_timeout: 30 s\n",
		"tuning: {max_in_flight: {records: many}}\n", "tuning: {max_in_flight: {bytes: 16Mi}}\n", "kafka: {brokers: {a: 1}}\n", "route: {partitions: {t: many}}\n",
		"route: {topics: {a: [b]}}\n", "outboxes: [{columns: {id: i}}]\n", "outboxes: [{table: a.b, slot: c}]\n",
		"outboxes: [{table: a.b, route: {missing_topic: wait}}]\n", "delivery: {mode: transactional}\n", "postgres: [a]\n",
	} {
		if _, err := loadText(text); err == nil {
			t.Errorf("loads: %s", text)
		}
	}
}

// uncommented is the sample with every setting set.
func uncommented(sample string) string {
	return regexp.MustCompile(`(?m)^( *)#([a-z])`).ReplaceAllString(sample, "$1$2")
}

// TestSample checks that the sample changes nothing and, uncommented, has all settings with their defaults.
func TestSample(t *testing.T) {
	c, err := loadText(Sample())
	if err != nil {
		t.Fatalf("%v\n%s", err, Sample())
	}
	for _, s := range c.Settings() {
		if s.Origin != "default" {
			t.Errorf("%s is set by the sample as it is", s.Path)
		}
	}
	if c, err = loadText(uncommented(Sample())); err != nil {
		t.Fatal(err)
	}
	if c.String() != Default().String() {
		t.Errorf("the sample's values are not the defaults:\n%s", c)
	}
	for _, s := range c.Settings() {
		if s.Origin == "default" {
			t.Errorf("%s is not in the sample", s.Path)
		}
	}
	for line := range strings.Lines(Sample()) {
		if len([]rune(line)) > 160 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}
