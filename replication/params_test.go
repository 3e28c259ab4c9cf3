package replication

import "testing"

// Settings that a server does not know would end the connection; those that it knows protect it.
func TestStreamParamsOfAVersion(t *testing.T) {
	c := &Config{}
	for setting, first := range map[string]int{"transaction_timeout": 17, "wal_sender_shutdown_timeout": 19} {
		for _, major := range []int{0, 14, first - 1, first, first + 1} {
			if value := c.streamParams(major)[setting]; (value != "") != (major >= first) {
				t.Errorf("PostgreSQL %d: %s = %q", major, setting, value)
			}
		}
	}
}
