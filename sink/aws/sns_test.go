package awssink

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/test/sqstest"
)

// TestSNSAnswers: what SNS answers means what it is, and shows no secret. Only an answer that names the message as
// stored acknowledges it.
func TestSNSAnswers(t *testing.T) {
	result := snsResult
	const ok = "<Successful><member><Id>0</Id><MessageId>m</MessageId><SequenceNumber>1</SequenceNumber></member></Successful>"
	entry := func(code string, sender bool) string {
		return fmt.Sprintf("<Failed><member><Id>0</Id><Code>%s</Code><Message>why</Message><SenderFault>%v</SenderFault></member></Failed>", code, sender)
	}
	coded := func(code, message string) string {
		return fmt.Sprintf("<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>", code, message)
	}
	for _, test := range []struct {
		status  int
		text    string
		meaning lane.Meaning
		code    string // "": it is an acknowledgement
	}{
		{200, result(ok + "<Failed/>"), 0, ""},
		{200, result(strings.Replace(ok, ">m<", "><", 1)), lane.Again, lane.CodeUnavailable},
		{200, result(strings.Replace(ok, ">0<", ">1<", 1)), lane.Again, lane.CodeUnavailable},
		{200, result(ok + entry("InternalError", false)), lane.Again, lane.CodeUnavailable},
		{200, result(""), lane.Again, lane.CodeUnavailable},
		{200, "", lane.Again, lane.CodeUnavailable},
		{200, "Geh3im", lane.Again, lane.CodeUnavailable},
		{200, strings.TrimSuffix(result(ok), "</PublishBatchResponse>"), lane.Again, lane.CodeUnavailable},
		{200, strings.ReplaceAll(result(ok), "PublishBatchResponse", "html"), lane.Again, lane.CodeUnavailable},
		{202, result(ok), lane.Again, lane.CodeUnavailable},
		{307, result(ok), lane.Again, lane.CodeUnavailable},
		{500, "Geh3im", lane.Again, lane.CodeUnavailable},
		{500, coded("InternalError", ""), lane.Again, lane.CodeUnavailable},
		{429, coded("Throttled", ""), lane.Again, lane.CodeUnavailable},
		{200, result(entry("InvalidParameter", true)), lane.Refused, lane.CodeRefused},
		{200, result(entry("InvalidParameter", false)), lane.Again, lane.CodeUnavailable},
		{200, result(entry("ParameterValueInvalid", true)), lane.Refused, lane.CodeRefused},
		{200, coded("InternalError", ""), lane.Again, lane.CodeUnavailable},
		{200, result(entry("NewInTwoYears", true)), lane.Again, lane.CodeUnavailable},
		{200, result(entry("KMSAccessDenied", true)), lane.Denied, lane.CodeDenied},
		{404, coded("NotFound", "Topic does not exist"), lane.Missing, lane.CodeMissing},
		{400, coded("InvalidParameter", "Invalid parameter: TopicArn"), lane.Missing, lane.CodeMissing},
		{400, coded("InvalidParameter", "Invalid parameter: Message too long"), lane.Refused, lane.CodeRefused},
		{400, coded("NewInTwoYears", ""), lane.Again, lane.CodeUnavailable},
		{403, coded("AuthorizationError", "not authorized"), lane.Denied, lane.CodeDenied},
		{403, coded("InvalidClientTokenId", ""), lane.Denied, lane.CodeDenied},
		{403, coded("SignatureDoesNotMatch", "the request was x-amz-security-token: Geh3im"), lane.Denied, lane.CodeDenied},
	} {
		target := snsAccount(t, func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.text)
		})
		why := newSender(t, target, ofSNS).deliver(t.Context(), recordAt("e", "k", topic, 1))
		switch {
		case why == nil && test.code == "":
		case why == nil, test.code == "", why.Meaning != test.meaning, why.Code != test.code, strings.Contains(why.Error(), "Geh3im"):
			t.Errorf("%d %s: %+v", test.status, test.text, why)
		}
	}
}

