package natssink

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

var errAddress = errors.New("the address (not shown, it may have a secret) is not a list of nats or tls URLs with a host")

// parse reads the addresses. The error does not contain them.
func parse(text string) (hosts string, tls bool, err error) {
	var all []string
	for part := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		if err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return "", false, errAddress
		}
		all, tls = append(all, u.Host), tls || u.Scheme == "tls"
	}
	return strings.Join(all, ", "), tls, nil
}

// connection is one connection to a server.
type connection struct {
	nc    *nats.Conn
	life  context.Context // ends with the connection
	end   context.CancelFunc
	inbox string // what the subjects of answers begin with

	mu      sync.Mutex         // guards the following
	denied  error              // what the server has refused, so that the connection was cut
	flights map[uint64]*flight // by the number at the end of the subject of the answer
	last    uint64
}

// Closed reports whether the connection has ended.
func (c *connection) Closed() bool { return c.nc.IsClosed() }

// End cuts the connection. What is not sent yet is dropped: the client library would send it first.
func (c *connection) End() {
	c.end()
	c.nc.Close()
}

// noteError cuts the connection after a refusal: the server does not answer the message that it refuses.
func (c *connection) noteError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrPermissionViolation) {
		c.mu.Lock()
		c.denied = err
		c.mu.Unlock()
		c.end()
	}
}

// refusal returns what the server has refused, if it is about a subject, or about all answers.
func (c *connection) refusal(subject string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.denied != nil && (strings.Contains(c.denied.Error(), fmt.Sprintf("Publish to %q", subject)) || strings.Contains(c.denied.Error(), "Subscription to")) {
		return c.denied
	}
	return nil
}

// dialer makes connections that are cut when ctx ends. The client library knows no context.
type dialer struct {
	ctx     context.Context
	timeout time.Duration
}

// Dial implements [nats.CustomDialer]. It tries all addresses of a name.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: d.timeout}).DialContext(d.ctx, network, address)
	if err == nil {
		context.AfterFunc(d.ctx, func() {
			if tcp, ok := raw.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = raw.Close()
		})
	}
	return raw, err
}

// dial connects to one of the servers, and logs in.
func (t *transport) dial(ctx context.Context) (*connection, *lane.Failure) {
	c := &connection{flights: map[uint64]*flight{}}
	c.life, c.end = context.WithCancel(context.Background())
	forget := context.AfterFunc(ctx, c.end) // until it is connected
	err := t.login(c)
	if !forget() {
		err = errors.Join(ctx.Err(), err)
	}
	if err == nil {
		return c, nil
	}
	c.end()
	f := &lane.Failure{Op: "connect to NATS at " + t.hosts, Code: lane.CodeOf(err), Err: err}
	switch {
	case isLogin(err):
		f.Meaning, f.Code = lane.Denied, lane.CodeDenied
		f.Remedy = "let the server accept the user and password, or the token, in receiver.url, or receiver.secret_file"
		if until := t.target.Login.Until; !until.IsZero() && time.Now().After(until) {
			f.Remedy = fmt.Sprintf("the JWT in receiver.secret_file has expired at %s; put a new one there", until.UTC().Format(time.RFC3339))
		}
	case errors.Is(err, nats.ErrSecureConnWanted):
		f.Code, f.Remedy = lane.CodeTLS, "let receiver.url begin with nats://, or give the server a certificate"
	case errors.Is(err, nats.ErrTimeout), f.Code == lane.CodeTimeout:
		f.Code, f.Err = lane.CodeTimeout, fmt.Errorf("no connection within %s (receiver.timeout)", t.cfg.Timeout)
	case errors.Is(err, nats.ErrNoServers):
		f.Err = errors.New("the connection is refused")
	}
	return nil, f
}

// isLogin reports whether the server has refused the login.
func isLogin(err error) bool {
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

func (t *transport) login(c *connection) (err error) {
	options := []nats.Option{
		nats.Name(t.cfg.Name), nats.Timeout(t.cfg.Timeout), nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.SkipHostLookup(),
		nats.SetCustomDialer(dialer{c.life, t.cfg.Timeout}), nats.PingInterval(pingInterval), nats.ErrorHandler(c.noteError), nats.ClosedHandler(c.noteClosed),
	}
	if t.tls {
		options = append(options, nats.Secure(t.target.TLS))
	}
	if t.target.Login.Option != nil {
		options = append(options, t.target.Login.Option)
	}
	if c.nc, err = nats.Connect(t.target.URL, options...); err != nil {
		return err
	}
	if err = c.listen(t.cfg.Timeout); err == nil {
		err = c.nc.FlushTimeout(t.cfg.Timeout) // max_payload of the account comes after the login
	}
	if err != nil {
		c.nc.Close()
	}
	return err
}

// pingInterval is how often the server is asked whether it is there. One that has not answered twice is gone.
const pingInterval = 10 * time.Second

var errCredentials = errors.New("the content (not shown) is neither a credentials file, with the JWT and the seed of a user, nor the seed of an NKey")

// Login is how the daemon logs in, besides what is in the address.
type Login struct {
	Option nats.Option // nil: not at all
	Until  time.Time   // zero: it does not expire, or it is not known
}

// ParseCredentials returns the login by a credentials file, which has a user's JWT and seed, or by a seed alone.
func ParseCredentials(text []byte) (Login, error) {
	pair, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return Login{}, errCredentials
	}
	if bytes.Contains(text, []byte("-BEGIN NATS USER JWT-")) {
		return Login{nats.UserCredentialBytes(text), expiry(text)}, nil
	}
	public, err := pair.PublicKey()
	if err != nil {
		return Login{}, errCredentials
	}
	return Login{Option: nats.Nkey(public, pair.Sign)}, nil
}

// expiry returns when the JWT of a credentials file expires. It decides nothing: the server does.
func expiry(text []byte) time.Time {
	jwt, err := nkeys.ParseDecoratedJWT(text)
	parts := strings.Split(jwt, ".")
	if err != nil || len(parts) != 3 {
		return time.Time{}
	}
	var claims struct {
		Exp int64 `json:"exp"`
	}
	decoded, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(decoded, &claims) != nil || claims.Exp <= 0 {
		return time.Time{}
	}
	return time.Unix(claims.Exp, 0)
}
