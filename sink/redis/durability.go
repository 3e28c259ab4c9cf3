package redissink

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Durability reads what an acknowledgement of the server means at present, and by what an acknowledged event can be
// lost. A setting that may not be read is among the risks, because nothing is known about it.
func (r *Receiver) Durability(ctx context.Context) (means string, risks []string, err error) {
	target, err := r.Target()
	if err != nil {
		return "", nil, err
	}
	t, err := r.connect(target)
	if err != nil {
		return "", nil, err
	}
	defer t.Close()
	settings := map[string]string{}
	for _, name := range []string{"appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory", "maxmemory-policy"} {
		value, err := t.setting(ctx, name)
		switch f := t.failure("read the settings of Redis at "+t.client.addr, err); {
		case err == nil:
			settings[name] = value
		case f.Meaning != lane.Denied:
			return "", nil, f
		default:
			return "unknown", []string{"its settings could not be read, so whether an acknowledged event can be lost is not known; grant +config|get and +info"}, nil
		}
	}
	means, risks = ofSettings(settings)
	answer, err := t.ask(ctx, "INFO", "replication")
	info, is := answer.(string)
	if err != nil || !is {
		return means, append(risks, "whether it has replicas could not be read; grant +info"), nil
	}
	return means, append(risks, ofReplication(info, r.cfg.WaitReplicas)...), nil
}

// ofSettings says what the settings of the server mean.
func ofSettings(s map[string]string) (means string, risks []string) {
	switch {
	case s["appendonly"] == "yes" && s["appendfsync"] == "always":
		means = "the event is on the disk of the server (appendfsync always)"
		if s["no-appendfsync-on-rewrite"] == "yes" {
			risks = append(risks, "while it rewrites its file, or saves a snapshot, a crash of its machine loses acknowledged events that the operating system has not written yet (no-appendfsync-on-rewrite yes)")
		}
	case s["appendonly"] == "yes":
		means = "the event is in the memory of the server"
		lost := "about a second of acknowledged events"
		if s["appendfsync"] != "everysec" {
			lost = "acknowledged events that the operating system has not written yet"
		}
		risks = append(risks, fmt.Sprintf("a crash of its machine loses %s (appendfsync %s; always loses none)", lost, s["appendfsync"]))
	case s["save"] != "":
		means = "the event is in the memory of the server"
		risks = append(risks, "a crash loses the acknowledged events since the last snapshot (appendonly no)")
	default:
		means = "the event is in the memory of the server"
		risks = append(risks, "a restart loses all acknowledged events (appendonly no, and no snapshots)")
	}
	if policy := s["maxmemory-policy"]; s["maxmemory"] != "0" && strings.HasPrefix(policy, "allkeys-") {
		risks = append(risks, fmt.Sprintf("it may remove whole streams when its memory is full (maxmemory-policy %s; noeviction removes none)", policy))
	}
	return means, risks
}

// ofReplication says what a failover may lose.
func ofReplication(info string, wait int) []string {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	replicas, err := strconv.Atoi(fields["connected_slaves"])
	switch {
	case fields["role"] == "slave":
		return []string{"it is a replica, and takes no events; let receiver.url name the primary"}
	case err != nil:
		return []string{"how many replicas it has could not be read"}
	case replicas < wait:
		return []string{fmt.Sprintf("it has %d replicas now, so no event is acknowledged (receiver.wait_replicas %d)", replicas, wait)}
	case replicas > wait && wait > 0:
		return []string{fmt.Sprintf("an event is acknowledged when %d of its %d replicas have received it, and a failover to another one loses it (receiver.wait_replicas)", wait, replicas)}
	case replicas > wait:
		return []string{fmt.Sprintf("a failover loses acknowledged events that its %d replicas have not received (receiver.wait_replicas)", replicas)}
	}
	return nil
}
