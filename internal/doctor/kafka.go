package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
)

// brokers makes the checks of the Kafka cluster and of the known topics. It asks nothing of Postgres.
type brokers struct {
	*Config
	*findings
	named  map[string]string // topic → the settings or the table that lead to it
	topics []string          // the same, sorted
	setups []Remedy          // commands of findings about Postgres that create topics as well
}

func (k *brokers) check(ctx context.Context) {
	if !k.checkCommand(ctx, kafkaToken, "kafka.sasl.token_command", k.TokenCommand, k.Now()) {
		k.because[groupKafka], k.because[groupTopics] = "there is no token", "there is no token"
		return
	}
	for _, name := range k.Topics {
		if _, ok := k.named[name]; !ok {
			k.named[name] = "the settings"
		}
	}
	k.topics = slices.Sorted(maps.Keys(k.named))
	asked := k.topics
	for _, name := range []string{k.Letters, k.Positions} {
		if name != "" && !slices.Contains(asked, name) {
			asked = append(slices.Clone(asked), name)
		}
	}
	x := k.Kafka.Examine(ctx, asked)
	if x.Secret != nil {
		k.because[groupKafka], k.because[groupTopics] = "certificates or secrets cannot be read", "certificates or secrets cannot be read"
		k.fail(kafkaAuth, Wrong, []Remedy{advicef("see docs/security.md: tls.*_file, kafka.sasl.password_file")}, "%s", cause(x.Secret))
		return
	}
	k.checkReached(x)
	if x.Metadata != nil {
		k.because[groupKafka], k.because[groupTopics] = "no broker answered", "no broker answered"
		return
	}
	k.checkAdvertised(x)
	k.checkProducer(x)
	k.checkCopies(x)
	k.checkTopics(ctx, x)
	k.checkPositions(ctx, x)
}

func (k *brokers) checkReached(x *kafka.Examination) {
	var unreachable, failed []string
	answered := 0
	for i := range x.Seeds {
		switch r := &x.Seeds[i]; {
		case r.Dial != nil:
			unreachable = append(unreachable, r.Addr+": "+cause(r.Dial))
		case r.Err != nil:
			failed = append(failed, cause(r.Err))
		default:
			answered++
		}
	}
	remedy := []Remedy{advicef("check that the broker is running, that kafka.brokers has the address of a listener for this machine, and that no firewall blocks the connection")}
	switch {
	case len(unreachable) == 0:
		k.ok(kafkaReached, "%s", strings.Join(k.Brokers, ", "))
	case len(unreachable) < len(x.Seeds):
		k.warn(kafkaReached, remedy, "no connection to %s; the other addresses suffice while they are available", strings.Join(unreachable, "; "))
	default:
		k.fail(kafkaReached, Unavailable, remedy, "no connection to %s", strings.Join(unreachable, "; "))
		k.skip(kafkaAuth, "no broker accepts a connection")
		return
	}
	if len(failed) == 0 {
		k.ok(kafkaAuth, "%s", k.authentication())
		return
	}
	remedy = k.authRemedy(x)
	if answered > 0 {
		k.warn(kafkaAuth, remedy, "%s", strings.Join(failed, "; "))
		return
	}
	k.fail(kafkaAuth, Unavailable, remedy, "%s", strings.Join(failed, "; "))
}

// authentication describes the connections that succeeded.
func (k *brokers) authentication() string {
	if k.Client == "" {
		return "plain text, without authentication"
	}
	return "accepted"
}

