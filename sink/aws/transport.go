package awssink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// transport is the [lane.Transport] of one session.
type transport struct {
	cfg         *Config
	host        string
	account     string // the address of a queue without its name
	credentials *aws.CredentialsCache
	http        *http.Transport
	sqs         *sqs.Client
	senders     sync.WaitGroup

	mu     sync.Mutex // guards the queues
	queues map[string]*queue
}

func newTransport(cfg *Config, target *Target, u *url.URL) *transport {
	var only http.Protocols
	only.SetHTTP1(true) // a request that is cut off takes its connection with it, and no other request
	t := &transport{cfg: cfg, host: u.Host, account: u.Scheme + "://" + u.Host + "/" + strings.Trim(u.Path, "/"), queues: map[string]*queue{}}
	t.credentials = aws.NewCredentialsCache(target.Credentials, func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = 5 * time.Minute })
	t.http = &http.Transport{
		Protocols: &only, TLSClientConfig: target.TLS, TLSHandshakeTimeout: cfg.Timeout, MaxIdleConnsPerHost: maxOpen,
		MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute,
	}
	t.sqs = sqs.New(sqs.Options{
		Region: target.Region, BaseEndpoint: aws.String(u.Scheme + "://" + u.Host), Credentials: t.credentials, AppID: cfg.Name,
		HTTPClient: &http.Client{Transport: t.http, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Retryer:    aws.NopRetryer{}, // lanes send again
	})
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
	op := fmt.Sprintf("send event %s to the queue %s at %s", rec.ID, rec.Topic, t.host)
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
func (t *transport) send(ctx context.Context, name string, batch []*entry) {
	within, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(t.account + "/" + name)}
	for i, e := range batch {
		in.Entries = append(in.Entries, e.message.forSQS(strconv.Itoa(i)))
	}
	out, err := t.sqs.SendMessageBatch(within, in)
	if err != nil && len(batch) > 1 && t.failure("", err).Meaning == lane.Refused {
		for i := range batch { // which message is refused, only requests of their own show
			t.send(ctx, name, batch[i:i+1])
		}
		return
	}
	for i, e := range batch {
		if err == nil {
			e.answer(t.answerOf(e, strconv.Itoa(i), out))
		} else {
			e.answer(t.failure(e.op, err))
		}
	}
}

// answerOf returns nil if the answer says that the message is stored.
func (t *transport) answerOf(e *entry, id string, out *sqs.SendMessageBatchOutput) *lane.Failure {
	for i := range out.Failed {
		if f := &out.Failed[i]; aws.ToString(f.Id) == id {
			return t.refusal(e.op, f)
		}
	}
	for i := range out.Successful {
		if s := &out.Successful[i]; aws.ToString(s.Id) == id && aws.ToString(s.MessageId) != "" {
			return nil
		}
	}
	return &lane.Failure{Op: e.op, Code: lane.CodeUnavailable, Err: errUnnamed}
}

// refusal says what it means that a message of a batch is not stored.
func (t *transport) refusal(op string, f *types.BatchResultErrorEntry) *lane.Failure {
	why := t.ofCode(op, aws.ToString(f.Code), aws.ToString(f.Message), 0)
	if why.Meaning == lane.Refused && !f.SenderFault {
		why.Meaning, why.Code = lane.Again, lane.CodeUnavailable
	}
	return why
}
