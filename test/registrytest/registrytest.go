// Package registrytest provides a real schema registry to tests, Apicurio Registry, which speaks the protocol of
// Confluent's; and a reader in Java, with Apicurio's deserializers.
package registrytest

import (
	"bytes"
	"context"
	_ "embed" // pom.xml
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/maven"
)

// patience bounds a step, with the fetch of its jars. Nothing is measured by it.
const patience = 15 * time.Minute

// program is that of the newest server for Java 17 that Maven Central has.
const program = "apicurio-registry-app-3.0.9-runner.jar"

//go:embed pom.xml
var pom []byte

var (
	server = maven.Jars{Name: "Apicurio Registry 3.0.9", Archive: "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all", Want: program}
	reader = maven.Jars{Name: "Apicurio deserializers 3.1.7", POM: pom, Want: "apicurio-registry-avro-serde-kafka-3.1.7.jar"}
)

// Server is a registry of a test's own on 127.0.0.1, with its schemas in memory.
type Server struct {
	base string
	t    testing.TB
	proc *child.Process
}

// Start runs a server until the end of the test. Without what it and [Server.Read] need, the test is skipped; with
// CI=true it fails.
func Start(t testing.TB) *Server {
	t.Helper()
	maven.Need(t, &server, &reader)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := start(ctx, t)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(ctx context.Context, t testing.TB) (*Server, error) {
	port, err := child.FreePort()
	if err != nil {
		return nil, err
	}
	s := &Server{base: fmt.Sprintf("http://127.0.0.1:%d/apis", port), t: t}
	java := maven.Server{Jars: &server, Dir: t.TempDir(), Ready: func(ctx context.Context) error { return answers(ctx, s.URL()+"/subjects") }}
	java.Args = func(libs string) []string {
		return []string{"-Dquarkus.http.host=127.0.0.1", fmt.Sprintf("-Dquarkus.http.port=%d", port), "-jar", filepath.Join(libs, program)}
	}
	if s.proc, err = java.Start(ctx); err != nil {
		return nil, err
	}
	t.Cleanup(s.Kill)
	return s, nil
}

func answers(ctx context.Context, url string) error {
	code, _, err := daemon.Get(ctx, url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s answers %d", url, code)
	}
	return err
}

// URL is where the registry speaks the protocol of Confluent's.
func (s *Server) URL() string { return s.base + "/ccompat/v7" }

// Kill ends the server with SIGKILL. Its schemas are gone.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.proc.Kill(); err != nil {
		s.t.Error(err)
	}
}

// Read returns the first value of a topic, as text, as Kafka's console consumer prints it with a deserializer. settings
// are those of the deserializer, besides the registry's address: "name=value".
func (s *Server) Read(brokers []string, topic, deserializer string, settings ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	libs, err := reader.Fetch(ctx)
	if err != nil {
		return "", err
	}
	java, err := maven.Java()
	if err != nil {
		return "", err
	}
	args := []string{
		"-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", filepath.Join(libs, "*"), "org.apache.kafka.tools.consumer.ConsoleConsumer",
		"--bootstrap-server", strings.Join(brokers, ","), "--topic", topic, "--from-beginning", "--max-messages", "1",
		"--formatter-property", "value.deserializer=" + deserializer,
	}
	for _, setting := range append(settings, "apicurio.registry.url="+s.base+"/registry/v3") {
		args = append(args, "--formatter-property", "value.deserializer."+setting)
	}
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, java, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	text := strings.TrimSpace(out.String())
	if err != nil || text == "" {
		return "", fmt.Errorf("read %s with %s: %q, %w; standard error:\n%s", topic, deserializer, text, err, problems.String())
	}
	return text, nil
}
