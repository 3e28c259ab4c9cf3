package awssink

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// snsClient calls SNS by its Query protocol: a form by POST, signed by the client of AWS, and an answer in XML. The
// client of AWS for SNS would be half a megabyte of the binary (docs/adr/0028-sinks.md).
type snsClient struct {
	url, region, name string
	arn               string // of a topic, without its name
	credentials       aws.CredentialsProvider
	http              *http.Client
	signer            *v4.Signer
}

func newSNS(target *Target, at *address, h *http.Client, name string) *snsClient {
	return &snsClient{
		at.base + "/", target.Region, name, "arn:" + partition(target.Region) + ":sns:" + target.Region + ":" + at.account + ":", target.Credentials, h, v4.NewSigner(),
	}
}

// maxAnswer bounds the memory for an answer.
const maxAnswer = 1 << 20

func (c *snsClient) publish(ctx context.Context, name string, batch []*message) (*outcome, error) {
	form := url.Values{"TopicArn": {c.arn + name}}
	for i, m := range batch {
		m.forSNS(form, i)
	}
	var answer struct {
		XMLName xml.Name      `xml:"PublishBatchResponse"` // nothing else is an answer
		Stored  []storedEntry `xml:"PublishBatchResult>Successful>member"`
		Failed  []failedEntry `xml:"PublishBatchResult>Failed>member"`
	}
	if err := c.call(ctx, "PublishBatch", form, &answer); err != nil {
		return nil, err
	}
	return &outcome{answer.Stored, answer.Failed}, nil
}

func (c *snsClient) attributes(ctx context.Context, name string) (map[string]string, error) {
	var answer struct {
		XMLName xml.Name `xml:"GetTopicAttributesResponse"`
		Entries []struct {
			Key   string `xml:"key"`
			Value string `xml:"value"`
		} `xml:"GetTopicAttributesResult>Attributes>entry"`
	}
	if err := c.call(ctx, "GetTopicAttributes", url.Values{"TopicArn": {c.arn + name}}, &answer); err != nil {
		return nil, err
	}
	all := make(map[string]string, len(answer.Entries))
	for _, e := range answer.Entries {
		all[e.Key] = e.Value
	}
	return all, nil
}

// forSNS writes the message into the form of a request. Its id is its place.
func (m *message) forSNS(form url.Values, place int) {
	entry := "PublishBatchRequestEntries.member." + strconv.Itoa(place+1) + "."
	form.Set(entry+"Id", strconv.Itoa(place))
	form.Set(entry+"Message", m.body)
	form.Set(entry+"MessageGroupId", m.group)
	form.Set(entry+"MessageDeduplicationId", m.once)
	for i, a := range m.attributes {
		attribute := entry + "MessageAttributes.entry." + strconv.Itoa(i+1) + "."
		form.Set(attribute+"Name", a.name)
		if a.bytes == nil {
			form.Set(attribute+"Value.DataType", "String")
			form.Set(attribute+"Value.StringValue", a.text)
		} else {
			form.Set(attribute+"Value.DataType", "Binary")
			form.Set(attribute+"Value.BinaryValue", base64.StdEncoding.EncodeToString(a.bytes))
		}
	}
}

// call sends a form, and reads the answer. Its errors have the types of the client of AWS.
func (c *snsClient) call(ctx context.Context, action string, form url.Values, answer any) error {
	form.Set("Action", action)
	form.Set("Version", "2010-03-31")
	body := form.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	req.Header.Set("User-Agent", c.name)
	keys, err := c.credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(body))
	if err := c.signer.SignHTTP(ctx, keys, req, hex.EncodeToString(sum[:]), "sns", c.region, time.Now()); err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		if err = xml.Unmarshal(text, answer); err == nil {
			return nil
		}
	}
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: res}, Err: errorOf(text)}
}

// errorOf returns the error that an answer has.
func errorOf(text []byte) error {
	var answer struct {
		Code    string `xml:"Error>Code"`
		Message string `xml:"Error>Message"`
	}
	if err := xml.Unmarshal(text, &answer); err != nil || answer.Code == "" {
		return errors.New("the answer has no code of an error")
	}
	return &smithy.GenericAPIError{Code: answer.Code, Message: answer.Message}
}
