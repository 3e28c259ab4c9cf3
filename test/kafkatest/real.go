package kafkatest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/maven"
)

// RealOptions are the options of StartReal. The zero value is valid.
type RealOptions struct {
	// Dir is the folder of the broker: data and log. Existing data is used. Empty creates a new folder, which Close
	// removes; a folder given here is kept.
	Dir string
	// Port to listen on; 0 finds a free one.
	Port int
	// Proxied are ports of proxies on 127.0.0.1 that lead to ProxiedBackend: the broker tells a client that connects
	// through one that proxy's port in all its answers, so the client never bypasses it. Brokers stay reachable
	// directly.
	Proxied []int
	// Settings are broker properties, over the ones of this package.
	Settings map[string]string
	// QuickStart makes Java compile quickly instead of well: the broker starts sooner with half the CPU, but is slower
	// under load. For tests, not for benchmarks.
	QuickStart bool
	// Guarded adds listeners for authenticated clients.
	Guarded *Guarded
	// MaxHeap is Java's -Xmx; empty means 512m.
	MaxHeap string

	member member // of StartReals' cluster; the zero value is a cluster of one
}

// Real is one process of Apache Kafka that is broker and controller (KRaft).
type Real struct {
	node
	java    string
	jars    string
	options RealOptions
	proxied []int  // backends of Options.Proxied
	archive string // Java's option for the archive of classes; empty: none

	tlsPort, saslPort int // of the guarded listeners
}

var _ Cluster = (*Real)(nil)

// StartReal starts a real Kafka, fetching it if needed, and returns when it answers.
func StartReal(ctx context.Context, o RealOptions) (*Real, error) {
	r := &Real{options: o}
	r.name = "Kafka " + RealVersion
	r.spec = r.command
	if err := r.build(ctx); err != nil {
		r.removeDir()
		return nil, fmt.Errorf("create a Kafka broker: %w", err)
	}
	if err := r.StartAgain(ctx); err != nil {
		r.removeDir()
		return nil, err
	}
	return r, nil
}

func (r *Real) build(ctx context.Context) (err error) {
	if r.java, err = maven.Java(); err != nil {
		return err
	}
	if r.jars, err = FetchReal(ctx); err != nil {
		return err
	}
	if err := r.place(r.options.Dir, "outboxcdc-kafka-", r.options.Port); err != nil {
		return err
	}
	if r.options.member.id == 0 {
		if r.options.member, err = singleMember(); err != nil {
			return err
		}
	}
	for range r.options.Proxied {
		port, err := child.FreePort()
		if err != nil {
			return err
		}
		r.proxied = append(r.proxied, port)
	}
	if err := r.guard(); err != nil {
		return err
	}
	if err := r.writeProperties(); err != nil {
		return err
	}
	return r.usePrepared(ctx)
}

func (r *Real) dataDir() string    { return filepath.Join(r.dir, "data") }
func (r *Real) properties() string { return filepath.Join(r.dir, "server.properties") }

// ProxiedBackend is the address to which the proxy of Options.Proxied[i] has to lead.
func (r *Real) ProxiedBackend(i int) string { return "127.0.0.1:" + strconv.Itoa(r.proxied[i]) }

// listeners returns the broker's listeners, their advertised addresses, and their protocols. A client hears the
// advertised address of the listener that it connected to.
func (r *Real) listeners() (listen, advertise, protocol string) {
	listen, advertise, protocol = "PLAINTEXT://"+r.address(), "PLAINTEXT://"+r.address(), "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
	for i, port := range r.options.Proxied {
		name := ",PROXIED" + strconv.Itoa(i)
		listen += name + "://" + r.ProxiedBackend(i)
		advertise += name + "://127.0.0.1:" + strconv.Itoa(port)
		protocol += name + ":PLAINTEXT"
	}
	if r.options.Guarded != nil {
		both := "," + listenerTLS + "://" + r.TLSBrokers()[0] + "," + listenerSASL + "://" + r.SASLBrokers()[0]
		listen, advertise = listen+both, advertise+both
		protocol += "," + listenerTLS + ":SSL," + listenerSASL + ":SASL_SSL"
	}
	return listen, advertise, protocol
}

func (r *Real) writeProperties() error {
	m := &r.options.member
	listen, advertise, protocol := r.listeners()
	all := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        strconv.Itoa(m.id),
		"controller.quorum.voters":       m.voters,
		"listeners":                      listen + ",CONTROLLER://" + m.controller,
		"advertised.listeners":           advertise,
		"controller.listener.names":      "CONTROLLER",
		"listener.security.protocol.map": protocol,
		"inter.broker.listener.name":     "PLAINTEXT",
		"log.dirs":                       r.dataDir(),
		// No topic is created by accident.
		"auto.create.topics.enable": "false",
		// One broker cannot replicate, and does not need fifty partitions of each internal topic.
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "1",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"share.coordinator.state.topic.num.partitions":     "1",
		// Consumer groups need not wait for more members.
		"group.initial.rebalance.delay.ms": "0",
		// A killed broker may register again when its former session has been silent for this long; 9 s is Kafka's
		// default.
		"broker.session.timeout.ms":    "3000",
		"broker.heartbeat.interval.ms": "500",
		// The log cleaner allocates 128 MB at once otherwise.
		"log.cleaner.dedupe.buffer.size": "8388608",
	}
	maps.Copy(all, r.guardedSettings())
	maps.Copy(all, r.options.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		// Java reads \ as an escape.
		fmt.Fprintf(&b, "%s=%s\n", name, strings.ReplaceAll(all[name], `\`, `\\`))
	}
	if err := os.WriteFile(r.properties(), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write the broker's properties: %w", err)
	}
	return nil
}

// command returns how to start the broker, each time.
func (r *Real) command() child.Spec {
	heap := r.options.MaxHeap
	if heap == "" {
		heap = "512m"
	}
	args := []string{
		"-Xmx" + heap,
		"-XX:+UseSerialGC",          // the cheapest for a small heap
		"-XX:-UsePerfData",          // no files in /tmp
		"-Djava.io.tmpdir=" + r.dir, // or it unpacks native libraries there
		"-Djava.awt.headless=true",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
	}
	if r.options.QuickStart {
		args = append(args, "-XX:TieredStopAtLevel=1")
	}
	if g := r.options.Guarded; g != nil && g.JWKS != "" {
		args = append(args, "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="+g.JWKS, "-Dorg.slf4j.simpleLogger.log.kafka.network.Processor=debug")
	}
	if r.archive != "" {
		args = append(args, r.archive)
	}
	args = append(args, "-cp", filepath.Join(r.jars, "*"), "kafka.Kafka", r.properties())
	return child.Spec{Path: r.java, Args: args, Env: os.Environ()}
}
