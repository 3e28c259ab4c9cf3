package httpsink

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// Media types of the HTTP binding of CloudEvents 1.0.2.
const (
	typeEvent = "application/cloudevents+json; charset=UTF-8"
	typeBatch = "application/cloudevents-batch+json; charset=UTF-8"
)

// forwarded are the headers of a record that become headers of its request, if it is not sent in a batch.
var forwarded = [...]string{"traceparent", "tracestate", "outboxcdc-position"}

// message is the content of a request. It is the same when the same records are sent again.
type message struct {
	header http.Header
	id     string // identifies exactly this content, because receivers drop a message whose id they know
	body   []byte
}

// newMessage makes a message of one event, or of several in batched mode.
func newMessage(items []*lane.Item, batched bool) *message {
	m := &message{header: http.Header{}}
	if !batched {
		rec := items[0].Record
		for i := range rec.Headers {
			if h := &rec.Headers[i]; len(h.Value) > 0 && slices.Contains(forwarded[:], h.Name) {
				m.header.Set(h.Name, encodeHeader(string(h.Value)))
			}
		}
		m.id, m.body = encodeHeader(string(rec.ID)), rec.Value
		m.header.Set("Content-Type", typeEvent)
		m.header.Set("Ce-Id", m.id)
		return m
	}
	size := 1 + len(items)
	for _, it := range items {
		size += len(it.Record.Value)
	}
	body := append(make([]byte, 0, size), '[')
	for i, it := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, it.Record.Value...)
	}
	m.header.Set("Content-Type", typeBatch)
	m.body = append(body, ']')
	sum := sha256.Sum256(m.body)
	m.id = "batch_" + hex.EncodeToString(sum[:16])
	return m
}

// request makes the request of a message for one try.
func (t *transport) request(ctx context.Context, to *url.URL, m *message, now time.Time) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(m.body))
	if err != nil {
		return nil, err
	}
	req.Header = m.header
	req.Header.Set("User-Agent", t.receiver.cfg.Name)
	if user := req.URL.User; user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
		req.URL.User = nil
	}
	if len(t.target.Secrets) > 0 {
		at := strconv.FormatInt(now.Unix(), 10)
		req.Header.Set("Webhook-Id", m.id)
		req.Header.Set("Webhook-Timestamp", at)
		req.Header.Set("Webhook-Signature", sign(t.target.Secrets, m.id, at, m.body))
	}
	return req, nil
}

// sign returns the signatures of a message, one for each secret, by the convention of Standard Webhooks.
func sign(secrets [][]byte, id, timestamp string, body []byte) string {
	var all []string
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}

// secretPrefix begins a secret of Standard Webhooks.
const secretPrefix = "whsec_"

// ParseSecrets reads secrets of Standard Webhooks, separated by white space. While a secret is rotated there are two;
// each request is signed with all of them.
func ParseSecrets(text string) ([][]byte, error) {
	var all [][]byte
	for _, s := range strings.Fields(text) {
		encoded, isSecret := strings.CutPrefix(s, secretPrefix)
		secret, err := base64.StdEncoding.DecodeString(encoded)
		if !isSecret || err != nil {
			return nil, errors.New("the secret (not shown) is not " + secretPrefix + " and a text in base64")
		}
		if len(secret) < 24 || len(secret) > 64 {
			return nil, fmt.Errorf("the secret (not shown) has %d bytes; Standard Webhooks requires 24 to 64", len(secret))
		}
		all = append(all, secret)
	}
	return all, nil
}

// encodeHeader returns a text as the value of a header, as the HTTP binding of CloudEvents requires: a space, a double
// quote, a percent sign and everything that is not printable ASCII are percent-encoded.
func encodeHeader(text string) string {
	clean := true
	for i := range len(text) {
		clean = clean && isPlain(text[i])
	}
	if clean {
		return text
	}
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func isPlain(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' }
