package httpsink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// meaning is what an answer, or the lack of one, means for the events of its request.
type meaning int

const (
	again   meaning = iota // the same request may be taken later: an outage
	acked                  // the receiver has stored the events
	missing                // the receiver does not know the address: it may be created
	denied                 // the receiver refuses the daemon
	refused                // the receiver refuses what the request contains
)

// meaningOf returns the meaning of a status code. A code that is not known to be anything else is an outage: only a
// 4xx says that the request itself is wrong.
func meaningOf(status int) meaning {
	switch {
	case status >= 200 && status < 300:
		return acked
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		return denied
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusGone:
		return missing
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status == http.StatusMisdirectedRequest:
		return again
	case status >= 400 && status < 500:
		return refused
	}
	return again
}

// Reasons of errors: a closed set.
const (
	reasonConnection  = "CONNECTION"  // no connection, or it was lost before the answer
	reasonTimeout     = "TIMEOUT"     // no answer in time
	reasonTLS         = "TLS"         // the client or the receiver does not accept the other's certificate
	reasonSecret      = "SECRET"      // our certificate, secret or address cannot be read
	reasonUnavailable = "UNAVAILABLE" // 5xx, 408, 425, 429 and other codes that ask to come again
	reasonRedirect    = "REDIRECT"    // 3xx
	reasonMissing     = "MISSING"     // 404, 405, 410
	reasonDenied      = "DENIED"      // 401, 403, 407
	reasonRefused     = "REFUSED"     // any other 4xx
)

// failure is an error of the receiver. Callers distinguish failures by their methods, and do not need the type.
type failure struct {
	op     string // what was attempted
	reason string
	events []uint64 // whose content was refused
	err    error
}

func (f *failure) Error() string {
	text := f.op + ": " + f.err.Error()
	switch f.reason {
	case reasonDenied:
		text += "; remedy: let the receiver accept the daemon (http_sink.secret, http_sink.tls.cert_file, or the user in http_sink.url)"
	case reasonRedirect:
		text += "; remedy: set http_sink.url to the new address, because redirects are not followed"
	case reasonMissing:
		text += "; remedy: let the receiver accept POST at the path of http_sink.url"
	}
	return text
}
func (f *failure) Unwrap() error { return f.err }

// Reason returns one of the constants. It is a label value from a closed set.
func (f *failure) Reason() string { return f.reason }

// PermissionDenied reports whether the receiver refuses the daemon.
func (f *failure) PermissionDenied() bool { return f.reason == reasonDenied }

// Refused returns the event numbers of a request whose content the receiver refuses.
func (f *failure) Refused() ([]uint64, bool) { return f.events, f.reason == reasonRefused }

// reasonOf returns the reason of an error without an answer.
func reasonOf(err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(tls.AlertError)), errors.As(err, new(tls.RecordHeaderError)),
		errors.As(err, new(x509.UnknownAuthorityError)), isAlert(err):
		return reasonTLS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return reasonTimeout
	}
	return reasonConnection
}

// isAlert reports whether the receiver has sent a TLS alert, such as "bad certificate".
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// maxQuoted is how much of an answer errors quote.
const maxQuoted = 256

// answerError describes an answer that is not a 2xx. Its body is quoted in part, without the daemon's own secrets,
// which a receiver may repeat.
func (p *Producer) answerError(op string, res *http.Response) *failure {
	text := "the receiver answers " + res.Status
	if location := res.Header.Get("Location"); location != "" && res.StatusCode < 400 {
		text += " and redirects to " + p.withoutSecrets(withoutQuery(location))
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxQuoted)) // what was read is quoted, whatever ended it
	if len(body) > 0 {
		text += fmt.Sprintf(", %q", p.withoutSecrets(string(body)))
	}
	f := &failure{op: op, err: errors.New(text)}
	switch meaningOf(res.StatusCode) {
	case denied:
		f.reason = reasonDenied
	case missing:
		f.reason = reasonMissing
	case refused:
		f.reason = reasonRefused
	default:
		f.reason = reasonUnavailable
		if res.StatusCode >= 300 && res.StatusCode < 400 {
			f.reason = reasonRedirect
		}
	}
	return f
}

func (p *Producer) withoutSecrets(text string) string {
	for _, s := range p.secrets {
		text = strings.ReplaceAll(text, s, "xxxxx")
	}
	return text
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
