package natssink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// transport is the [lane.Transport] of one session. It has one connection at a time, which all lanes share.
type transport struct {
	cfg        *Config
	target     Target
	hosts      string
	tls        bool
	maxPayload int
	tied       sync.Once
	link       *lane.Link[*connection]
}

// Healthy returns nil: the lanes know whether the server answers.
func (t *transport) Healthy() error { return nil }

// Close closes the connection. Nothing is in flight.
func (t *transport) Close() { t.link.End() }

// answer is that of a stream, or of the server about streams.
type answer struct {
	Stream string        `json:"stream"`
	Seq    uint64        `json:"seq"` // of the first message with the message id
	Error  *apiError     `json:"error"`
	Config *streamConfig `json:"config"` // only if it was asked for
}

type apiError struct {
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("NATS answers %d %s", e.Code, e.Description) }

// Codes of errors (server/errors.json in the sources of nats-server). One that is not here is an outage: a stream that
// is full and refuses new messages (10077), too little space or memory, a message with the same id that is under way.
const (
	tooLargeForStream  = 10054
	wrongStream        = 10060
	headersTooLarge    = 10097
	codeStreamNotFound = 10059
)

// errAnswer means that something else than a stream answers.
var errAnswer = errors.New("the answer is not one of the stream")

// Deliver sends a message, whose answer may come later.
func (t *transport) Deliver(ctx context.Context, items []*lane.Item, done func(stored int, why *lane.Failure)) {
	t.tied.Do(func() { context.AfterFunc(ctx, t.link.End) }) // it is the same context in all calls
	rec := items[0].Record
	if rec.Position() == "" {
		done(0, &lane.Failure{
			Op: t.op(rec), Code: lane.CodeRefused, Meaning: lane.Refused, Err: errors.New("the event has no position, which is the id of its message; set route.position_header: true"),
		})
		return
	}
	c, why := t.link.Get(ctx)
	if why != nil {
		done(0, why)
		return
	}
	c.publish(message(rec, t.cfg.Stream), func(m *nats.Msg, err error) {
		if err == nil {
			err = t.stored(m)
		}
		if err != nil {
			done(0, t.failure(t.op(rec), c, rec.Topic, err))
			return
		}
		done(1, nil)
	})
}

func (t *transport) op(rec *router.Record) string {
	return fmt.Sprintf("send event %s to the subject %s of NATS at %s", rec.ID, rec.Topic, t.hosts)
}

// stored returns nil if it is the stream that has answered that it has the message.
func (t *transport) stored(m *nats.Msg) error {
	a, err := read(m)
	if err == nil && (a.Stream != t.cfg.Stream || a.Seq == 0) {
		err = errAnswer
	}
	return err
}

// read returns what an answer says.
func read(m *nats.Msg) (*answer, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" { // of the server: it has no subscription for the subject
		return nil, nats.ErrNoResponders
	}
	var a answer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return nil, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if a.Error != nil {
		return nil, a.Error
	}
	return &a, nil
}

// failure says what it means that a message is not acknowledged.
func (t *transport) failure(op string, c *connection, subject string, err error) *lane.Failure {
	f := &lane.Failure{Op: op, Code: lane.CodeUnavailable, Err: err}
	denied := c.refusal(subject)
	var refusal *apiError
	switch {
	case denied != nil:
		f.Meaning, f.Code, f.Err = lane.Denied, lane.CodeDenied, denied
		f.Remedy = "give the user the permissions in docs/sinks.md"
	case errors.Is(err, nats.ErrNoResponders):
		f.Meaning, f.Code, f.Err = lane.Missing, lane.CodeMissing, errors.New("no stream takes the subject now")
		f.Remedy = fmt.Sprintf("create the stream %s with this subject; if it has it, see whether JetStream is enabled and the stream has a leader", t.cfg.Stream)
	case errors.Is(err, nats.ErrMaxPayload):
		f.Meaning, f.Code = lane.Refused, lane.CodeRefused
	case errors.As(err, &refusal):
		f.Meaning, f.Code, f.Remedy = t.meaningOf(refusal)
	case errors.Is(err, errAnswer):
		f.Remedy = "see whether another program answers messages of this subject"
	case errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Err = lane.CodeTimeout, fmt.Errorf("no answer within %s (receiver.timeout), so the connection was cut", t.cfg.Timeout)
	default:
		f.Code, f.Err = lane.CodeConnection, fmt.Errorf("the connection was lost before the answer: %w", err)
	}
	return f
}

func (t *transport) meaningOf(e *apiError) (m lane.Meaning, code, remedy string) {
	switch e.Code {
	case wrongStream:
		return lane.Missing, lane.CodeMissing, fmt.Sprintf("the subject belongs to another stream than receiver.stream, %s; give it to this one", t.cfg.Stream)
	case tooLargeForStream, headersTooLarge:
		return lane.Refused, lane.CodeRefused, ""
	}
	return lane.Again, lane.CodeUnavailable, ""
}
