package integration

import (
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/faultproxy"
)

// Receiving a row over the link takes longer than wal_sender_timeout. Its bytes count as a sign of life, so neither
// side gives up and the row arrives in the first session.
func TestLargeRowOverASlowLink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{configs: map[string]string{"max.message.bytes": "20000000"}})
	o.proves("F17", "1 MB/s from Postgres, a row of 10 MB, wal_sender_timeout 4 s")
	o.memoryUpTo(256<<20, "the row's size several times")
	o.sample()
	p, env := o.proxied()
	r := o.startStreaming(env, senderTimeout(4*time.Second), steady)
	o.insert("order", "a", 1, 1)
	o.awaitArrived(patience)
	must(t, p.Set(faultproxy.Faults{Down: faultproxy.Way{BytesPerSecond: 1_000_000}}))
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, n)
		SELECT 'order', 'a', 'added', jsonb_build_object('noise', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 320000) i)), 2`)
	v := o.verify(patience)
	o.repeatsAtMost(v, 0, "no session ends")
	is(t, "reconnects", r.reconnects(""), 0)
}
