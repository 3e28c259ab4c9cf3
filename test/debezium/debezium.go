// Package debezium runs a real Debezium: Kafka Connect, standalone, with the connector for PostgreSQL, from the jars of
// Maven Central. Tests compare outboxcdc with it and migrate from it; the product does not use this package.
package debezium

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // pom.xml
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/maven"
)

// VersionEnv chooses another version of Debezium than pom.xml names; [kafkatest.VersionEnv] does so for Kafka Connect.
const VersionEnv = "OUTBOXCDC_TEST_DEBEZIUM_VERSION"

// The versions that pom.xml names.
const (
	pinned        = "3.6.1.Final"
	pinnedConnect = "4.3.1"
)

// Version is that of the connector, ConnectVersion that of Kafka Connect.
var (
	Version        = cmp.Or(os.Getenv(VersionEnv), pinned)
	ConnectVersion = cmp.Or(os.Getenv(kafkatest.VersionEnv), pinnedConnect)
)

//go:embed pom.xml
var pom []byte

// of returns pom.xml with the versions that are run.
func of(pom []byte) []byte {
	pom = bytes.ReplaceAll(pom, []byte(pinned), []byte(Version))
	return bytes.ReplaceAll(pom, []byte(pinnedConnect), []byte(ConnectVersion))
}

var jars = maven.Jars{Name: "Debezium " + Version, POM: of(pom), Want: "debezium-connector-postgres-" + Version + ".jar"}

// Converters by their classes.
const (
	StringConverter    = "org.apache.kafka.connect.storage.StringConverter"
	JSONConverter      = "org.apache.kafka.connect.json.JsonConverter"
	ByteArrayConverter = "org.apache.kafka.connect.converters.ByteArrayConverter"
	BinaryConverter    = "io.debezium.converters.BinaryDataConverter"
)

// Available returns nil when Debezium can run here; otherwise the error says what is missing and what to do.
func Available() error { return jars.Available() }

// Options say how to run Kafka Connect.
type Options struct {
	// Dir is the folder of its files: properties, offsets, log. Stored offsets are used. It must exist.
	Dir string
	// Brokers are those of the Kafka that it writes to.
	Brokers []string
	// Worker and Connector are properties that override those of this package. Connector must include what Postgres
	// returns; if empty, there is no connector until Create creates one.
	Worker, Connector map[string]string
	// Heap is Java's -Xmx; empty means 512m. GC is an option such as -XX:+UseParallelGC.
	Heap, GC string
	// QuickStart makes Java compile quickly instead of well. For tests, not for benchmarks.
	QuickStart bool
}

// Connect is a Kafka Connect process.
type Connect struct {
	Proc *child.Process
	Log  string

	url string
}

// Name is that of the connector that Start starts.
const Name = "debezium"

// Start starts Connect and returns at once; Await waits until the connector works.
func Start(ctx context.Context, o Options) (*Connect, error) {
	java, err := maven.Java()
	if err != nil {
		return nil, err
	}
	libs, err := jars.Fetch(ctx)
	if err != nil {
		return nil, err
	}
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	c := &Connect{Log: filepath.Join(o.Dir, "connect.log"), url: "http://127.0.0.1:" + strconv.Itoa(port)}
	files, err := o.write(c.url)
	if err != nil {
		return nil, err
	}
	c.Proc, err = child.Start(child.Spec{
		Path: java, Dir: o.Dir, Env: os.Environ(), LogFile: c.Log, DeathSignal: syscall.SIGKILL,
		Args: slices.Concat(o.java(), []string{"-cp", filepath.Join(libs, "*"), "org.apache.kafka.connect.cli.ConnectStandalone"}, files),
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// write writes the files of properties and returns their names, the worker's first.
func (o *Options) write(listen string) (files []string, err error) {
	worker := map[string]string{
		"bootstrap.servers":            strings.Join(o.Brokers, ","),
		"key.converter":                StringConverter,
		"value.converter":              StringConverter,
		"offset.storage.file.filename": filepath.Join(o.Dir, "offsets"),
		"listeners":                    listen,
		"plugin.discovery":             "service_load",
	}
	maps.Copy(worker, o.Worker)
	all := []map[string]string{worker}
	if o.Connector != nil {
		all = append(all, Connector(o.Connector))
	}
	for i, name := range []string{"worker.properties", "connector.properties"}[:len(all)] {
		file := filepath.Join(o.Dir, name)
		if err := os.WriteFile(file, []byte(properties(all[i])), 0o600); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func (o *Options) java() []string {
	heap, gc := o.Heap, o.GC
	if heap == "" {
		heap = "512m"
	}
	if gc == "" {
		gc = "-XX:+UseSerialGC"
	}
	args := []string{"-Xmx" + heap, gc, "-XX:-UsePerfData", "-Djava.io.tmpdir=" + o.Dir, "-Dorg.slf4j.simpleLogger.showDateTime=true"}
	if o.QuickStart {
		args = append(args, "-XX:TieredStopAtLevel=1")
	}
	return args
}

// Connector returns a complete connector configuration: the defaults of this package, overridden by over.
func Connector(over map[string]string) map[string]string {
	all := map[string]string{
		"name":            Name,
		"connector.class": "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":       "1",
		"plugin.name":     "pgoutput",
	}
	maps.Copy(all, over)
	return all
}

// Postgres returns a connector's properties for the database of a connection URL.
func Postgres(dsn string) (map[string]string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("read the URL of the database: %w", err)
	}
	password, _ := u.User.Password()
	return map[string]string{
		"database.hostname": u.Hostname(), "database.port": u.Port(), "database.user": u.User.Username(), "database.password": password,
		"database.dbname": strings.TrimPrefix(u.Path, "/"), "database.sslmode": "disable",
	}, nil
}

// properties returns properties in Java's format.
func properties(all map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(all[name], `\`, `\\`))
	}
	return b.String()
}
