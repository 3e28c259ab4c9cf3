package brokerauth

import (
	"context"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/credential"
)

const (
	// shareFor is how long a token is given to further connections, from the end of the request that has made it:
	// a probe, or the begin of a session, opens some connections one after the other, and a command may take
	// seconds. The time is not counted from the begin of the request, because then a slow command, for which
	// tokens are shared, would leave nothing of it. So a token that is revoked at once is given for at most
	// shareFor, and the time of one request.
	shareFor = 10 * time.Second
	// shareUntil is how long before a token expires it is given last: a connection must be open by then. A token
	// that lives shorter is not shared. A token that does not say when it expires is expected to live longer than
	// shareFor: sarama asks for another one when at most 95 % of its life have passed.
	shareUntil = 10 * time.Second
)

// shared gives the same token to connections that ask for one within a short time. Sarama asks when it opens or
// reauthenticates a connection, for each in a goroutine of its own, with the lock of that connection.
type shared struct {
	ctx     context.Context // ends with the session's connections
	request func(context.Context) (string, error)

	mu   sync.Mutex
	last *tokenRequest // nil: none yet
}

// tokenRequest is one request for a token. Its fields are set before done is closed.
type tokenRequest struct {
	done  chan struct{}
	token string
	err   error
	until time.Time // when the token is given last; zero: to nothing but the connections that wait
}

// get returns the token of an earlier request, or of the one that runs now, or of a new one. The connections that
// wait for a request share its failure, so that they end together, and the next one requests again.
func (s *shared) get() (string, error) {
	s.mu.Lock()
	r := s.last
	if r != nil && !r.over(time.Now()) {
		s.mu.Unlock()
		select {
		case <-r.done:
			return r.token, r.err
		case <-s.ctx.Done():
			return "", context.Cause(s.ctx)
		}
	}
	r = &tokenRequest{done: make(chan struct{})}
	s.last = r
	s.mu.Unlock()
	defer close(r.done)
	if r.token, r.err = s.request(s.ctx); r.err == nil {
		r.until = time.Now().Add(shareFor)
		if ends, known := credential.Expiry(r.token); known && ends.Add(-shareUntil).Before(r.until) {
			r.until = ends.Add(-shareUntil)
		}
	}
	return r.token, r.err
}

// over reports whether the request has ended, and its token is not given any more.
func (r *tokenRequest) over(now time.Time) bool {
	select {
	case <-r.done:
		return !now.Before(r.until)
	default:
		return false
	}
}
