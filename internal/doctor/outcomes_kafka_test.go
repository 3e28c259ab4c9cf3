package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/internal/brokerauth"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

func newKafka(t *testing.T, brokers int, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(brokers)}, opts...)...)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// newKafkaWithTLS is a cluster with a certificate of an unknown authority.
func newKafkaWithTLS(t *testing.T) *kfake.Cluster {
	t.Helper()
	authority, err := testcert.New("foreign")
	must(t, err)
	certificate, key, err := authority.Issue("localhost")
	must(t, err)
	pair, err := tls.X509KeyPair(certificate, key)
	must(t, err)
	return newKafka(t, 3, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
}

func createTopic(t *testing.T, c *kfake.Cluster, name string, partitions int32, replicas int16, settings map[string]string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	must(t, err)
	defer client.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, replicas
	for k, v := range settings {
		s := kmsg.NewCreateTopicsRequestTopicConfig()
		s.Name, s.Value = k, kmsg.StringPtr(v)
		topic.Configs = append(topic.Configs, s)
	}
	req.Topics = append(req.Topics, topic)
	res, err := client.Request(t.Context(), req)
	must(t, err)
	must(t, kerr.ErrorForCode(res.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode))
}

// commandOutcomes are those of a command that prints a secret.
func commandOutcomes(t *testing.T, at func(*testing.T) *place, check string, of func(*place) *func(context.Context) (string, error)) {
	for want, secret := range map[string]string{"valid for 999h": "3599000", "a connection may fail": "1", "does not say": ""} {
		p := at(t)
		*of(p) = func(context.Context) (string, error) {
			return "host?X-Amz-Date=" + p.cfg.Now().UTC().Format("20060102T150405Z") + "&X-Amz-Expires=" + secret, nil
		}
		if secret == "1" {
			p.wants(outcome{check, "WARN", want})
			continue
		}
		for _, f := range p.examine().Findings {
			if f.Check == check && (f.Level != OK || !strings.Contains(f.Text, want)) {
				t.Errorf("%s %s, not %q", f.Level, f.Text, want)
			}
		}
	}
	p := at(t)
	*of(p) = func(context.Context) (string, error) { return "", errors.New("exit status 1: no credentials") }
	p.wants(outcome{check, "FAIL 69", "no credentials"})
}

func kafkaOutcomes(t *testing.T, w *world) {
	good := w.newPlace(t, w.pg).make()
	at := func(t *testing.T, c *kfake.Cluster) *place {
		q := good.in(t)
		if c != nil {
			q.kcfg.Brokers = c.ListenAddrs()
		}
		return q
	}
	t.Run("token command", func(t *testing.T) {
		commandOutcomes(t, func(t *testing.T) *place { return at(t, nil) }, kafkaToken, func(p *place) *func(context.Context) (string, error) { return &p.cfg.TokenCommand })
	})
	t.Run("password command", func(t *testing.T) {
		commandOutcomes(t, func(t *testing.T) *place { return at(t, nil) }, pgCommand, func(p *place) *func(context.Context) (string, error) { return &p.cfg.PasswordCommand })
	})
	t.Run("no broker", func(t *testing.T) {
		p := at(t, nil)
		p.kcfg.Brokers = []string{closedPort}
		p.wants(outcome{kafkaReached, "FAIL 69", "refused"})
	})
	t.Run("one of two there", func(t *testing.T) {
		p := at(t, nil)
		p.kcfg.Brokers = []string{closedPort, w.kafka.ListenAddrs()[0]}
		p.wants(outcome{kafkaReached, "WARN", "refused"})
	})
	t.Run("a foreign certificate", func(t *testing.T) {
		p := at(t, newKafkaWithTLS(t))
		p.kcfg.Security = func() (brokerauth.Config, error) { return brokerauth.Config{TLS: &tls.Config{}}, nil }
		p.wants(outcome{kafkaAuth, "FAIL 69", "certificate"})
	})
	t.Run("TLS to a listener without it", func(t *testing.T) {
		p := at(t, w.kafka)
		p.kcfg.Security = func() (brokerauth.Config, error) { return brokerauth.Config{TLS: &tls.Config{}}, nil }
		p.wants(outcome{kafkaAuth, "FAIL 69", ""})
		p.advises(kafkaAuth, "does not use TLS")
	})
	t.Run("no TLS to a listener that uses it", func(t *testing.T) {
		p := at(t, newKafkaWithTLS(t))
		p.wants(outcome{kafkaAuth, "FAIL 69", ""})
		p.advises(kafkaAuth, "uses TLS")
	})
	t.Run("a SASL mechanism that the broker does not enable", func(t *testing.T) {
		c := newKafka(t, 3)
		c.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			res := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
			res.ErrorCode, res.SupportedMechanisms = kerr.UnsupportedSaslMechanism.Code, []string{"SCRAM-SHA-512"}
			return res, nil, true
		})
		p := at(t, c)
		p.kcfg.Security = func() (brokerauth.Config, error) {
			return brokerauth.Config{SASL: &brokerauth.SASL{Mechanism: "PLAIN", User: "u", Password: "p"}}, nil
		}
		p.wants(outcome{kafkaAuth, "FAIL 69", ""})
		p.advises(kafkaAuth, "set kafka.sasl.mechanism to one that the broker enables")
	})
	t.Run("who hangs up", func(t *testing.T) {
		p := at(t, nil)
		p.kcfg.Brokers = []string{openPort(t, func(c net.Conn) { _ = c.Close() }), w.kafka.ListenAddrs()[0]}
		p.wants(outcome{kafkaAuth, "WARN", "speak to"})
	})
	t.Run("no password", func(t *testing.T) {
		p := at(t, nil)
		p.kcfg.Security = func() (brokerauth.Config, error) { return brokerauth.Config{}, errors.New("no such file") }
		p.wants(outcome{kafkaAuth, "FAIL 78", "no such file"})
	})
	t.Run("advertised", func(t *testing.T) {
		c := newKafka(t, 3)
		answers(c, func(res *kmsg.MetadataResponse) { res.Brokers[2].Host, res.Brokers[2].Port = split(t, closedPort) })
		at(t, c).wants(outcome{kafkaAdvertised, "FAIL 69", "2 at " + closedPort})
	})
	for outcomes, code := range map[string]*kerr.Error{"FAIL 77": kerr.ClusterAuthorizationFailed, "FAIL 69": kerr.UnknownServerError} {
		t.Run("producer id "+outcomes, func(t *testing.T) {
			c := newKafka(t, 3)
			createTopic(t, c, "outbox.event.order", 6, 3, map[string]string{"min.insync.replicas": "2"})
			c.ControlKey(int16(kmsg.InitProducerID), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				res := r.ResponseKind().(*kmsg.InitProducerIDResponse)
				res.ErrorCode = code.Code
				return res, nil, true
			})
			at(t, c).wants(outcome{kafkaProducer, outcomes, ""})
		})
	}
	t.Run("one broker", func(t *testing.T) {
		c := newKafka(t, 1)
		createTopic(t, c, "outbox.event.order", 6, 1, nil)
		at(t, c).wants(outcome{kafkaCopies, "WARN", "1 broker"})
	})
}

