package kafka

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Retention is which records of a topic Kafka deletes, and which it refuses, by the settings of the topic.
type Retention struct {
	Delete     bool          // by age or size (cleanup.policy)
	Compact    bool          // all but the last one of a key (cleanup.policy)
	Time       time.Duration // retention.ms; negative: no limit
	Bytes      int64         // retention.bytes; negative: no limit
	Tombstones time.Duration // delete.retention.ms: how long a tombstone is kept
	Appended   bool          // records have the time at which they were stored (message.timestamp.type)
	MaxMessage int           // max.message.bytes
}

var retentionSettings = []string{
	"cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms", "message.timestamp.type", "max.message.bytes",
}

// Retention returns which records Kafka deletes. A topic is missing in the map if its settings may not be read.
func (c *Client) Retention(ctx context.Context, topics []string) (map[string]Retention, error) {
	ctl := c.takeControl("")
	defer c.returnControl(ctl)
	for p := (patience{client: c}); ; {
		settings, err := ctl.describe(ctx, topics, retentionSettings)
		if err == nil {
			out := map[string]Retention{}
			for topic, values := range settings {
				if r, ok := parseRetention(values); ok {
					out[topic] = r
				}
			}
			return out, nil
		}
		if err = p.wait(ctx, err); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, &failure{op: "read the settings of topics", permissions: "DescribeConfigs on the topics", err: err}
		}
	}
}

func parseRetention(values map[string]string) (r Retention, ok bool) {
	policy := strings.Split(values["cleanup.policy"], ",")
	for i := range policy {
		policy[i] = strings.TrimSpace(policy[i])
	}
	ok = true
	number := func(name string) int64 {
		n, err := strconv.ParseInt(values[name], 10, 64)
		ok = ok && err == nil
		return n
	}
	duration := func(name string) time.Duration {
		const most = int64(1<<63-1) / int64(time.Millisecond)
		n := number(name)
		if n > most {
			n = -1
		}
		return time.Duration(n) * time.Millisecond
	}
	r = Retention{
		Delete: slices.Contains(policy, "delete"), Compact: slices.Contains(policy, "compact"),
		Time: duration("retention.ms"), Bytes: number("retention.bytes"), Tombstones: duration("delete.retention.ms"),
		Appended: values["message.timestamp.type"] == "LogAppendTime", MaxMessage: int(number("max.message.bytes")),
	}
	return r, ok && (r.Delete || r.Compact)
}
