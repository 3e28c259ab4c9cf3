package relay

import (
	"testing"
	"time"
)

// TestBugTouchHammers: parked, while another instance has the slot and so keeps it alive: every probe is followed by an
// attempt to open it, for ever.
func TestBugTouchHammers(t *testing.T) {
	bubble(t, testConfig(), func(b *bench) {
		b.pg.idle = 20 * time.Minute
		b.kafka.edit(func() { b.kafka.probeErr = errKafka })
		b.kafka.hold()
		b.start()
		b.pg.commit("a")
		b.sleep(time.Minute)
		b.want(Parked)
		b.pg.edit(func() { b.pg.held = true })
		b.sleep(2 * time.Hour)
		if n := len(b.pg.opens); n > 40 {
			b.Errorf("tried to open the slot %d times in two hours", n)
		}
	})
}

// TestBugParkedAtTheEnd: told to stop while it pauses after a failure of Kafka, the relay warns that it is parked now.
func TestBugParkedAtTheEnd(t *testing.T) {
	cfg := testConfig()
	cfg.BackoffMin = 30 * time.Second
	bubble(t, cfg, func(b *bench) {
		b.kafka.openErr = func(int) error { return reasoned{} }
		b.start()
		b.want(Reconnecting)
		if err := b.quit(); err != nil {
			b.Error(err)
		}
		if n := b.log.count("state=parked"); n != 0 {
			b.Errorf("%d lines that say parked", n)
		}
	})
}
