package httpsink

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// isAck reports whether a status code is an acknowledgement. Nothing else is.
func isAck(status int) bool { return status >= 200 && status < 300 }

// meaningOf returns the meaning of a status code that is no acknowledgement. One that is not known to be anything else
// is an outage: only a 4xx says that the request itself is wrong.
func meaningOf(status int) lane.Meaning {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		return lane.Denied
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusGone:
		return lane.Missing
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status == http.StatusMisdirectedRequest:
		return lane.Again
	case status >= 400 && status < 500:
		return lane.Refused
	}
	return lane.Again
}

// codeRedirect is the code of a 3xx.
const codeRedirect = "REDIRECT"

// maxQuoted is how much of an answer errors quote.
const maxQuoted = 256

// answerError describes an answer that is not a 2xx. Its body is quoted in part, without the daemon's own secrets,
// which a receiver may repeat.
func (t *transport) answerError(op string, res *http.Response) *lane.Failure {
	text := "the receiver answers " + res.Status
	if location := res.Header.Get("Location"); location != "" && res.StatusCode < 400 {
		text += " and redirects to " + t.withoutSecrets(withoutQuery(location))
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxQuoted)) // what was read is quoted, whatever ended it
	if len(body) > 0 {
		text += fmt.Sprintf(", %q", t.withoutSecrets(string(body)))
	}
	f := &lane.Failure{Op: op, Err: errors.New(text), Meaning: meaningOf(res.StatusCode)}
	switch {
	case f.Meaning == lane.Denied:
		f.Code = lane.CodeDenied
		f.Remedy = "let the receiver accept the daemon (receiver.secret, tls.cert_file, or the user in receiver.url)"
	case f.Meaning == lane.Missing:
		f.Code, f.Remedy = lane.CodeMissing, "let the receiver accept POST at the path of receiver.url"
	case f.Meaning == lane.Refused:
		f.Code = lane.CodeRefused
	case res.StatusCode >= 300 && res.StatusCode < 400:
		f.Code, f.Remedy = codeRedirect, "set receiver.url to the new address, because redirects are not followed"
	default:
		f.Code, f.Wait = lane.CodeUnavailable, retryAfter(res, time.Now())
	}
	return f
}

// withoutQuery masks the query and the user of an address, which may have a secret.
func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that is no URL"
	}
	if u.RawQuery != "" {
		u.RawQuery = "xxxxx"
	}
	u.User = nil
	return u.String()
}

// retryAfter returns the time in the header Retry-After; 0: there is none.
func retryAfter(res *http.Response, now time.Time) time.Duration {
	text := res.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
