package lane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Meaning is what an answer, or the lack of one, means for the records that it is about.
type Meaning int

// The meanings of an answer that is no acknowledgement.
const (
	Again   Meaning = iota // the same request may be taken later: an outage
	Missing                // the receiver does not know the topic: it may be created
	Denied                 // the receiver refuses the daemon: the session ends
	Refused                // the receiver refuses what a record contains: the session ends
)

// Codes that several sinks have. A sink adds its own to NewMetrics.
const (
	CodeConnection  = "CONNECTION"  // no connection, or it was lost before the answer
	CodeTimeout     = "TIMEOUT"     // no answer in time
	CodeTLS         = "TLS"         // the client or the receiver does not accept the other's certificate
	CodeSecret      = "SECRET"      // our certificate, secret or address cannot be read
	CodeUnavailable = "UNAVAILABLE" // the receiver answers that it cannot take anything now
	CodeMissing     = "MISSING"     // it does not know the topic
	CodeDenied      = "DENIED"      // it refuses the daemon
	CodeRefused     = "REFUSED"     // it refuses the content
)

// Failure is an error of a receiver. The relay distinguishes failures by their methods.
type Failure struct {
	Op      string // what was attempted
	Code    string // a short name from a closed set, for metrics
	Meaning Meaning
	Err     error
	Remedy  string        // what a person can do; "": it is a matter of time
	Wait    time.Duration // for how long the receiver asks not to be asked again
	refused []*Item
}

func (f *Failure) Error() string {
	text := f.Op + ": " + f.Err.Error()
	if f.Remedy != "" {
		text += "; remedy: " + f.Remedy
	}
	return text
}

func (f *Failure) Unwrap() error { return f.Err }

// Reason returns the code.
func (f *Failure) Reason() string { return f.Code }

// PermissionDenied reports whether the receiver refuses the daemon.
func (f *Failure) PermissionDenied() bool { return f.Meaning == Denied }

// isOutage reports whether the receiver has not answered at all.
func (f *Failure) isOutage() bool {
	return f != nil && (f.Code == CodeConnection || f.Code == CodeTimeout)
}

// Refused returns the event numbers of the records, one of which the receiver refuses.
func (f *Failure) Refused() ([]uint64, bool) {
	var numbers []uint64
	for _, it := range f.refused {
		numbers = append(numbers, it.N)
	}
	return numbers, f.Meaning == Refused
}

// CodeOf returns the code of an error of the network.
func CodeOf(err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(tls.AlertError)), errors.As(err, new(tls.RecordHeaderError)),
		errors.As(err, new(x509.UnknownAuthorityError)), isAlert(err):
		return CodeTLS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return CodeTimeout
	}
	return CodeConnection
}

// isAlert reports whether the receiver has sent a TLS alert, such as "bad certificate".
func isAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// Silence is a time for which a receiver has asked not to be asked. It outlives a session.
type Silence struct {
	Max time.Duration // maximum time for which it is kept, so that an answer cannot stop delivery

	mu      sync.Mutex
	until   time.Time
	because error
}

// Keep notes that the receiver has asked for silence.
func (s *Silence) Keep(d time.Duration, because error) {
	if d <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(min(d, s.Max)); until.After(s.until) {
		s.until, s.because = until, because
	}
}

// Left returns for how long the silence still lasts, and the answer that asked for it; 0: it does not.
func (s *Silence) Left() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := time.Until(s.until)
	if left <= 0 {
		return 0, nil
	}
	return left, &Failure{Op: fmt.Sprintf("wait until %s, as the receiver has asked", s.until.UTC().Format(time.RFC3339)), Code: CodeUnavailable, Err: s.because}
}
