// Package debezium runs a real Debezium: Kafka Connect, standalone, with the connector for PostgreSQL, from the jars of
// Maven Central. It is what outboxcdc is compared with, and what it takes over from; nothing of the product uses it.
package debezium

import (
	"context"
	_ "embed" // pom.xml
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/child"
	"github.com/outboxcdc/outboxcdc/internal/maven"
)

// Version is that of the connector. pom.xml names it too.
const Version = "3.6.1.Final"

//go:embed pom.xml
var pom []byte

var jars = maven.Jars{Name: "Debezium " + Version, POM: pom, Want: "debezium-connector-postgres-" + Version + ".jar"}

// Available is nil when it can be started here; otherwise it says what is missing and what to do.
func Available() error { return jars.Available() }

// Options say what is wanted.
type Options struct {
	// Dir is where its files lie: properties, offsets, log. Offsets that are there are gone on from. It must exist.
	Dir string
	// Brokers of the Kafka that it writes to.
	Brokers []string
	// Worker and Connector are properties over those of this package. The connector's have to name its class's
	// necessities: database, table, slot, topics.
	Worker, Connector map[string]string
	// Heap is Java's -Xmx; empty means 512m. GC is an option such as -XX:+UseParallelGC.
	Heap, GC string
}

// Connect is one process.
type Connect struct {
	Proc *child.Process
	Log  string

	url string
}

const connectorName = "debezium"

// Start starts it and returns at once; Running tells when it works.
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
	url := "127.0.0.1:" + strconv.Itoa(port)
	worker := map[string]string{
		"bootstrap.servers":            strings.Join(o.Brokers, ","),
		"key.converter":                "org.apache.kafka.connect.storage.StringConverter",
		"value.converter":              "org.apache.kafka.connect.storage.StringConverter",
		"offset.storage.file.filename": filepath.Join(o.Dir, "offsets"),
		"listeners":                    "http://" + url,
		"plugin.discovery":             "service_load",
	}
	maps.Copy(worker, o.Worker)
	connector := map[string]string{
		"name":            connectorName,
		"connector.class": "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":       "1",
		"plugin.name":     "pgoutput",
	}
	maps.Copy(connector, o.Connector)
	files := []string{filepath.Join(o.Dir, "worker.properties"), filepath.Join(o.Dir, "connector.properties")}
	for i, all := range []map[string]string{worker, connector} {
		if err := os.WriteFile(files[i], []byte(properties(all)), 0o600); err != nil {
			return nil, err
		}
	}
	heap, gc := o.Heap, o.GC
	if heap == "" {
		heap = "512m"
	}
	if gc == "" {
		gc = "-XX:+UseSerialGC"
	}
	c := &Connect{Log: filepath.Join(o.Dir, "connect.log"), url: "http://" + url}
	c.Proc, err = child.Start(child.Spec{
		Path: java, Dir: o.Dir, Env: os.Environ(), LogFile: c.Log, DeathSignal: syscall.SIGKILL,
		Args: append([]string{
			"-Xmx" + heap, gc, "-XX:-UsePerfData", "-Djava.io.tmpdir=" + o.Dir, "-Dorg.slf4j.simpleLogger.showDateTime=true",
			"-cp", filepath.Join(libs, "*"), "org.apache.kafka.connect.cli.ConnectStandalone",
		}, files...),
	})
	return c, err
}

// properties in Java's form.
func properties(all map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(all[name], `\`, `\\`))
	}
	return b.String()
}

// Running is nil when connector and task run.
func (c *Connect) Running(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/connectors/"+connectorName+"/status", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var status struct {
		Connector struct{ State, Trace string }
		Tasks     []struct{ State, Trace string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return fmt.Errorf("read the status: %w", err)
	}
	switch {
	case status.Connector.State != "RUNNING":
		return fmt.Errorf("the connector is %s %s", status.Connector.State, status.Connector.Trace)
	case len(status.Tasks) == 0:
		return errors.New("there is no task yet")
	case status.Tasks[0].State != "RUNNING":
		return fmt.Errorf("the task is %s: %s", status.Tasks[0].State, status.Tasks[0].Trace)
	}
	return nil
}

// Stop asks it to end (SIGTERM) and waits for it.
func (c *Connect) Stop(ctx context.Context) error {
	if err := c.Proc.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return c.Proc.Wait(ctx)
}
