package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// parse reads an address. The error does not contain it.
func parse(text string) (amqp.URI, error) {
	u, err := amqp.ParseURI(text)
	if err != nil {
		return u, errAddress
	}
	return u, nil
}

func (t *transport) host() string {
	return net.JoinHostPort(t.address.Host, strconv.Itoa(t.address.Port))
}

// heartbeat is how often each side says that it is there. A side that has said nothing for three of them is gone.
const heartbeat = 10 * time.Second

// maxFrame is the size of a frame that we ask for. It is the broker's own default.
const maxFrame = 128 << 10

// dial opens a connection and logs in, within the timeout.
func (t *transport) dial(ctx context.Context) (*connection, *lane.Failure) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	c, err := t.open(ctx)
	if err == nil {
		return c, nil
	}
	f := &lane.Failure{Op: "connect to RabbitMQ at " + t.host(), Code: lane.CodeOf(err), Err: err}
	answer, answered := serverError(err)
	switch {
	case answered && isLimit(answer):
		f.Code, f.Err, f.Remedy = lane.CodeUnavailable, answerText(answer), limitRemedy
	case answered && (answer.Code == amqp.AccessRefused || answer.Code == amqp.NotAllowed):
		f.Meaning, f.Code, f.Err = lane.Denied, lane.CodeDenied, answerText(answer)
		f.Remedy = "let the broker accept the user and the password in receiver.url, and the user the virtual host"
	case answered:
		f.Code, f.Err = lane.CodeUnavailable, answerText(answer)
	case ctx.Err() != nil:
		f.Code, f.Err = lane.CodeTimeout, fmt.Errorf("no connection within %s (receiver.timeout)", t.cfg.Timeout)
	case errors.As(err, new(*amqp.Error)):
		// The client library says "username or password not allowed" whenever the connection is lost during the login.
		f.Code, f.Err = lane.CodeConnection, errors.New("the connection was lost during the login, without an answer")
	}
	return nil, f
}

func (t *transport) open(ctx context.Context) (*connection, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", t.host())
	if err != nil {
		return nil, err
	}
	// The handshakes know no context.
	forget := context.AfterFunc(ctx, func() { _ = raw.Close() })
	c, err := t.login(ctx, raw)
	if !forget() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

func (t *transport) login(ctx context.Context, raw net.Conn) (*connection, error) {
	stream := raw
	if t.address.Scheme == "amqps" {
		conf := t.tls.Clone() // of nil: nil
		if conf == nil {
			conf = &tls.Config{}
		}
		if conf.ServerName == "" {
			conf.ServerName = t.address.Host
		}
		client := tls.Client(raw, conf)
		if err := client.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		stream = client
	}
	props := amqp.NewConnectionProperties()
	props["connection_name"] = t.cfg.Name
	conn := newGatheringConn(stream)
	ac, err := amqp.Open(conn, amqp.Config{
		SASL: []amqp.Authentication{&plain{props, t.address.Username, t.address.Password}}, Vhost: t.address.Vhost, Locale: "en_US",
		Heartbeat: heartbeat, FrameSize: maxFrame, Properties: props,
	})
	if err != nil {
		return nil, cmp.Or(conn.refusal(), err)
	}
	return newConnection(ac, raw, t.cfg), nil
}

// plain logs in with user and password. It also asks the broker to answer a wrong password: the client library does
// not, and then a wrong password looks like a broker that has died.
type plain struct {
	props          amqp.Table
	user, password string
}

// Mechanism is the name of the method in SASL.
func (*plain) Mechanism() string { return "PLAIN" }

// Response is called when the capabilities are in the properties, which are sent next.
func (p *plain) Response() string {
	if can, ok := p.props["capabilities"].(amqp.Table); ok {
		can["authentication_failure_close"] = true
	}
	return "\x00" + p.user + "\x00" + p.password
}

// String hides the password.
func (*plain) String() string { return "PLAIN" }

// serverError returns the error that the broker itself has answered. The library has errors of the same type.
func serverError(err error) (*amqp.Error, bool) {
	answer, ok := errors.AsType[*amqp.Error](err)
	return answer, ok && answer.Server
}

const limitRemedy = "raise the limit of the broker, or close connections"

var limitText = regexp.MustCompile(`connection limit |number of channels opened `)

// isLimit reports whether the broker has too many connections or channels now. It says so with the code of a refusal.
func isLimit(answer *amqp.Error) bool {
	return answer.Code == amqp.NotAllowed && limitText.MatchString(answer.Reason)
}

func answerText(e *amqp.Error) error {
	return fmt.Errorf("RabbitMQ answers %d %s", e.Code, e.Reason)
}
