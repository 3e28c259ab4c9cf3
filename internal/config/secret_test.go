package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/exit"
)

func TestPostgresURLFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "url")
	write := func(content string) {
		must(t, os.WriteFile(name, []byte(content), 0o600))
	}
	c, err := loadText("postgres: {url_file: " + name + "}\n")
	if err != nil {
		t.Fatal(err) // loading does not read the file, which may be created later
	}
	if _, err := c.PostgresAddress(); err == nil || !strings.Contains(err.Error(), "t.yaml:1:22: postgres.url_file") {
		t.Errorf("missing file: %v", err)
	}
	for content, want := range map[string]string{
		"postgres://u:one@h/d": "postgres://u:one@h/d", "postgres://u:two@h/d\n": "postgres://u:two@h/d",
		"host=h password=three\r\n": "host=h password=three", "host=h password='four\n'\n\n": "host=h password='four\n'\n",
	} {
		write(content) // a rotated secret, which the next call returns
		if got, err := c.PostgresAddress(); err != nil || got != want {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
	for _, content := range []string{"", "\n", "s3cr3t"} {
		write(content)
		_, err := c.PostgresAddress()
		var e *Error
		if !errors.As(err, &e) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%q: %v", content, err)
		}
	}
	c = Default()
	c.Postgres.URL = "postgres://u@h/d"
	if got, err := c.PostgresAddress(); err != nil || got != c.Postgres.URL {
		t.Errorf("plain: %q, %v", got, err)
	}
}

// A standby has the roles and the passwords of its primary, so its string needs a host alone.
func TestStandbyURLs(t *testing.T) {
	for _, c := range []struct{ base, standby, want string }{
		{
			"postgres://u:s3cr3t@a,b:5433/shop?sslmode=verify-full&sslrootcert=/ca.pem", "host=c port=5434",
			"host=c port=5434 user=u password=s3cr3t dbname=shop sslmode=verify-full sslrootcert=/ca.pem",
		},
		{"host=a user=u password='s3 cr3t' dbname=shop", "postgres://c", "postgres://c?user=u&password=s3+cr3t&dbname=shop"},
		{"host=a user=u password=s3cr3t", "postgres://u@c:1/other?sslmode=require", "postgres://u@c:1/other?sslmode=require&password=s3cr3t"},
		{"postgres://u:s3cr3t@a/shop", "host=c user=v", "host=c user=v dbname=shop"}, // not the password of another user
		{"postgres://u:s3cr3t@a/shop", "host=c password=own", "host=c password=own user=u dbname=shop"},
		{"postgres://u%40x:s%2F3@a/shop%20x", "host=c", "host=c user=u@x password=s/3 dbname='shop x'"},
		{"", "host=c", "host=c"},
	} {
		cfg := Default()
		cfg.Postgres.URL, cfg.Postgres.Standbys = c.base, []string{c.standby}
		if got, err := cfg.StandbyAddresses(); err != nil || len(got) != 1 || got[0] != c.want {
			t.Errorf("%s and %s: %q, %v; want %q", c.base, c.standby, got, err, c.want)
		}
	}
	c := Default()
	if got, err := c.StandbyAddresses(); got != nil || err != nil {
		t.Errorf("not set: %q, %v", got, err)
	}
	c.Postgres.URL, c.Postgres.Standbys = "postgres://a,b/d", []string{"auto"}
	if got, err := c.StandbyAddresses(); err != nil || len(got) != 1 || got[0] != "postgres://a,b/d" {
		t.Errorf("auto: %q, %v", got, err)
	}
	c, err := loadText("postgres: {standbys: ['host=b password=s3cr3t', 'postgres://u:s3cr3t@c/d']}\n")
	must(t, err)
	if shown := c.String() + c.LogValue().String() + fmt.Sprint(c.Settings()); strings.Contains(shown, "s3cr3t") || !strings.Contains(shown, "host=b") {
		t.Errorf("shown: %s", shown)
	}
	if c.Postgres.Standbys[0] != "host=b password=s3cr3t" {
		t.Error("a redacted copy shares its list")
	}
}

