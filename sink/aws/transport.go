package awssink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// transport is the [lane.Transport] of one session.
type transport struct {
	cfg         *Config
	service     Service
	host        string
	credentials *aws.CredentialsCache
	http        *http.Transport
	client      client
	senders     sync.WaitGroup

	mu     sync.Mutex // guards the queues
	queues map[string]*queue
}

func newTransport(cfg *Config, target *Target, at *address) *transport {
	var only http.Protocols
	only.SetHTTP1(true) // a request that is cut off takes its connection with it, and no other request
	t := &transport{cfg: cfg, service: cfg.Service, host: at.url.Host, queues: map[string]*queue{}}
	t.credentials = aws.NewCredentialsCache(target.Credentials, func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = 5 * time.Minute })
	t.http = &http.Transport{
		Protocols: &only, TLSClientConfig: target.TLS, TLSHandshakeTimeout: cfg.Timeout, MaxIdleConnsPerHost: maxOpen,
		MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute,
	}
	cached := *target
	cached.Credentials = t.credentials
	t.client = newClient(t.service, &cached, at, t.http, cfg.Name)
	return t
}

// Healthy returns nil: the lanes know whether the service answers.
func (t *transport) Healthy() error { return nil }

// Close closes the connections. Requests that are still open have been cut.
func (t *transport) Close() {
	t.senders.Wait()
	t.http.CloseIdleConnections()
}

// Deliver sends a message with those of other lanes.
func (t *transport) Deliver(ctx context.Context, items []*lane.Item, done func(stored int, why *lane.Failure)) {
	rec := items[0].Record
	op := fmt.Sprintf("send event %s to the %s %s of %s at %s", rec.ID, t.service.what(), rec.Topic, t.service, t.host)
	if rec.Position() == "" {
		done(0, &lane.Failure{
			Op: op, Code: lane.CodeRefused, Meaning: lane.Refused, Err: errors.New("the event has no position, which is in the deduplication id of its message; set route.position_header: true"),
		})
		return
	}
	t.add(ctx, rec.Topic, &entry{message: newMessage(rec), op: op, answer: func(why *lane.Failure) {
		if why != nil {
			done(0, why)
		} else {
			done(1, nil)
		}
	}})
}

// errUnnamed means that an answer does not say what became of a message.
var errUnnamed = errors.New("the answer does not name the message")

// send sends a batch, and answers its entries.
func (t *transport) send(ctx context.Context, name string, q *queue, batch []*entry) {
	within, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	messages := make([]*message, len(batch))
	for i, e := range batch {
		messages[i] = e.message
	}
	out, err := t.client.publish(within, name, messages)
	if err == nil {
		for i, e := range batch {
			e.answer(t.answerOf(e, strconv.Itoa(i), out))
		}
		return
	}
	why := t.failure("", err)
	if len(batch) > 1 && why.Meaning == lane.Refused {
		for i := range batch { // which message is refused, only requests of their own show
			t.send(ctx, name, q, batch[i:i+1])
		}
		return
	}
	q.door.note(why)
	for _, e := range batch {
		f := *why
		f.Op = e.op
		e.answer(&f)
	}
}

// answerOf returns nil if the answer says that the message is stored.
func (t *transport) answerOf(e *entry, id string, out *outcome) *lane.Failure {
	for i := range out.failed {
		if f := &out.failed[i]; f.ID == id {
			return t.refusal(e.op, f)
		}
	}
	for _, s := range out.stored {
		if s.ID == id && s.Message != "" {
			return nil
		}
	}
	return &lane.Failure{Op: e.op, Code: lane.CodeUnavailable, Err: errUnnamed}
}

// refusal says what it means that a message of a batch is not stored.
func (t *transport) refusal(op string, f *failedEntry) *lane.Failure {
	why := t.ofCode(op, f.Code, f.Message, 0)
	if why.Meaning == lane.Refused && !f.SenderFault {
		why.Meaning, why.Code = lane.Again, lane.CodeUnavailable
	}
	return why
}
