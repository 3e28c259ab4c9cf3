package replication

import (
	"strings"
	"testing"
)

// TestRecoverySlot: every name is one that Postgres accepts, and distinct slots have distinct names.
func TestRecoverySlot(t *testing.T) {
	if got := RecoverySlot("orders"); got != "orders_recovery" {
		t.Errorf("%s", got)
	}
	names := map[string]string{}
	for n := 1; n <= maxName; n++ {
		long := strings.Repeat("a", n)
		for _, slot := range []string{long, long[1:] + "b", RecoverySlot(long)} {
			if slot == "" {
				continue
			}
			name := RecoverySlot(slot)
			if err := CheckSlotName(name); err != nil {
				t.Error(err)
			}
			if other, ok := names[name]; ok && other != slot {
				t.Errorf("%s is the name for %s and for %s", name, slot, other)
			}
			names[name] = slot
		}
	}
}

// RetainedBytes and UnconfirmedBytes of slots in each state.
func TestSlotBytes(t *testing.T) {
	for name, c := range map[string]struct {
		slot                  Slot
		retained, unconfirmed uint64
	}{
		"in use":        {Slot{RestartLSN: 100, ConfirmedFlush: 300, ServerLSN: 1000}, 900, 700},
		"being created": {Slot{RestartLSN: 100, ServerLSN: 1000}, 900, 900},
		"invalidated":   {Slot{ConfirmedFlush: 300, ServerLSN: 1000}, 0, 700},
		"server behind": {Slot{RestartLSN: 1100, ConfirmedFlush: 1200, ServerLSN: 1000}, 0, 0},
	} {
		if got := c.slot.RetainedBytes(); got != c.retained {
			t.Errorf("%s: %d bytes retained, want %d", name, got, c.retained)
		}
		if got := c.slot.UnconfirmedBytes(); got != c.unconfirmed {
			t.Errorf("%s: %d bytes unconfirmed, want %d", name, got, c.unconfirmed)
		}
	}
}