func TestSASLPassword(t *testing.T) {
	c, err := loadText("kafka: {sasl: {mechanism: PLAIN, user: u, password: s3cr3t}}\n")
	must(t, err)
	if got, err := c.SASLPassword(); err != nil || got != "s3cr3t" {
		t.Errorf("%q, %v", got, err)
	}
	if shown := c.String() + c.LogValue().String() + fmt.Sprint(c.Settings()); strings.Contains(shown, "s3cr3t") || !strings.Contains(shown, masked) {
		t.Errorf("shown: %s", shown)
	}
	if shown := Default().String(); strings.Contains(shown, masked) {
		t.Error("an empty password is masked")
	}
	name := filepath.Join(t.TempDir(), "password")
	if c, err = loadText("kafka: {sasl: {mechanism: PLAIN, user: u, password_file: " + name + "}}\n"); err != nil {
		t.Fatal(err) // loading does not read the file
	}
	if _, err := c.SASLPassword(); err == nil || !strings.Contains(err.Error(), "t.yaml:1:58: kafka.sasl.password_file") {
		t.Errorf("missing file: %v", err)
	}
	for content, want := range map[string]string{"one": "one", "two\n": "two", "": ""} {
		must(t, os.WriteFile(name, []byte(content), 0o600))
		if got, err := c.SASLPassword(); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

func TestRedactDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                        "",
		"postgres://u@h/d":        "postgres://u@h/d",
		"postgres://h:5432/d":     "postgres://h:5432/d",
		"postgres://u:s3cr3t@h/d": "postgres://u:xxxxx@h/d",
		"postgresql://u:s3cr3t@h1:1,h2:2/d?sslmode=require":     "postgresql://u:xxxxx@h1:1,h2:2/d?sslmode=require",
		"postgres://u:s3cr3t/s3cr3t@h/d":                        "postgres://u:xxxxx@h/d",
		"postgres://u:s3cr3t?s3cr3t@s3cr3t@h/d":                 "postgres://u:xxxxx@h/d",
		"postgres://h/d?user=u&password=s3cr3t":                 "postgres://h/d?user=u&password=xxxxx",
		"postgres://h/d?p%61ssword=s3cr3t&sslpassword=s3cr3t#x": "postgres://h/d?p%61ssword=xxxxx&sslpassword=xxxxx#xxxxx",
		"postgres://h/d?pasword=s3cr3t&sslmode=require":         "postgres://h/d?pasword=xxxxx&sslmode=require",
		"postgres://h/d?sslmode=require;password=s3cr3t":        "postgres://h/d?sslmode=xxxxx",
		"postgres://h/d?sslmode=require%26password%3Ds3cr3t":    "postgres://h/d?sslmode=xxxxx",
		"postgres://u@h/d#s3cr3t":                               "postgres://u@h/d#xxxxx",
		"postgres://h/d?sslmode=require#s3cr3t":                 "postgres://h/d?sslmode=require#xxxxx",
		"postgres://u%3As3cr3t@h/d":                             "postgres://u:xxxxx@h/d",
		"postgres://u%3as3cr3t@h/d":                             "postgres://u:xxxxx@h/d",
		"postgres://h/d?s3cr3t":                                 "postgres://h/d?xxxxx",
		"host=h pasword=s3cr3t user=u":                          "host=h pasword=xxxxx user=u",
		"host=h;password=s3cr3t user=u":                         "host=xxxxx user=u",
		"postgres://h/d?%zz=s3cr3t":                             "postgres://h/d?%zz=xxxxx",
		"host=h password=s3cr3t user=u":                         "host=h password=xxxxx user=u",
		`host = h password = 's3cr3t \' s3cr3t' dbname='a b'`:   `host=h password=xxxxx dbname='a b'`,
		`PASSWORD=s3cr3t`:                                       "PASSWORD=xxxxx",
		`password='s3cr3t`:                                      "xxxxx",
		"s3cr3t":                                                "xxxxx",
		"mysql://u:s3cr3t@h/d?a=b":                              "xxxxx",
	} {
		got := RedactDSN(dsn)
		if got != want || strings.Contains(got, "s3cr3t") {
			t.Errorf("%s:\n got %s\nwant %s", dsn, got, want)
		}
	}
}

func TestDSNParts(t *testing.T) {
	for dsn, want := range map[string][2]string{
		"":                 {"", ""},
		"postgres://h":     {"", ""},
		"postgres://u@h/d": {"u", "d"},
		"postgres://u%40x:p@h1:1,h2/d%20e?sslmode=require": {"u@x", "d e"},
		"postgres:///d?user=u":                             {"u", "d"},
		"host=h user='a b' dbname=d":                       {"a b", "d"},
		"host=h database=d":                                {"", "d"},
	} {
		if got := [2]string{DSNUser(dsn), DSNDatabase(dsn)}; got != want {
			t.Errorf("%s: %q, want %q", dsn, got, want)
		}
	}
}

