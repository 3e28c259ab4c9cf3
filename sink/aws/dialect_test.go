package awssink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// dialect is how a service speaks, as far as the proxy reads and changes it.
type dialect interface {
	isBatch(r *http.Request, body []byte) bool
	// without returns the ids of the events of a batch, and the request, without the entries that are refused.
	without(body []byte, refused func(place int, event string) bool) (events []string, rest []byte, err error)
	// withFailed returns an answer with further entries that failed; nil: an answer that has no other ones.
	withFailed(answer []byte, all []failed) ([]byte, error)
	// stored returns the answer that n messages are stored.
	stored(n int) string
	answer(w http.ResponseWriter, code string)
}

type failed struct {
	ID          string `json:"Id"`
	Code        string `json:"Code"`
	SenderFault bool   `json:"SenderFault"`
}

type sqsDialect struct{}

func (sqsDialect) isBatch(r *http.Request, _ []byte) bool {
	return strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".SendMessageBatch")
}

func (sqsDialect) without(body []byte, refused func(int, string) bool) (events []string, rest []byte, err error) {
	var b struct {
		QueueURL string            `json:"QueueUrl"`
		Entries  []json.RawMessage `json:"Entries"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, nil, err
	}
	var left []json.RawMessage
	for i, text := range b.Entries {
		var e struct {
			MessageAttributes struct{ ID struct{ StringValue string } }
		}
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, nil, err
		}
		if event := e.MessageAttributes.ID.StringValue; !refused(i, event) {
			events, left = append(events, event), append(left, text)
		}
	}
	rest, err = json.Marshal(map[string]any{"QueueUrl": b.QueueURL, "Entries": left})
	return events, rest, err
}

func (sqsDialect) withFailed(answer []byte, all []failed) ([]byte, error) {
	var a struct {
		Successful []json.RawMessage `json:"Successful"`
		Failed     []failed          `json:"Failed"`
	}
	if answer != nil {
		if err := json.Unmarshal(answer, &a); err != nil {
			return nil, err
		}
	}
	a.Failed = append(a.Failed, all...)
	return json.Marshal(a)
}

func (sqsDialect) stored(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"Id":"%d","MessageId":"m"}`, i)
	}
	return `{"Successful":[` + strings.Join(all, ",") + `]}`
}

func (sqsDialect) answer(w http.ResponseWriter, code string) {
	if code == "Throttled" {
		code = "RequestThrottled"
	}
	w.Header().Set("X-Amzn-Query-Error", code+";Sender")
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, `{"__type":"com.amazonaws.sqs#`+code+`","message":"the proxy says so"}`)
}

type snsDialect struct{}

func (snsDialect) isBatch(_ *http.Request, body []byte) bool {
	return bytes.Contains(body, []byte("Action=PublishBatch&"))
}

func (snsDialect) without(body []byte, refused func(int, string) bool) (events []string, rest []byte, err error) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, nil, err
	}
	left := url.Values{}
	for name, values := range form {
		if !strings.HasPrefix(name, snsEntries) {
			left[name] = values
		}
	}
	for i := 0; ; i++ {
		entry := fmt.Sprintf("%s%d.", snsEntries, i+1)
		if !form.Has(entry + "Id") {
			break
		}
		event := ""
		for j := 1; form.Has(fmt.Sprintf("%sMessageAttributes.entry.%d.Name", entry, j)); j++ {
			if at := fmt.Sprintf("%sMessageAttributes.entry.%d.", entry, j); form.Get(at+"Name") == attributeID {
				event = form.Get(at + "Value.StringValue")
			}
		}
		if refused(i, event) {
			continue
		}
		events = append(events, event)
		for name, values := range form {
			if suffix, of := strings.CutPrefix(name, entry); of {
				left[fmt.Sprintf("%s%d.%s", snsEntries, len(events), suffix)] = values
			}
		}
	}
	return events, []byte(left.Encode()), nil
}

const snsEntries = "PublishBatchRequestEntries.member."

func (snsDialect) withFailed(answer []byte, all []failed) ([]byte, error) {
	text := string(answer)
	if answer == nil {
		text = snsResult("<Successful/><Failed/>")
	}
	var members strings.Builder
	for _, f := range all {
		fmt.Fprintf(&members, "<member><Id>%s</Id><Code>%s</Code><SenderFault>%v</SenderFault></member>", f.ID, f.Code, f.SenderFault)
	}
	if !strings.Contains(text, "<Failed/>") {
		return nil, fmt.Errorf("the answer has no place for what failed: %s", text)
	}
	return []byte(strings.Replace(text, "<Failed/>", "<Failed>"+members.String()+"</Failed>", 1)), nil
}

func (snsDialect) stored(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("<member><Id>%d</Id><MessageId>m</MessageId></member>", i)
	}
	return snsResult("<Successful>" + strings.Join(all, "") + "</Successful><Failed/>")
}

// snsAttributes is an answer with the attributes of a topic.
func snsAttributes(pairs ...string) string {
	var all strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&all, "<entry><key>%s</key><value>%s</value></entry>", pairs[i], pairs[i+1])
	}
	return "<GetTopicAttributesResponse><GetTopicAttributesResult><Attributes>" + all.String() + "</Attributes></GetTopicAttributesResult></GetTopicAttributesResponse>"
}

// snsError is an answer that a request has failed.
func snsError(code string) string {
	return "<ErrorResponse><Error><Code>" + code + "</Code></Error></ErrorResponse>"
}

// snsResult is an answer about a batch.
func snsResult(text string) string {
	return `<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishBatchResult>` + text + "</PublishBatchResult></PublishBatchResponse>"
}

func (snsDialect) answer(w http.ResponseWriter, code string) {
	if code == "AccessDenied" {
		code = "AuthorizationError"
	}
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, "<ErrorResponse><Error><Type>Sender</Type><Code>"+code+"</Code><Message>the proxy says so</Message></Error></ErrorResponse>")
}