// TestSNSRequest: a request has what the Query protocol of SNS names, in the region of the address.
func TestSNSRequest(t *testing.T) {
	for region, arn := range map[string]string{
		"eu-central-1": "arn:aws:sns:eu-central-1:123456789012:orders.fifo", "cn-north-1": "arn:aws-cn:sns:cn-north-1:123456789012:orders.fifo",
		"us-gov-west-1": "arn:aws-us-gov:sns:us-gov-west-1:123456789012:orders.fifo",
	} {
		var forms []url.Values
		target := account(t, func(w http.ResponseWriter, r *http.Request) {
			form := formOf(t, r)
			forms = append(forms, form)
			if authorization := r.Header.Get("Authorization"); r.Method != http.MethodPost || r.URL.Path != "/" || !strings.Contains(authorization, "/"+region+"/sns/aws4_request") {
				t.Error(r.Method, r.URL, authorization)
			}
			if form.Get("Action") == "GetTopicAttributes" {
				_, _ = io.WriteString(w, snsAttributes("SubscriptionsConfirmed", "1"))
			}
		})
		target.Region = region
		rec := recordAt("e", "k", topic, 1)
		rec.Value = []byte("a&b=ä\n𝄞")
		rec.Headers = append(rec.Headers, router.Header{Name: "bytes", Value: []byte{0, 0xff}})
		_ = newSender(t, target, ofSNS).deliver(t.Context(), rec) // the answer is none
		const entry = "PublishBatchRequestEntries.member.1."
		want := map[string]string{
			"Action": "PublishBatch", "Version": "2010-03-31", "TopicArn": arn, entry + "Id": "0", entry + "Message": "a&b=ä\n𝄞",
			entry + "MessageGroupId": "k", entry + "MessageDeduplicationId": rec.EventID(),
		}
		for i, a := range [][3]string{{"id", "String", "e"}, {"outboxcdc-key", "String", "k"}, {"type", "String", "order.placed"}, {router.HeaderPosition, "String", rec.Position()}, {"bytes", "Binary", "AP8="}} {
			attribute := fmt.Sprintf("%sMessageAttributes.entry.%d.", entry, i+1)
			want[attribute+"Name"], want[attribute+"Value.DataType"], want[attribute+"Value."+a[1]+"Value"] = a[0], a[1], a[2]
		}
		asks := map[string]string{"Action": "GetTopicAttributes", "Version": "2010-03-31", "TopicArn": arn}
		for i, want := range []map[string]string{asks, want} {
			if len(forms) != 2 || len(forms[i]) != len(want) {
				t.Fatalf("requests %v, want %v", forms, want)
			}
			for name, value := range want {
				if forms[i].Get(name) != value {
					t.Errorf("%s: %q, want %q", name, forms[i].Get(name), value)
				}
			}
		}
	}
}

// TestSNSSubscription: a queue that subscribes to a topic gets what docs/sinks.md says, once while it has it, and a
// message of the size that the topic takes.
func TestSNSSubscription(t *testing.T) {
	server := sqstest.StartSNS(t)
	server.Create(topic)
	target := Target{URL: server.URL, Region: sqstest.Region, Credentials: sqstest.Credentials}
	null := recordAt("null", "with space", topic, 2)
	null.Value = nil
	binary := recordAt("binary", "k", topic, 3)
	binary.Value, binary.Key = []byte{0, 0xff}, nil
	text := recordAt("text", "k", topic, 1)
	text.Value = []byte("ä & <b> + %41\n𝄞")
	largest := recordAt("largest", "k", topic, 4)
	s := newSender(t, target, ofSNS)
	for largest.Value = []byte(strings.Repeat("x", SNS.maxMessage())); s.Check(largest) != nil; largest.Value = largest.Value[1:] {
		if s.Check(largest).Cause != router.TooLarge {
			t.Fatal(s.Check(largest))
		}
	}
	for range 2 { // of two daemons
		s := newSender(t, target, ofSNS)
		for _, rec := range []*router.Record{text, null, binary, largest} {
			if p := s.Check(rec); p != nil {
				t.Error(p)
			}
			if why := s.deliver(t.Context(), rec); why != nil {
				t.Fatal(why)
			}
		}
	}
	want := map[string]string{
		"text":    string(text.Value) + " k id=text outboxcdc-key=k type=order.placed",
		"null":    "- sha256- id=null outboxcdc-body=null outboxcdc-key=with space type=order.placed",
		"binary":  "AP8= binary id=binary outboxcdc-body=base64 type=order.placed",
		"largest": string(largest.Value) + " k id=largest outboxcdc-key=k type=order.placed",
	}
	wantMessages(t, server.Read(topic), want)
}