// TestPrintedFormsHaveNoSecret checks that no printed form of the configuration contains the password.
func TestPrintedFormsHaveNoSecret(t *testing.T) {
	c, err := loadText("postgres: {url: 'postgres://u:s3cr3t@h/d'}\n")
	must(t, err)
	var b strings.Builder
	slog.New(slog.NewTextHandler(&b, nil)).Info("start", "config", c)
	for form, text := range map[string]string{
		"String": c.String(), "%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "slog": b.String(), "Settings": fmt.Sprintf("%+v", c.Settings()),
	} {
		if strings.Contains(text, "s3cr3t") || !strings.Contains(text, "postgres://u:xxxxx@h/d") {
			t.Errorf("%s: %s", form, text)
		}
	}
	if c.Postgres.URL != "postgres://u:s3cr3t@h/d" {
		t.Errorf("printing changed the configuration: %s", c.Postgres.URL)
	}
	if !strings.Contains(c.String(), "kafka:\n  brokers: [\"localhost:9092\"]\n") || !strings.Contains(c.String(), "\nshutdown_timeout: 30s\n") {
		t.Errorf("not the YAML expected:\n%s", c)
	}
}

// TestPasswordCommand: the command knows the server of a connection string of each form, or the one that is
// connected to.
func TestPasswordCommand(t *testing.T) {
	const echo = `printf '%s' "$PGHOST|$PGPORT|$PGUSER|$PGDATABASE"`
	t.Setenv("PGHOST", "env")
	c := Default()
	c.Postgres.PasswordCommand = []string{"sh", "-c", echo}
	for _, test := range []struct{ dsn, host, port, want string }{
		{"postgres://u@h:5433/d?sslmode=require", "", "", "h|5433|u|d"},
		{"postgres://u@a:1,b:2/d", "", "", "a,b|1,2|u|d"},
		{"postgres://u@a:1,b:2/d", "b", "2", "b|2|u|d"},
		{"postgres://u@[::1]/d", "::1", "5432", "::1|5432|u|d"},
		{"postgres://u@[::1]/d", "", "", "::1||u|d"},
		{"host=h port=5433 user='u x' dbname=d", "", "", "h|5433|u x|d"},
		{"", "", "", "env|||"},
		{"postgres://u:own@h/d", "h", "5432", ""},
		{"host=h password=own", "", "", ""},
	} {
		if got, err := c.PostgresPassword(t.Context(), test.dsn, test.host, test.port); err != nil || got != test.want {
			t.Errorf("%q: %q, %v; want %q", test.dsn, got, err, test.want)
		}
	}
	c.Postgres.PasswordCommand = nil
	if got, err := c.PostgresPassword(t.Context(), "postgres://u@h/d", "", ""); got != "" || err != nil {
		t.Errorf("without a command: %q, %v", got, err)
	}
	c.Postgres.PasswordCommand = []string{"sh", "-c", "echo Geh3im; exit 1"}
	_, err := c.PostgresPassword(t.Context(), "postgres://u@h/d", "", "")
	if err == nil || strings.Contains(err.Error(), "Geh3im") || !strings.Contains(err.Error(), "postgres.password_command: run \"sh\": exit status 1") {
		t.Error(err)
	}
	if exit.Code(err) != exit.Unavailable || errors.As(err, new(*Error)) {
		t.Errorf("%v: it looks like a wrong setting, with exit code %d", err, exit.Code(err))
	}
	// The end of ctx ends the command, long before its own limit.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Postgres.PasswordCommand = []string{"sleep", "600"}
	if _, err := c.PostgresPassword(ctx, "postgres://u@h/d", "", ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"postgres: {url: 'postgres://u:Geh3im@h/d', password_command: [x]}":                                  "password_command: is set, and postgres.url",
		"postgres: {password_command: ['']}":                                                                 "has an empty name",
		"kafka: {sasl: {token_command: [x]}}":                                                                "token_command: is set, but kafka.sasl.mechanism is empty",
		"kafka: {sasl: {mechanism: PLAIN, user: u, password: p, token_command: [x]}}":                        "is only for OAUTHBEARER",
		"kafka: {sasl: {mechanism: AWS_MSK_IAM}}\ntls: {enabled: true}":                                      "set AWS_REGION",
		"kafka: {sasl: {mechanism: AWS_MSK_IAM}, brokers: ['b.kafka.eu-west-1.amazonaws.com:9098']}":         "set it to true",
		"kafka: {sasl: {mechanism: AWS_MSK_IAM, user: Geh3im}}\ntls: {enabled: true}":                        "uses credentials of AWS",
		"kafka: {sasl: {mechanism: AWS_MSK_IAM, token_command: ['']}}\ntls: {enabled: true}":                 "empty name",
		"kafka: {sasl: {mechanism: OAUTHBEARER, token_command: [x], token_url: 'https://h/', user: Geh3im}}": "kafka.sasl.token_command prints the token",
	} {
		if _, err := loadText(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := loadText("kafka: {sasl: {mechanism: OAUTHBEARER, token_command: [cat, /run/token]}}"); err != nil {
		t.Error(err)
	}
}
