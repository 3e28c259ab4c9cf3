package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// How long a broker may take over one change.
const adminTimeoutMillis = 15_000

// CreateTopic creates a topic with the cluster's own replication factor and returns when each of its partitions has a
// leader. A topic that exists is an error (errors.Is kerr.TopicAlreadyExists).
func CreateTopic(ctx context.Context, brokers []string, name string, partitions int, configs map[string]string) error {
	return admin(brokers, "create topic "+name, func(client *kgo.Client) error {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), -1
		for k, v := range configs {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = k, kmsg.StringPtr(v)
			topic.Configs = append(topic.Configs, c)
		}
		req := kmsg.NewPtrCreateTopicsRequest()
		req.TimeoutMillis = adminTimeoutMillis
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if err := firstRefusal(resp.Topics, func(t *kmsg.CreateTopicsResponseTopic) (int16, *string) { return t.ErrorCode, t.ErrorMessage }); err != nil {
			return err
		}
		return awaitPartitions(ctx, client, name, partitions)
	})
}

// AddPartitions raises the number of a topic's partitions to total and returns
// when each has a leader.
func AddPartitions(ctx context.Context, brokers []string, name string, total int) error {
	return admin(brokers, "add partitions to topic "+name, func(client *kgo.Client) error {
		topic := kmsg.NewCreatePartitionsRequestTopic()
		topic.Topic, topic.Count = name, int32(total)
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis = adminTimeoutMillis
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if err := firstRefusal(resp.Topics, func(t *kmsg.CreatePartitionsResponseTopic) (int16, *string) { return t.ErrorCode, t.ErrorMessage }); err != nil {
			return err
		}
		return awaitPartitions(ctx, client, name, total)
	})
}

// DeleteTopic deletes a topic and returns when the brokers no longer know it.
func DeleteTopic(ctx context.Context, brokers []string, name string) error {
	return admin(brokers, "delete topic "+name, func(client *kgo.Client) error {
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.TimeoutMillis = adminTimeoutMillis
		req.TopicNames = []string{name} // for brokers before 2.8
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if err := firstRefusal(resp.Topics, func(t *kmsg.DeleteTopicsResponseTopic) (int16, *string) { return t.ErrorCode, t.ErrorMessage }); err != nil {
			return err
		}
		return child.Await(ctx, func() error {
			_, err := partitionsOf(ctx, client, name)
			switch {
			case errors.Is(err, kerr.UnknownTopicOrPartition):
				return nil
			case err == nil:
				return errors.New("the brokers still have it")
			}
			return err
		})
	})
}

// SetTopicConfig sets settings of a topic, keeps the rest, and returns when a broker has the new values.
func SetTopicConfig(ctx context.Context, brokers []string, name string, configs map[string]string) error {
	return admin(brokers, "configure topic "+name, func(client *kgo.Client) error {
		resource := kmsg.NewIncrementalAlterConfigsRequestResource()
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, name
		for k, v := range configs {
			c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
			c.Name, c.Op, c.Value = k, kmsg.IncrementalAlterConfigOpSet, kmsg.StringPtr(v)
			resource.Configs = append(resource.Configs, c)
		}
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		req.Resources = append(req.Resources, resource)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if err := firstRefusal(resp.Resources, func(r *kmsg.IncrementalAlterConfigsResponseResource) (int16, *string) {
			return r.ErrorCode, r.ErrorMessage
		}); err != nil {
			return err
		}
		return awaitTopicConfig(ctx, client, name, configs)
	})
}

// awaitTopicConfig waits until a broker has the settings. The controller answers before the brokers have them.
func awaitTopicConfig(ctx context.Context, client *kgo.Client, name string, configs map[string]string) error {
	for {
		resource := kmsg.NewDescribeConfigsRequestResource()
		resource.ResourceType, resource.ResourceName, resource.ConfigNames = kmsg.ConfigResourceTypeTopic, name, slices.Collect(maps.Keys(configs))
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.Resources = append(req.Resources, resource)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		missing := len(configs)
		for _, r := range resp.Resources {
			for _, c := range r.Configs {
				if want, ok := configs[c.Name]; ok && c.Value != nil && *c.Value == want {
					missing--
				}
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait until the broker has the settings: %w", context.Cause(ctx))
		}
	}
}

func admin(brokers []string, doing string, do func(*kgo.Client) error) error {
	client, err := newClient(brokers)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	defer client.Close()
	if err := do(client); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// firstRefusal returns the first refusal among the parts of an answer.
func firstRefusal[P any](parts []P, code func(*P) (int16, *string)) error {
	for i := range parts {
		if err := refusal(code(&parts[i])); err != nil {
			return err
		}
	}
	return nil
}

// refusal turns an answer's error code and message into an error.
func refusal(code int16, message *string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && message != nil && *message != "" {
		return fmt.Errorf("%w (%s)", err, *message)
	}
	return err
}

// partitionsOf returns the number of a topic's partitions, once all of them have a leader.
func partitionsOf(ctx context.Context, client *kgo.Client, name string) (int, error) {
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 {
		return 0, fmt.Errorf("asked about one topic, got an answer about %d", len(resp.Topics))
	}
	t := resp.Topics[0]
	if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
		return 0, err
	}
	for _, p := range t.Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return 0, fmt.Errorf("partition %d: %w", p.Partition, err)
		}
	}
	return len(t.Partitions), nil
}

// awaitPartitions waits until the brokers know the controller's decision.
func awaitPartitions(ctx context.Context, client *kgo.Client, name string, want int) error {
	return child.Await(ctx, func() error {
		have, err := partitionsOf(ctx, client, name)
		if err == nil && want > 0 && have != want {
			err = fmt.Errorf("it has %d partitions, want %d", have, want)
		}
		return err
	})
}

// SetProducerQuota bounds a client's produce rate in bytes a second and per broker; 0 lifts the bound.
func SetProducerQuota(ctx context.Context, brokers []string, clientID string, bytesPerSecond float64) error {
	return admin(brokers, "set the quota of client "+clientID, func(client *kgo.Client) error {
		entity := kmsg.NewAlterClientQuotasRequestEntryEntity()
		entity.Type, entity.Name = "client-id", kmsg.StringPtr(clientID)
		op := kmsg.NewAlterClientQuotasRequestEntryOp()
		op.Key, op.Value, op.Remove = "producer_byte_rate", bytesPerSecond, bytesPerSecond == 0
		entry := kmsg.NewAlterClientQuotasRequestEntry()
		entry.Entity, entry.Ops = append(entry.Entity, entity), append(entry.Ops, op)
		req := kmsg.NewPtrAlterClientQuotasRequest()
		req.Entries = append(req.Entries, entry)
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return err
		}
		return firstRefusal(resp.Entries, func(e *kmsg.AlterClientQuotasResponseEntry) (int16, *string) { return e.ErrorCode, e.ErrorMessage })
	})
}
