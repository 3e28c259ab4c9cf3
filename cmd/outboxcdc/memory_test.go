package main

import (
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/config"
)

// TestMemoryLimitFollowsTheWindow: the heap has room for a full window, whatever its size, so that the garbage
// collector does not run all the time while Kafka is slow.
func TestMemoryLimitFollowsTheWindow(t *testing.T) {
	for _, tt := range []struct {
		window config.MaxInFlight
		want   int64
	}{
		{config.MaxInFlight{Records: 50_000, Bytes: 16 << 20}, 44 << 20},
		{config.MaxInFlight{Records: 100, Bytes: 1 << 20}, 44 << 20},
		{config.MaxInFlight{Records: 50_000, Bytes: 256 << 20}, (44 + 480) << 20},
		{config.MaxInFlight{Records: 1_050_000, Bytes: 16 << 20}, 44<<20 + 128_000_000},
	} {
		if got := memoryLimit(tt.window); got != tt.want {
			t.Errorf("%+v: %d, want %d", tt.window, got, tt.want)
		}
	}
}
