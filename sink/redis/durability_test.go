package redissink

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// TestDurability: what doctor says about a server is what the server says about itself.
func TestDurability(t *testing.T) {
	server := redistest.Start(t, "user reader on nopass +ping +config|get +info", "user daemon on nopass ~* "+permissions)
	for _, test := range []struct {
		user, settings, means string
		risks                 []string
	}{
		{"reader", "", "on the disk of the server", nil},
		{"reader", "appendfsync everysec", "in the memory", []string{"about a second"}},
		{"reader", "appendfsync no", "in the memory", []string{"has not written yet"}},
		{"reader", "no-appendfsync-on-rewrite yes", "on the disk of the server", []string{"while it rewrites"}},
		{"reader", "no-appendfsync-on-rewrite yes appendfsync everysec", "in the memory", []string{"about a second"}},
		{"reader", "appendonly no", "in the memory", []string{"a restart loses all"}},
		{"reader", "appendonly no save '60 1'", "in the memory", []string{"since the last snapshot"}},
		{"reader", "maxmemory 100mb maxmemory-policy allkeys-lru", "on the disk", []string{"whole streams"}},
		{"daemon", "", "unknown", []string{"could not be read"}},
	} {
		for _, setting := range []string{"appendonly yes", "appendfsync always", "no-appendfsync-on-rewrite no", "save ''", "maxmemory 0", "maxmemory-policy noeviction", test.settings} {
			words := strings.Fields(strings.ReplaceAll(setting, "60 1", "60_1"))
			for pair := range slices.Chunk(words, 2) {
				server.Do("CONFIG", "SET", pair[0], strings.ReplaceAll(strings.Trim(pair[1], "'"), "_", " "))
			}
		}
		means, risks, err := testReceiver(t, "redis://"+test.user+":x@"+server.Addr).Durability(t.Context())
		if err != nil || !strings.Contains(means, test.means) || len(risks) != len(test.risks) || len(risks) > 0 && !strings.Contains(risks[0], test.risks[0]) {
			t.Errorf("%s %s: %s, %q, %v", test.user, test.settings, means, risks, err)
		}
	}
	server.Do("REPLICAOF", "127.0.0.1", "1")
	if _, risks, err := testReceiver(t, "redis://"+server.Addr).Durability(t.Context()); err != nil || len(risks) != 1 || !strings.Contains(risks[0], "it is a replica") {
		t.Error(risks, err)
	}
	for wait, want := range []string{"that its 2 replicas have not received", "1 of its 2 replicas have received it", "", "no event is acknowledged"} {
		got := ofReplication("role:master\r\nconnected_slaves:2\r\n", wait)
		if len(got) != min(1, len(want)) || want != "" && !strings.Contains(got[0], want) {
			t.Errorf("wait_replicas %d: %q", wait, got)
		}
	}
	server.Kill()
	var f *lane.Failure
	if _, _, err := testReceiver(t, "redis://"+server.Addr).Durability(t.Context()); !errors.As(err, &f) || f.Code != lane.CodeConnection {
		t.Error(err)
	}
	server.Start()
}
