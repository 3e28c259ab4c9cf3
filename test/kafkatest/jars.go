package kafkatest

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // pom.xml
	"os"

	"github.com/outboxcdc/outboxcdc/test/maven"
)

// VersionEnv chooses the version of Apache Kafka that StartReal runs.
const VersionEnv = "OUTBOXCDC_TEST_KAFKA_VERSION"

// pinned is the version that pom.xml names.
const pinned = "4.3.1"

// RealVersion is the version of Apache Kafka that StartReal runs.
var RealVersion = cmp.Or(os.Getenv(VersionEnv), pinned)

// pom lists the jars of a Kafka broker.
//
//go:embed pom.xml
var pom []byte

var jars = maven.Jars{Name: "Kafka " + RealVersion, POM: bytes.ReplaceAll(pom, []byte(pinned), []byte(RealVersion)), Want: "kafka_2.13-" + RealVersion + ".jar"}

// RealAvailable returns nil when a real Kafka can be started here; otherwise the error says what is missing and what to
// do.
func RealAvailable() error { return jars.Available() }

// FetchReal returns the folder with the jars of a real Kafka, and fetches them into the cache (45 MB) if needed.
// Several processes may do so at once.
func FetchReal(ctx context.Context) (dir string, err error) { return jars.Fetch(ctx) }
