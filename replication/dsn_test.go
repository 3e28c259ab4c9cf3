package replication

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// The error about a connection string never shows it. An error of a file is Credentials, because the file may be in
// rotation.
func TestURLErrors(t *testing.T) {
	dir := t.TempDir()
	a, err := testcert.New("a")
	must(t, err)
	certificate, key, err := a.Issue("one")
	must(t, err)
	_, other, err := a.Issue("two")
	must(t, err)
	file := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, text, 0o600))
		return path
	}
	const base = "host=h user=u password=s3cr3t sslmode=verify-full"
	cert := " sslcert=" + file("cert", certificate)
	for url, want := range map[string]struct {
		kind Kind
		says string
	}{
		base + " sslrootcert=/nope.pem":                               {Credentials, "open /nope.pem"},
		base + " sslrootcert=" + file("junk", []byte("s3cr3t")):       {Credentials, "unable to add CA"},
		base + cert + " sslkey=/nope.key":                             {Credentials, "open /nope.key"},
		base + cert + " sslkey=" + file("other", other):               {Credentials, "private key does not match"},
		base + cert + " sslkey=" + file("junk.key", []byte("s3cr3t")): {Credentials, "failed to decode sslkey"},
		base + cert:                             {Unsuitable, `both "sslcert" and "sslkey" are required`},
		"host=h password=s3cr3t sslmode=s3cr3t": {Unsuitable, "sslmode is invalid"},
		"postgres://u:s3cr3t%zz@h/d":            {Unsuitable, "not a connection string"},
		"postgres://u:pa/s3cr3t@h/d":            {Unsuitable, "not a connection string"},
		"postgres://u:s3cr3t@h:port/d":          {Unsuitable, "not a connection string"},
		"host=h port=s3cr3t":                    {Unsuitable, "not a connection string"},
		"host=h password='s3cr3t":               {Unsuitable, "not a connection string"},
	} {
		c := Config{URL: func() (string, error) { return url, nil }}
		_, err := c.parse(t.Context(), nil)
		if err == nil || KindOf(err) != want.kind || !strings.Contains(err.Error(), want.says) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v (%s)", url, err, KindOf(err))
		}
	}
	good := Config{URL: func() (string, error) { return base + cert + " sslkey=" + file("key", key), nil }}
	if _, err := good.parse(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
