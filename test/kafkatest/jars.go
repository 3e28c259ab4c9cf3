package kafkatest

import (
	"context"
	_ "embed" // pom.xml

	"github.com/outboxcdc/outboxcdc/test/maven"
)

// RealVersion is the version of Apache Kafka that StartReal runs. pom.xml names
// it too.
const RealVersion = "4.3.1"

// pom lists the jars of a Kafka broker.
//
//go:embed pom.xml
var pom []byte

var jars = maven.Jars{Name: "Kafka " + RealVersion, POM: pom, Want: "kafka_2.13-" + RealVersion + ".jar"}

// RealAvailable returns nil when a real Kafka can be started here; otherwise the error says what is missing and what to
// do.
func RealAvailable() error { return jars.Available() }

// FetchReal returns the folder with the jars of a real Kafka, and fetches them into the cache (45 MB) if needed.
// Several processes may do so at once.
func FetchReal(ctx context.Context) (dir string, err error) { return jars.Fetch(ctx) }
