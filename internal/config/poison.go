package config

import (
	"maps"
	"slices"
)

// Poison is what happens to an event that no retry can deliver.
type Poison struct {
	// Policy is the policy for all poison events. hold_key: the event is sent to poison.topic, and later events of its
	// topic and key follow it there until it is retried or dropped. dead_letter: the event is sent there, and later events
	// are delivered. stop, the default for a sink that is not Kafka: nothing after the event is confirmed, and the daemon
	// stops with exit code 65. skip: it is dropped, logged and counted.
	Policy string `yaml:"policy" default:"hold_key" oneof:"hold_key dead_letter stop skip"`
	// Causes are policies for single causes: cause → policy. An UPDATE of an outbox row, if the publication sends
	// updates, is skipped unless the cause update is given here. DELETE and TRUNCATE are always skipped.
	Causes map[string]string `yaml:"causes" default:""`
	// Decisions are decisions about single events: id → skip, dead_letter, hold_key or stop. The last log line of a stop
	// names the id.
	Decisions map[string]string `yaml:"decisions" default:""`
	// OnStop is what happens at a stop for poison, and at exit code 79 after the first delivered event, except with two
	// primaries, which the next start finds too. exit: the process ends, so that its supervisor shows it. hold: it keeps
	// running, not ready, until it is stopped; for supervisors that restart every process that ends.
	OnStop string `yaml:"on_stop" default:"exit" oneof:"exit hold"`
	// Oversize is what happens to a dead letter that is too large for its topic: stop, or cut: first the end of the
	// value, then headers and key.
	Oversize string `yaml:"oversize" default:"stop" oneof:"stop cut"`
	// Topic is the dead-letter topic.
	Topic string `yaml:"topic" default:"outbox.dead_letter"`
}

// Holds reports whether any poison event may hold its key.
func (p *Poison) Holds() bool {
	return p.Policy == HoldKey || slices.Contains(slices.Collect(maps.Values(p.Causes)), HoldKey) ||
		slices.Contains(slices.Collect(maps.Values(p.Decisions)), HoldKey)
}

// HoldKey is the policy by which a poison event holds its key.
const HoldKey = "hold_key"

// MaxHeld is the limit of what the policy hold_key holds. At a limit the daemon stops as with the policy stop, before
// an event that would exceed it. It bounds the memory of the daemon. Each is 1 to 1000000.
type MaxHeld struct {
	// Keys is the maximum number of held keys.
	Keys int `yaml:"keys" default:"10000"`
	// Letters is the maximum number of open letters of all held keys.
	Letters int `yaml:"letters" default:"100000"`
}
