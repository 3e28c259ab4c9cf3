package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// No operator output, even at level debug, contains payload data or a secret; also where an event is poison and the
// daemon reports why.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	const canary = "c4n4ry"
	o := newOutbox(t, options{configs: map[string]string{"max.message.bytes": "2000"}})
	r := o.startStreaming("OUTBOXCDC_POISON_POLICY=skip", "OUTBOXCDC_LOG_LEVEL=debug", "OUTBOXCDC_KAFKA_COMPRESSION=none")
	row := func(key, payload, headers string) {
		o.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', "+key+", $1, $2, $3)",
			canary, payload, headers)
	}
	value := fmt.Sprintf(`{"card": %q}`, canary)
	row("'"+canary+"'", value, `{"trace": "`+canary+`"}`)
	row("'"+canary+"'", value, `["`+canary+`"]`)
	row("'"+canary+"'", value, `{"id": "`+canary+`"}`)
	row("'"+canary+"'", value, `{"outboxcdc-position": "`+canary+`"}`)
	row("'"+canary+"'", `{"card": "`+strings.Repeat(canary, 1000)+`"}`, `{}`)
	row("'last'", value, `{}`)
	await(t, patience, "poison to be skipped", func() error {
		if n := len(r.logged("poison skipped")); n != 4 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	o.awaitConfirmed(o.walFlushed(), patience)
	log, err := os.ReadFile(r.log)
	must(t, err)
	shown := map[string]string{"the log": string(log)}
	for _, path := range []string{"/", "/status", "/metrics", "/readyz", "/livez", "/version"} {
		code, body, err := r.get(path)
		must(t, err)
		if code != 200 {
			t.Errorf("%s: %d", path, code)
		}
		shown[path] = string(body)
	}
	for where, text := range shown {
		for _, secret := range []string{canary, password} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s contains %q: …%s…", where, secret, text[max(0, i-200):min(len(text), i+50)])
			}
		}
	}
	says(t, shown["/status"], o.topic("order"))
}
