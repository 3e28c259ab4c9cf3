package fromdebezium

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

func (c *conversion) kafka() {
	c.yaml.WriteString("kafka:\n")
	brokers := splitList(cmp.Or(c.get("bootstrap.servers"), c.get("producer.override.bootstrap.servers")))
	if len(brokers) == 0 {
		c.note("bootstrap.servers", "not in the configuration of the connector but in that of the Connect worker; set kafka.brokers")
		brokers = []string{"localhost:9092"}
	}
	c.list("brokers", brokers)
	if codec := c.get("producer.override.compression.type"); codec != "" {
		c.line(1, "compression", codec)
	}
	c.createTopics()
	c.poison()
}

// createTopics converts the creation of topics by Connect. Without it, events of a new aggregate type wait for their
// topic.
func (c *conversion) createTopics() {
	const creation = "topic.creation."
	partitions, factor := c.get(creation+"default.partitions"), c.get(creation+"default.replication.factor")
	c.get(creation + "enable")
	if partitions == "" && factor == "" || c.props[creation+"enable"] == "false" {
		return
	}
	c.yaml.WriteString("  create_topics:\n")
	for _, s := range []struct{ option, key, value, otherwise string }{
		{creation + "default.partitions", "partitions", partitions, "6"}, {creation + "default.replication.factor", "replication_factor", factor, "3"},
	} {
		if n, err := strconv.Atoi(s.value); err != nil || n < 1 {
			if s.value != "" {
				c.note(s.option, "the broker's default has no counterpart: kafka.create_topics.%s is %s", s.key, s.otherwise)
			}
			s.value = s.otherwise
		}
		fmt.Fprintf(&c.yaml, "    %s: %s\n", s.key, s.value)
	}
	var config []string
	for _, name := range slices.Sorted(maps.Keys(c.props)) {
		key, ok := strings.CutPrefix(name, creation+"default.")
		if ok && key != "partitions" && key != "replication.factor" && key != "include" && key != "exclude" {
			config = append(config, strconv.Quote(key)+": "+strconv.Quote(c.get(name)))
		}
	}
	if len(config) > 0 {
		fmt.Fprintf(&c.yaml, "    config: {%s}\n", strings.Join(config, ", "))
	}
}

// poison converts errors.tolerance, and the behaviour at an update.
func (c *conversion) poison() {
	tolerant, fatal := c.get("errors.tolerance") == "all", c.router("table.op.invalid.behavior") == "fatal"
	if tolerant || fatal {
		c.yaml.WriteString("poison:\n")
	}
	if tolerant {
		c.line(1, "policy", "skip")
		c.note("errors.tolerance", "poison.policy is skip, which means the same; dead_letter keeps the events that cannot be delivered (docs/poison.md)")
	}
	if fatal {
		c.yaml.WriteString("  causes: {update: stop}\n")
	}
}
