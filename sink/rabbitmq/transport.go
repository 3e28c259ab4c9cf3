package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// transport is the [lane.Transport] of one session. It has one connection at a time, which all lanes share.
type transport struct {
	cfg      *Config
	address  amqp.URI
	tls      *tls.Config
	frameMax int
	tied     sync.Once
	link     *lane.Link[*connection]

	mu      sync.Mutex
	missing map[string]*lane.Gate // exchanges that the broker does not know; guarded by mu
}

// Healthy returns why the broker takes nothing now, if it has said so.
func (t *transport) Healthy() error {
	c := t.link.Current()
	if why, _ := c.isBlocked(); why != "" && !c.Closed() {
		return t.blockedFailure("", why)
	}
	return nil
}

func (t *transport) blockedFailure(op, why string) *lane.Failure {
	if op == "" {
		op = "send events"
	}
	return &lane.Failure{
		Op: op + " to " + t.host(), Code: lane.CodeUnavailable, Err: errors.New("RabbitMQ takes nothing now: " + why),
		Remedy: "see the alarms of the broker: it is short of memory or of disk space",
	}
}

// Close closes the connection.
func (t *transport) Close() { t.link.Current().close() }

// Deliver sends a message. All lanes need the connection, and the channel.
func (t *transport) Deliver(ctx context.Context, items []*lane.Item, done func(stored int, why *lane.Failure)) {
	t.tied.Do(func() { context.AfterFunc(ctx, t.link.End) }) // it is the same context in all calls
	rec := items[0].Record
	if why := t.passExchange(rec.Topic); why != nil {
		done(0, why)
		return
	}
	result := func(why *lane.Failure) {
		t.noteExchange(rec.Topic, why)
		if why != nil {
			done(0, why)
		} else {
			done(1, nil)
		}
	}
	c, why := t.link.Get(ctx)
	if why != nil {
		result(why)
		return
	}
	t.send(ctx, c, rec, result)
}

// passExchange returns why a try of an exchange that the broker does not know is not due.
func (t *transport) passExchange(exchange string) *lane.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.missing[exchange]; g != nil {
		return g.Pass(t.cfg.pauses())
	}
	return nil
}

func (t *transport) noteExchange(exchange string, why *lane.Failure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch g := t.missing[exchange]; {
	case why == nil:
		delete(t.missing, exchange)
	case !errors.As(why.Err, new(*unknownExchange)):
	case g == nil:
		t.missing[exchange] = &lane.Gate{Why: why}
	default:
		g.Why = why
	}
}

// send calls result once, with nil if the message is confirmed.
func (t *transport) send(ctx context.Context, c *connection, rec *router.Record, result func(why *lane.Failure)) {
	if why := c.awaitFree(ctx); why != "" {
		result(t.blockedFailure(op(rec), why)) // nothing was sent
		return
	}
	f := c.takeOff(rec)
	if f == nil {
		result(&lane.Failure{Op: op(rec), Code: lane.CodeConnection, Err: errors.New("the session is being closed")})
		return
	}
	f.landed = func(acked bool, returned string, err error) {
		expired := c.land(f)
		if acked {
			result(nil)
		} else {
			result(t.failure(rec, returned, err, expired))
		}
	}
	ch, err := c.channel(rec.Topic)
	if err != nil {
		f.landed(false, "", err)
		return
	}
	ch.publish(f)
}

func op(rec *router.Record) string {
	return "send event " + string(rec.ID) + " to exchange " + rec.Topic
}

// unknownExchange is an answer that an exchange does not exist.
type unknownExchange struct{ answer error }

func (u *unknownExchange) Error() string { return u.answer.Error() }

// failure says what it means that a message was returned, that its channel was closed, or that the broker has answered
// that it could not store it (err is nil).
func (t *transport) failure(rec *router.Record, returned string, err error, expired bool) *lane.Failure {
	f := &lane.Failure{Op: op(rec) + " of " + t.host(), Code: lane.CodeUnavailable, Err: err}
	answer, answered := serverError(err)
	if answered {
		f.Err = answerText(answer)
	}
	switch {
	case returned != "":
		f.Meaning, f.Code, f.Err = lane.Missing, lane.CodeMissing, errors.New("RabbitMQ returns the message: "+returned)
		f.Remedy = "bind a queue to the exchange for this routing key, which is the event's key"
	case answered && answer.Code == amqp.NotFound:
		f.Meaning, f.Code, f.Err = lane.Missing, lane.CodeMissing, &unknownExchange{f.Err}
		f.Remedy = "declare the exchange"
	case answered && isLimit(answer):
		f.Remedy = limitRemedy
	case answered && (answer.Code == amqp.AccessRefused || answer.Code == amqp.NotAllowed):
		f.Meaning, f.Code, f.Remedy = lane.Denied, lane.CodeDenied, "give the user of receiver.url the permission write for the exchange"
	case answered && isSize(answer, len(rec.Value)):
		f.Meaning, f.Code = lane.Refused, lane.CodeRefused
	case answered:
	case expired:
		f.Code, f.Err = lane.CodeTimeout, fmt.Errorf("no confirm within %s (receiver.timeout), so the connection was cut", t.cfg.Timeout)
	case err != nil:
		f.Code, f.Err = lane.CodeConnection, fmt.Errorf("the connection was lost before the confirm: %w", err)
	default:
		f.Err = errors.New("RabbitMQ answers basic.nack: a queue has not stored the message, for example because it is full")
	}
	return f
}

var sizeText = regexp.MustCompile(`message size (\d+) is larger than`)

// isSize reports whether the broker refuses a message of this size. The answer is about the channel, and names the size
// of the message that it is about.
func isSize(answer *amqp.Error, size int) bool {
	m := sizeText.FindStringSubmatch(answer.Reason)
	return answer.Code == amqp.PreconditionFailed && m != nil && m[1] == strconv.Itoa(size)
}
