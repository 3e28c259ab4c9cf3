package awssink

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestDurability: what doctor says about a queue is what its attributes say, and nothing is known that cannot be read.
func TestDurability(t *testing.T) {
	status, text := 200, ""
	target := account(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	r := testReceiver(t, target)
	for _, test := range []struct {
		status      int
		text, means string
		risks       []string
	}{
		{200, `{"Attributes": {"FifoQueue": "true", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576"}}`, "several servers", nil},
		{200, `{"Attributes": {"FifoQueue": "true", "FifoThroughputLimit": "perQueue", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576"}}`, "orders.fifo takes 300 requests", nil},
		{200, `{"Attributes": {"FifoQueue": "true", "FifoThroughputLimit": "perMessageGroupId", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576"}}`, "orders.fifo takes many", nil},
		{200, `{"Attributes": {"MessageRetentionPeriod": "345600", "MaximumMessageSize": "1048576"}}`, "", []string{"it is no FIFO queue", "after 96h0m0s"}},
		{200, `{"Attributes": {"FifoQueue": "true", "MessageRetentionPeriod": "1209600", "MaximumMessageSize": "262144", "RedrivePolicy": "{\"maxReceiveCount\": \"3\"}"}}`, "", []string{"more than 262144 bytes", "received 3 times"}},
		{200, `{"Attributes": {"FifoQueue": "true"}}`, "", []string{"no MessageRetentionPeriod", "no MaximumMessageSize"}},
		{400, `{"__type": "QueueDoesNotExist"}`, "", []string{"does not exist"}},
		{403, `{"__type": "AccessDenied"}`, "", []string{"could not be read"}},
	} {
		status, text = test.status, test.text
		means, risks, err := r.Durability(t.Context(), []string{topic})
		ok := err == nil && strings.Contains(means, test.means) && len(risks) == len(test.risks)
		for i := range risks {
			ok = ok && strings.HasPrefix(risks[i], "the queue orders.fifo: ") && strings.Contains(risks[i], test.risks[i])
		}
		if !ok {
			t.Errorf("%s: %s, %q, %v", test.text, means, risks, err)
		}
	}
	status, text = 500, ""
	if _, _, err := r.Durability(t.Context(), []string{topic}); err == nil {
		t.Error("an outage")
	}
	if means, risks, err := r.Durability(t.Context(), nil); err != nil || len(risks) > 0 || !strings.Contains(means, "--topic") {
		t.Error(means, risks, err)
	}
	if _, risks, err := r.Durability(t.Context(), []string{"outbox.event.order"}); err != nil || len(risks) != 1 || !strings.Contains(risks[0], "poison") {
		t.Error(risks, err)
	}
}