// TestSNSSignature: moto, which computes signatures by the rules of AWS itself, takes the signature of a request, and
// refuses that of another secret, and a user without permission.
func TestSNSSignature(t *testing.T) {
	server := sqstest.StartSNS(t)
	server.Create(topic)
	const user = "daemon"
	server.SNS("iam", "Action", "CreateUser", "UserName", user)
	keys := server.SNS("iam", "Action", "CreateAccessKey", "UserName", user)
	between := func(tag string) string {
		_, rest, _ := strings.Cut(keys, "<"+tag+">")
		text, _, _ := strings.Cut(rest, "</"+tag+">")
		return text
	}
	with := func(id, secret string) *lane.Failure {
		target := Target{URL: server.URL, Region: sqstest.Region, Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, nil
		})}
		return newSender(t, target, ofSNS, func(c *Config) { c.Timeout = time.Minute }).deliver(t.Context(), recordAt("e", "k", topic, 1))
	}
	server.Authorize(true)
	id, secret := between("AccessKeyId"), between("SecretAccessKey")
	for what, key := range map[string][2]string{"unknown key": {"AKIAIOSFODNN7EXAMPLE", secret}, "other secret": {id, "Geh3im"}, "no permission": {id, secret}} {
		if why := with(key[0], key[1]); why == nil || !strings.Contains(why.Error(), "status 403") || strings.Contains(why.Error(), key[1]) { // not in the form of SNS
			t.Errorf("%s: %v", what, why)
		}
	}
	server.Authorize(false)
	server.SNS("iam", "Action", "PutUserPolicy", "UserName", user, "PolicyName", "p", "PolicyDocument",
		`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "sns:*", "Resource": "*"}}`)
	server.Authorize(true)
	if why := with(id, secret); why != nil {
		t.Error(why)
	}
}

// TestSNSDurability: what doctor says about a topic is what its attributes say, and nothing is known that cannot be
// read.
func TestSNSDurability(t *testing.T) {
	status, text := 200, ""
	target := account(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	r := testReceiver(t, target, ofSNS)
	attributes, coded := snsAttributes, snsError
	for _, test := range []struct {
		status      int
		text, means string
		risks       []string
	}{
		{200, attributes("FifoTopic", "true", "SubscriptionsConfirmed", "1"), "which was not read", nil},
		{200, attributes("FifoTopic", "true", "SubscriptionsConfirmed", "1", "FifoThroughputScope", "Topic"), "orders.fifo takes 3000 messages", nil},
		{200, attributes("FifoTopic", "true", "SubscriptionsConfirmed", "1", "FifoThroughputScope", "MessageGroup"), "orders.fifo takes many", nil},
		{200, attributes("FifoTopic", "true", "SubscriptionsConfirmed", "0"), "", []string{"it has no confirmed subscription"}},
		{200, attributes(), "", []string{"it is no FIFO topic", "no number as SubscriptionsConfirmed"}},
		{404, coded("NotFound"), "", []string{"does not exist, so its events wait; create it with FifoTopic true"}},
		{403, coded("AuthorizationError"), "", []string{"allow sns:GetTopicAttributes"}},
	} {
		status, text = test.status, test.text
		means, risks, err := r.Durability(t.Context(), []string{topic})
		ok := err == nil && strings.Contains(means, test.means) && len(risks) == len(test.risks)
		for i := range risks {
			ok = ok && strings.HasPrefix(risks[i], "the topic orders.fifo: ") && strings.Contains(risks[i], test.risks[i])
		}
		if !ok {
			t.Errorf("%s: %s, %q, %v", test.text, means, risks, err)
		}
	}
	status, text = 500, ""
	if _, _, err := r.Durability(t.Context(), []string{topic}); err == nil {
		t.Error("an outage")
	}
}
