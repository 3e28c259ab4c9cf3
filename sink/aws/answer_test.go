package awssink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// account is that of a server in this process.
func account(t *testing.T, h http.HandlerFunc) Target {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return Target{URL: srv.URL + "/123456789012", Region: "eu-central-1", Credentials: sqstest.Credentials}
}

func newSender(t *testing.T, target Target, change ...func(*Config)) *transport {
	t.Helper()
	tr, err := testReceiver(t, target, change...).Reach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func (t *transport) deliver(ctx context.Context, rec *router.Record) *lane.Failure {
	answer := make(chan *lane.Failure, 1)
	t.Deliver(ctx, []*lane.Item{{Record: rec}}, func(_ int, why *lane.Failure) { answer <- why })
	why := <-answer
	return why
}

// TestAnswers: what the service answers means what it is, and shows no secret. Only an answer that names the message as
// stored acknowledges it.
func TestAnswers(t *testing.T) {
	entry := func(code string, sender bool) string {
		return fmt.Sprintf(`{"Successful": [], "Failed": [{"Id": "0", "Code": %q, "SenderFault": %v}]}`, code, sender)
	}
	coded := func(code string) string { return fmt.Sprintf(`{"__type": %q, "message": "why"}`, code) }
	for _, test := range []struct {
		status  int
		text    string
		meaning lane.Meaning
		code    string // "": it is an acknowledgement
	}{
		{200, `{"Successful": [{"Id": "0", "MessageId": "m"}]}`, 0, ""},
		{200, `{"Successful": [{"Id": "0"}]}`, lane.Again, lane.CodeUnavailable},
		{200, `{"Successful": [{"Id": "1", "MessageId": "m"}]}`, lane.Again, lane.CodeUnavailable},
		{200, `{"Successful": [{"Id": "0", "MessageId": "m"}], "Failed": [{"Id": "0", "Code": "InternalError"}]}`, lane.Again, lane.CodeUnavailable},
		{200, `{"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "00"}]}`, lane.Again, lane.CodeConnection},
		{200, `{}`, lane.Again, lane.CodeUnavailable},
		{200, ``, lane.Again, lane.CodeUnavailable},
		{200, `Geh3im`, lane.Again, lane.CodeUnavailable},
		{307, ``, lane.Again, lane.CodeUnavailable},
		{500, `Geh3im`, lane.Again, lane.CodeUnavailable},
		{503, coded("ServiceUnavailable"), lane.Again, lane.CodeUnavailable},
		{200, entry("InternalError", false), lane.Again, lane.CodeUnavailable},
		{200, entry("InvalidMessageContents", true), lane.Refused, lane.CodeRefused},
		{200, entry("InvalidMessageContents", false), lane.Again, lane.CodeUnavailable},
		{200, entry("InvalidParameterValue", true), lane.Refused, lane.CodeRefused},
		{200, entry("NewInTwoYears", true), lane.Again, lane.CodeUnavailable},
		{200, entry("KmsAccessDenied", true), lane.Denied, lane.CodeDenied},
		{200, entry("RequestThrottled", true), lane.Again, lane.CodeUnavailable},
		{400, coded("com.amazonaws.sqs#QueueDoesNotExist"), lane.Missing, lane.CodeMissing},
		{400, coded("AWS.SimpleQueueService.NonExistentQueue"), lane.Missing, lane.CodeMissing},
		{400, coded("RequestThrottled"), lane.Again, lane.CodeUnavailable},
		{403, coded("ThrottlingException"), lane.Again, lane.CodeUnavailable},
		{400, coded("com.amazonaws.sqs#AccessDeniedException"), lane.Denied, lane.CodeDenied},
		{403, coded("AccessDenied"), lane.Denied, lane.CodeDenied},
		{403, coded("NewInTwoYears"), lane.Denied, lane.CodeDenied},
		{400, coded("NewInTwoYears"), lane.Again, lane.CodeUnavailable},
		{400, coded("ExpiredToken"), lane.Denied, lane.CodeDenied},
		{400, coded("InvalidMessageContents"), lane.Refused, lane.CodeRefused},
		{403, `{"__type": "SignatureDoesNotMatch", "message": "the request was x-amz-security-token: Geh3im"}`, lane.Denied, lane.CodeDenied},
	} {
		target := account(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.text)
		})
		why := newSender(t, target).deliver(t.Context(), recordAt("e", "k", topic, 1))
		switch {
		case why == nil && test.code == "":
		case why == nil, test.code == "", why.Meaning != test.meaning, why.Code != test.code, strings.Contains(why.Error(), "Geh3im"):
			t.Errorf("%d %s: %+v", test.status, test.text, why)
		}
	}
	for name, target := range map[string]Target{"address": {URL: "http://u:Geh3im@h/1"}, "account": {URL: "http://h/"}, "scheme": {URL: "amqp://h/Geh3im"}} {
		if err := testReceiver(t, target).Probe(t.Context()); err == nil || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNoCredentials: without credentials no session is opened, and one that is open sends again.
func TestNoCredentials(t *testing.T) {
	requests := 0
	target := account(t, func(http.ResponseWriter, *http.Request) { requests++ })
	var none error
	target.Credentials = aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		c, _ := sqstest.Credentials(ctx)
		c.CanExpire, c.Expires = true, time.Now()
		return c, none
	})
	s := newSender(t, target)
	none = &CredentialError{errors.New("there are none")}
	if why := s.deliver(t.Context(), recordAt("e", "k", topic, 1)); why == nil || why.Meaning != lane.Again || why.Code != lane.CodeSecret || !strings.HasSuffix(why.Error(), ": there are none") {
		t.Error(why)
	}
	var f *lane.Failure
	if err := testReceiver(t, target).Probe(t.Context()); !errors.As(err, &f) || f.Code != lane.CodeSecret || requests > 0 {
		t.Error(err, requests)
	}
}
