package config

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// FuzzLoad checks that no input panics, that every error is an Error with its exit code, and that an accepted
// configuration is valid and can be printed and loaded again.
func FuzzLoad(f *testing.F) {
	sample, err := os.ReadFile("testdata/surface.yaml")
	must(f, err)
	f.Add(sample, "OUTBOXCDC_POSTGRES_SLOT", "x")
	f.Add([]byte("kafka: {brokers: [a:1]}\n"), "OUTBOXCDC_TUNING_MAX_IN_FLIGHT_BYTES", "1GiB")
	f.Add([]byte("a: &x {b: *x}\n? [q]\n: !!map {}\n<<: *x\n"), "OUTBOXCDC_X", "")
	f.Add([]byte("outboxes: [{a: b}]\nroute: {topics: {}}\n"), "OUTBOXCDC_OUTBOX_TABLE", `"a"."b"`)
	f.Add([]byte("postgres: {url: 'postgres://u:p@h/d?x=%zz'}"), "OUTBOXCDC_POSTGRES_URL", "a='b")
	f.Add([]byte("log: {level: |\n  x}"), "", "")
	f.Fuzz(func(t *testing.T, yaml []byte, name, value string) {
		c, err := load([]source{{"f.yaml", yaml}}, []string{name + "=" + value})
		if err != nil {
			var e *Error
			if c == nil || !errors.As(err, &e) || e.ExitCode() != 78 {
				t.Fatalf("error %v of type %T with config %v", err, err, c)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("loaded, but not valid: %v", err)
		}
		if c.Postgres.URL != RedactDSN(c.Postgres.URL) || !printable(c) {
			return // masked, or not representable in YAML
		}
		again, err := load([]source{{"again.yaml", []byte(c.String())}}, nil)
		if err != nil {
			t.Fatalf("printed form does not load: %v\n%s", err, c)
		}
		c.origins, again.origins = nil, nil
		if !reflect.DeepEqual(c, again) {
			t.Fatalf("printed form loads to something else:\n%s\n%s", c, again)
		}
	})
}

// printable reports whether Go and YAML quote the text in the same way.
func printable(c *Config) bool {
	for _, s := range c.Settings() {
		text := formatPlain(s.Value)
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return true
}