// authRemedy is the remedy for the first address whose error has one of its own.
func (k *brokers) authRemedy(x *kafka.Examination) []Remedy {
	for i := range x.Seeds {
		seed := &x.Seeds[i]
		if seed.TLSMismatch && x.TLS {
			return []Remedy{advicef("the listener at %s does not use TLS: set kafka.brokers to a listener that does, or tls.enabled to false", seed.Addr)}
		}
		if seed.TLSMismatch {
			return []Remedy{advicef("the listener at %s uses TLS: set tls.enabled to true, and tls.ca_file unless a public authority issued its certificate (docs/security.md)", seed.Addr)}
		}
		var r interface{ Reason() string }
		if !errors.As(seed.Err, &r) {
			continue
		}
		switch r.Reason() {
		case "TLS":
			return []Remedy{advicef("tls: ca_file has the authority of the brokers' certificates; cert_file and key_file are for brokers that ask for a certificate (docs/security.md)")}
		case "SASL_AUTHENTICATION_FAILED", "SECRET":
			return []Remedy{advicef("kafka.sasl: mechanism, user and password as the broker has them (docs/security.md)")}
		case "UNSUPPORTED_SASL_MECHANISM":
			return []Remedy{advicef("set kafka.sasl.mechanism to one that the broker enables (sasl.enabled.mechanisms in its settings)")}
		case "ILLEGAL_SASL_STATE":
			return []Remedy{advicef("the listener at %s does not use SASL: set kafka.brokers to a listener that does, or remove kafka.sasl.mechanism", seed.Addr)}
		}
	}
	if x.SASL {
		return []Remedy{advicef("the broker accepts connections and does not answer: check that it is a Kafka broker, and read its log")}
	}
	return []Remedy{advicef("the broker accepts connections and does not answer: it may require SASL (kafka.sasl.mechanism), or be no Kafka broker; read its log")}
}

func (k *brokers) checkAdvertised(x *kafka.Examination) {
	var unusable, all []string
	for i := range x.Brokers {
		r := &x.Brokers[i]
		all = append(all, fmt.Sprintf("%d at %s", r.ID, r.Addr))
		if err := errors.Join(r.Dial, r.Err); err != nil {
			unusable = append(unusable, fmt.Sprintf("%d at %s: %s", r.ID, r.Addr, cause(err)))
		}
	}
	if len(unusable) > 0 {
		k.fail(kafkaAdvertised, Unavailable, []Remedy{
			advicef("in the broker's server.properties: advertised.listeners=<name that this machine resolves>:<port it reaches>; kafka.brokers is only used for the first connection"),
		}, "%d of %s cannot be reached at the address that they advertise, so partitions that they lead get no records: %s", len(unusable), human.Count(len(x.Brokers), "broker", "brokers"), strings.Join(unusable, "; "))
		return
	}
	k.ok(kafkaAdvertised, "all answer: %s", listSome(all, "broker"))
}

func (k *brokers) checkProducer(x *kafka.Examination) {
	if x.Producer == nil {
		k.ok(kafkaProducer, "the broker gave the daemon a producer id")
		return
	}
	var r interface{ PermissionDenied() bool }
	if errors.As(x.Producer, &r) && r.PermissionDenied() {
		remedy := []Remedy{k.acls("--operation IdempotentWrite --cluster")}
		if len(k.topics) > 0 { // permission to write to one topic suffices
			remedy = []Remedy{k.allowWrite(k.topics[0])}
		}
		k.fail(kafkaProducer, Denied, remedy, "the user may not produce: %s", cause(x.Producer))
		return
	}
	k.fail(kafkaProducer, Unavailable, []Remedy{advicef("see the log of the brokers: nothing can be delivered")}, "the broker gave no producer id: %s", cause(x.Producer))
}

// acls is a command of Kafka's own tool that gives the daemon's user permissions.
func (k *brokers) acls(options string) Remedy {
	user := k.User
	if user == "" {
		user = "<user of the daemon>"
	}
	return shellf("kafka-acls.sh --bootstrap-server %s%s --add --allow-principal User:%s %s", strings.Join(k.Brokers, ","), k.Client, user, options)
}

func (k *brokers) allowWrite(topic string) Remedy {
	return k.acls("--operation Write --operation Describe --operation DescribeConfigs --topic " + topic)
}

func (k *brokers) checkCopies(x *kafka.Examination) {
	if n := len(x.Brokers); n < 3 {
		k.warn(kafkaCopies, []Remedy{advicef("for events that must not be lost: three brokers, topics with 3 replicas and min.insync.replicas=2")},
			"%s: an acknowledged event is lost with %s", human.Count(n, "broker", "brokers"), map[bool]string{true: "its disk", false: "both disks, or delivery pauses while one broker is down"}[n == 1])
		return
	}
	k.ok(kafkaCopies, "%d brokers", len(x.Brokers))
}