func split(t *testing.T, addr string) (string, int32) {
	host, text, err := net.SplitHostPort(addr)
	must(t, err)
	port, err := strconv.Atoi(text)
	must(t, err)
	return host, int32(port)
}

// answers makes the cluster return metadata of a topic with six partitions and three replicas, as altered by change.
func answers(c *kfake.Cluster, change func(*kmsg.MetadataResponse)) {
	addrs := c.ListenAddrs()
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.MetadataRequest)
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		for i, a := range addrs {
			b := kmsg.NewMetadataResponseBroker()
			host, text, _ := net.SplitHostPort(a)
			port, _ := strconv.Atoi(text)
			b.NodeID, b.Host, b.Port = int32(i), host, int32(port)
			res.Brokers = append(res.Brokers, b)
		}
		for _, asked := range req.Topics {
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic, topic.AuthorizedOperations = asked.Topic, -1<<31
			for id := range int32(6) {
				part := kmsg.NewMetadataResponseTopicPartition()
				part.Partition, part.Leader, part.Replicas, part.ISR = id, 0, []int32{0, 1, 2}, []int32{0, 1, 2}
				topic.Partitions = append(topic.Partitions, part)
			}
			res.Topics = append(res.Topics, topic)
		}
		change(res)
		return res, nil, true
	})
}

