package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/child"
)

// receiver takes CloudEvents, in the demo's process. What it has stored is in the tally.
type receiver struct {
	addr   string
	tally  *tally
	server *http.Server

	mu     sync.Mutex
	number int64
}

func startReceiver(_ context.Context, d *demo, _ options) (broker, error) {
	r := &receiver{tally: d.tally}
	return r, d.out.step("a receiver of CloudEvents, in this process", func() (string, error) {
		port, err := child.FreePort()
		if err != nil {
			return "", err
		}
		r.addr = fmt.Sprintf("127.0.0.1:%d", port)
		return "http://" + r.addr, r.listen()
	})
}

func (r *receiver) listen() error {
	l, err := net.Listen("tcp", r.addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{topic}", r.take)
	r.server = &http.Server{Handler: mux}
	go r.server.Serve(l) //nolint:errcheck // it ends with Close
	return nil
}

// take stores an event, and acknowledges it then.
func (r *receiver) take(w http.ResponseWriter, req *http.Request) {
	var e struct {
		ID, Type, Subject string
		Data              json.RawMessage
	}
	if err := json.NewDecoder(req.Body).Decode(&e); err != nil {
		http.Error(w, "no event: "+err.Error(), http.StatusBadRequest)
		return
	}
	all := map[string]string{"type": e.Type, "outboxcdc-position": req.Header.Get("Outboxcdc-Position")}
	r.mu.Lock()
	r.number++
	r.tally.addRead(check.Record{
		Topic: req.PathValue("topic"), Offset: r.number, Key: []byte(e.Subject), Value: e.Data, Headers: headers(e.ID, all),
	}, time.Now())
	r.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (r *receiver) settings() string {
	return receiverSettings("http", "http://"+r.addr+"/{topic}",
		"route:", "  format: cloudevents_structured", "  fields: {source: //shop.example/orders}")
}

func (r *receiver) fault() act {
	return act{
		cause:    brokerDown,
		before:   "The receiver is stopped: its connections are cut, answers that are under way are lost.",
		inject:   func(context.Context, *demo) error { return r.server.Close() },
		duration: 2 * time.Second,
		after:    "The receiver is started again.",
		fix:      func(context.Context, *demo) error { return r.listen() },
	}
}

// follow only waits: take is the reader.
func (r *receiver) follow(ctx context.Context, _ *tally) error {
	<-ctx.Done()
	return nil
}

func (r *receiver) count(_ context.Context, t *tally) (int, error) { return t.recordsRead(), nil }

func (r *receiver) look() string {
	return "Receiver  POST http://" + r.addr + "/{topic}, a CloudEvent each"
}

func (r *receiver) Close() error {
	if r.server == nil {
		return nil
	}
	return r.server.Close()
}
