package awssink

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// proxy is between the sink and a server. It has faults at the requests with messages.
type proxy struct {
	t      *testing.T
	addr   string
	server string
	held   chan struct{}

	mu      sync.Mutex
	http    *http.Server
	running sync.WaitGroup        // requests
	fault   func() sinktest.Fault // of the next request
	busy    int                   // answers that the service cannot take it
	refused map[string]bool       // ids of records
	denied  bool
}

func startProxy(t *testing.T, server string) *proxy {
	p := &proxy{t: t, addr: "127.0.0.1:0", server: server, held: make(chan struct{}), refused: map[string]bool{}, fault: func() sinktest.Fault { return sinktest.None }}
	p.start()
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) start() {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr, p.http = l.Addr().String(), &http.Server{Handler: p}
	go func(s *http.Server) { _ = s.Serve(l) }(p.http)
}

// stop cuts all connections, and waits for what was passed on.
func (p *proxy) stop() {
	_ = p.http.Close()
	p.running.Wait()
}

// set changes what the proxy does.
func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// batch is a request, or an answer.
type batch struct {
	QueueURL   string            `json:"QueueUrl,omitempty"`
	Entries    []json.RawMessage `json:"Entries,omitempty"`
	Successful []json.RawMessage `json:"Successful"`
	Failed     []failed          `json:"Failed"`
}

type failed struct {
	ID          string `json:"Id"`
	Code        string `json:"Code"`
	SenderFault bool   `json:"SenderFault"`
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.running.Add(1)
	defer p.running.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".SendMessageBatch") {
		p.forward(w, r, body, nil)
		return
	}
	p.mu.Lock()
	fault, denied := p.fault(), p.denied
	p.mu.Unlock()
	var refuse []failed
	switch fault {
	case sinktest.Lost:
		panic(http.ErrAbortHandler)
	case sinktest.NoAnswer:
		<-r.Context().Done()
		return
	case sinktest.AckLost, sinktest.AckNeverComes:
		p.forward(discardWriter{http.Header{}}, r, body, nil)
		if fault == sinktest.AckNeverComes {
			<-r.Context().Done()
		}
		panic(http.ErrAbortHandler)
	case sinktest.Held:
		<-p.held
	case sinktest.Unavailable:
		p.mu.Lock()
		p.busy++
		whole := p.busy%2 == 0
		p.mu.Unlock()
		if whole {
			answer(w, "com.amazonaws.sqs#RequestThrottled")
			return
		}
		refuse = append(refuse, failed{ID: "0", Code: "InternalError"}) // the rest is stored
	}
	if denied {
		answer(w, "com.amazonaws.sqs#AccessDeniedException")
		return
	}
	p.forward(w, r, body, refuse)
}

func answer(w http.ResponseWriter, code string) {
	w.Header().Set("X-Amzn-Query-Error", code+";Sender")
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, `{"__type":"`+code+`","message":"the proxy says so"}`)
}

// forward passes a request on, without the entries that are refused.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request, body []byte, refuse []failed) {
	var b batch
	if json.Unmarshal(body, &b) == nil && len(b.Entries) > 0 {
		b.Entries = slices.DeleteFunc(b.Entries, func(text json.RawMessage) bool {
			var e struct {
				ID                string `json:"Id"`
				MessageAttributes struct{ ID struct{ StringValue string } }
			}
			if err := json.Unmarshal(text, &e); err != nil {
				p.t.Error(err)
			}
			p.mu.Lock()
			if p.refused[e.MessageAttributes.ID.StringValue] {
				refuse = append(refuse, failed{ID: e.ID, Code: "InvalidMessageContents", SenderFault: true})
			}
			p.mu.Unlock()
			return slices.ContainsFunc(refuse, func(f failed) bool { return f.ID == e.ID })
		})
		if len(b.Entries) == 0 {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			_ = json.NewEncoder(w).Encode(batch{Successful: []json.RawMessage{}, Failed: refuse})
			return
		}
		if len(refuse) > 0 {
			body, _ = json.Marshal(map[string]any{"QueueUrl": b.QueueURL, "Entries": b.Entries})
		}
	}
	req, err := http.NewRequest(r.Method, p.server+r.URL.Path, bytes.NewReader(body)) // a client that is gone ends nothing
	if err != nil {
		p.t.Error(err)
		return
	}
	req.Header = r.Header.Clone()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if len(refuse) > 0 && res.StatusCode == http.StatusOK {
		var a batch
		if err := json.Unmarshal(text, &a); err != nil {
			p.t.Error(err)
		}
		a.Failed = append(a.Failed, refuse...)
		text, _ = json.Marshal(a)
	}
	w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
	w.Header().Set("X-Amzn-Query-Error", res.Header.Get("X-Amzn-Query-Error"))
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(text)
}

// discardWriter drops an answer.
type discardWriter struct{ header http.Header }

func (d discardWriter) Header() http.Header       { return d.header }
func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (discardWriter) WriteHeader(int)             {}