func topicOutcomes(t *testing.T, w *world) {
	good := w.newPlace(t, w.pg).make()
	// with is a place with its own topic.
	with := func(t *testing.T, partitions int32, replicas int16, settings map[string]string) *place {
		q := good.in(t)
		w.n++
		q.topic = "t" + strconv.Itoa(w.n)
		q.cfg.Topics = []string{q.topic}
		if partitions > 0 {
			createTopic(t, w.kafka, q.topic, partitions, replicas, settings)
		}
		return q
	}
	two := map[string]string{"min.insync.replicas": "2"}
	and := func(name, value string) map[string]string {
		return map[string]string{"min.insync.replicas": "2", name: value}
	}
	t.Run("missing", func(t *testing.T) {
		p := with(t, 0, 0, nil)
		// The brokers create topics automatically, and the requests of doctor must not cause that.
		p.kcfg.Brokers = newKafka(t, 3, kfake.AllowAutoTopicCreation()).ListenAddrs()
		for range 2 {
			p.wants(outcome{topicExists, "FAIL 69", "there is no topic"})
		}
	})
	t.Run("missing, and its name collides", func(t *testing.T) {
		p := with(t, 0, 0, nil)
		createTopic(t, w.kafka, p.topic+"_a.b", 1, 1, nil)
		createTopic(t, w.kafka, p.topic+".a.c", 1, 1, nil)
		p.topic += ".a_b"
		p.cfg.Topics = []string{p.topic}
		for _, create := range []*kafka.Create{nil, {Partitions: 3, ReplicationFactor: 1}} {
			p.kcfg.Create = create
			p.wants(outcome{topicExists, "FAIL 69", "there is no topic"})
			if text := p.examine().String(); !strings.Contains(text, "its name collides with that of topic "+strings.Replace(p.topic, ".a_b", "_a.b", 1)) || strings.Contains(text, "--create --topic") {
				t.Errorf("the report:\n%s", text)
			}
		}
	})
	t.Run("missing, and the daemon creates it", func(t *testing.T) {
		p := with(t, 0, 0, nil)
		p.kcfg.Create = &kafka.Create{Partitions: 3, ReplicationFactor: 1}
		for range 2 { // it is only asked whether it could be created
			p.wants()
			if text := p.examine().String(); !strings.Contains(text, "does not exist: the daemon creates it with 3 partitions, replication factor 1") {
				t.Errorf("the report:\n%s", text)
			}
		}
		p.kcfg.Create.ReplicationFactor = 4 // of three brokers
		p.wants(outcome{topicExists, "FAIL 69", "Kafka refuses to let the daemon create it"})
		p.advises(topicExists, "--topic "+p.topic+" --partitions 3 ")
	})
	t.Run("no route", func(t *testing.T) {
		p := good.in(t)
		p.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a b', '1', 'made'), ('c d', '1', 'made')")
		defer p.exec("DELETE FROM outbox WHERE aggregate_type <> 'order'")
		p.wants(outcome{topicsKnown, "WARN", "2 of the newest 3 rows"})
	})
	t.Run("one replica", func(t *testing.T) { with(t, 6, 1, nil).wants(outcome{topicReplicas, "WARN", "1, so"}) })
	t.Run("min.insync 4 of 3", func(t *testing.T) {
		with(t, 6, 3, map[string]string{"min.insync.replicas": "4"}).wants(outcome{topicInSync, "FAIL 69", "no broker can ever"})
	})
	t.Run("min.insync 3 of 3", func(t *testing.T) {
		with(t, 6, 3, map[string]string{"min.insync.replicas": "3"}).wants(outcome{topicInSync, "WARN", "as soon as one"})
	})
	t.Run("min.insync 1 of 3", func(t *testing.T) { with(t, 6, 3, nil).wants(outcome{topicInSync, "WARN", "one copy"}) })
	t.Run("compacted", func(t *testing.T) {
		with(t, 6, 3, and("cleanup.policy", "compact")).wants(outcome{topicCleanup, "WARN", "compact"})
	})
	t.Run("small", func(t *testing.T) {
		with(t, 6, 3, and("max.message.bytes", "1000")).wants(outcome{topicSize, "WARN", "1000"})
	})
	for name, value := range map[string]string{"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"} {
		t.Run(name, func(t *testing.T) { with(t, 6, 3, and(name, value)).wants(outcome{topicTimestamp, "WARN", "1s"}) })
	}
	t.Run("times of our own", func(t *testing.T) {
		p := with(t, 6, 3, and("message.timestamp.type", "LogAppendTime"))
		p.wants()
		p.cfg.OwnTime = true
		p.wants(outcome{topicTimestamp, "WARN", "replaces"})
		p = with(t, 6, 3, and("message.timestamp.before.max.ms", "86400000"))
		p.wants()
		p.cfg.OwnTime = true
		p.wants(outcome{topicTimestamp, "WARN", "24h"})
	})
	t.Run("partitions", func(t *testing.T) {
		p := with(t, 3, 3, two)
		p.cfg.Partitions = map[string]int{p.topic: 6}
		p.wants(outcome{topicPartitions, "FAIL 69", "has 3"})
	})
	t.Run("dead letters", func(t *testing.T) {
		p := with(t, 6, 3, and("max.message.bytes", "2000000"))
		p.cfg.Letters = p.topic + ".dead"
		p.wants(outcome{topicDeadLetters, "FAIL 69", "there is no topic"})
		createTopic(t, w.kafka, p.cfg.Letters, 1, 3, two)
		p.wants(outcome{topicDeadLetters, "WARN", "too large for a dead letter"})
		p.cfg.Cut = true
		p.wants()
		p.cfg.Letters = p.topic + ".compacted"
		createTopic(t, w.kafka, p.cfg.Letters, 1, 3, map[string]string{"cleanup.policy": "compact"})
		p.wants(outcome{topicDeadLetters, "WARN", "compacted"})
		p.cfg.HeldGroup = "outboxcdc-dlq-slot"
		p.wants(outcome{topicDeadLetters, "FAIL 78", "is compacted: of the events that wait"})
		p.cfg.Letters = p.topic + ".dead"
		p.wants(outcome{topicDeadLetters, "WARN", "retention.ms is 604800000"})
		p.cfg.Letters = p.topic + ".kept"
		createTopic(t, w.kafka, p.cfg.Letters, 1, 3, and("retention.ms", "-1"))
		p.wants()
		p.cfg.Letters = p.topic + ".small"
		createTopic(t, w.kafka, p.cfg.Letters, 1, 3, map[string]string{"retention.ms": "-1", "retention.bytes": "1000000", "min.insync.replicas": "2"})
		p.wants(outcome{topicDeadLetters, "WARN", "retention.bytes is 1000000"})
		p.cfg.Letters = p.topic + ".kept"
		refused := w.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.GroupAuthorizationFailed, Count: -1})
		p.wants(outcome{topicDeadLetters, "FAIL 77", "which keys are held cannot be read"})
		refused.Remove()
		const describe = 1 << 8
		for operations, want := range map[int32][]outcome{
			describe:        {{topicDeadLetters, "WARN", "cannot renew the offsets of the group outboxcdc-dlq-slot"}},
			describe | 1<<3: nil, // with Read
			-1 << 31:        nil, // the broker does not say
		} {
			w.kafka.ControlKey(int16(kmsg.DescribeGroups), func(r kmsg.Request) (kmsg.Response, error, bool) {
				res := r.ResponseKind().(*kmsg.DescribeGroupsResponse)
				group := kmsg.NewDescribeGroupsResponseGroup()
				group.Group, group.AuthorizedOperations = "outboxcdc-dlq-slot", operations
				res.Groups = append(res.Groups, group)
				return res, nil, true
			})
			p.wants(want...)
		}
	})
	t.Run("positions", func(t *testing.T) {
		p := with(t, 6, 3, two)
		p.cfg.Positions = p.topic + ".positions"
		p.wants(outcome{topicPositions, "FAIL 78", "does not exist"})
		createTopic(t, w.kafka, p.cfg.Positions, 1, 3, and("cleanup.policy", "compact"))
		p.wants()
		p.cfg.Positions = p.topic + ".deleted"
		createTopic(t, w.kafka, p.cfg.Positions, 1, 3, two)
		p.wants(outcome{topicPositions, "FAIL 78", "cleanup.policy"})
		p.cfg.Positions = p.topic + ".many"
		createTopic(t, w.kafka, p.cfg.Positions, 2, 3, and("cleanup.policy", "compact"))
		p.wants(outcome{topicPositions, "FAIL 78", "2 partitions"})
	})
	t.Run("metadata", func(t *testing.T) {
		c := newKafka(t, 3)
		createTopic(t, c, "outbox.event.order", 6, 3, map[string]string{"min.insync.replicas": "2"})
		var change func(*kmsg.MetadataResponse)
		answers(c, func(res *kmsg.MetadataResponse) { change(res) })
		p := with(t, 0, 0, nil)
		p.topic, p.cfg.Topics, p.kcfg.Brokers = "outbox.event.order", nil, c.ListenAddrs()
		for _, one := range []struct {
			change func(*kmsg.MetadataResponse)
			want   []outcome
		}{
			{func(*kmsg.MetadataResponse) {}, nil},
			{func(res *kmsg.MetadataResponse) { res.Topics[0].Partitions[3].Leader = -1 }, []outcome{{topicExists, "FAIL 69", "without a leader: [3]"}}},
			{func(res *kmsg.MetadataResponse) { res.Topics[0].Partitions[3].ISR = []int32{0, 1} }, []outcome{{topicReplicas, "WARN", "2 in sync"}}},
			{func(res *kmsg.MetadataResponse) { res.Topics[0].Partitions[3].ISR = []int32{0} }, []outcome{{topicReplicas, "WARN", "1 in sync"}, {topicInSync, "FAIL 69", "nothing is acknowledged"}}},
			{func(res *kmsg.MetadataResponse) { res.Topics[0].ErrorCode = kerr.TopicAuthorizationFailed.Code }, []outcome{{topicExists, "FAIL 77", ""}}},
			{func(res *kmsg.MetadataResponse) { res.Topics[0].AuthorizedOperations = 1 << 8 }, []outcome{{topicExists, "FAIL 77", "writing is not allowed"}}},
		} {
			change = one.change
			p.wants(one.want...)
		}
		change = func(res *kmsg.MetadataResponse) { res.Topics[1].ErrorCode = kerr.TopicAuthorizationFailed.Code }
		p.cfg.Letters = "dead"
		p.wants(outcome{topicDeadLetters, "FAIL 77", ""})
		change = func(res *kmsg.MetadataResponse) {
			for i := range res.Topics {
				if *res.Topics[i].Topic == "positions" {
					res.Topics[i].ErrorCode = kerr.TopicAuthorizationFailed.Code
				}
			}
		}
		p.cfg.Letters, p.cfg.Positions = "", "positions"
		p.wants(outcome{topicPositions, "FAIL 77", "access is refused"})
	})
}
