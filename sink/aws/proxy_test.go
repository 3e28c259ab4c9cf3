package awssink

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// proxy is between the sink and a server. It has faults at the requests with messages.
type proxy struct {
	t *testing.T
	dialect
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
	counts  bool // messages are counted, and go nowhere
	count   int
}

func startProxy(t *testing.T, server string, d dialect) *proxy {
	p := &proxy{t: t, dialect: d, addr: "127.0.0.1:0", server: server, held: make(chan struct{}), refused: map[string]bool{}, fault: func() sinktest.Fault { return sinktest.None }}
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

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.running.Add(1)
	defer p.running.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if !p.isBatch(r, body) {
		p.forward(w, r, body, nil)
		return
	}
	p.mu.Lock()
	fault, denied, counts := p.fault(), p.denied, p.counts
	p.mu.Unlock()
	if counts {
		p.discard(w, body)
		return
	}
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
			p.answer(w, "Throttled")
			return
		}
		refuse = append(refuse, failed{ID: "0", Code: "InternalError"}) // the rest is stored
	}
	if denied {
		p.answer(w, "AccessDenied")
		return
	}
	p.forward(w, r, body, refuse)
}

// discard counts messages, and says that they are stored.
func (p *proxy) discard(w http.ResponseWriter, body []byte) {
	events, _, err := p.without(body, func(int, string) bool { return false })
	if err != nil {
		p.t.Error(err)
	}
	p.set(func() { p.count += len(events) })
	_, _ = io.WriteString(w, p.stored(len(events)))
}

// forward passes a request on, without the entries that are refused.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request, body []byte, refuse []failed) {
	if p.isBatch(r, body) {
		var events []string
		var err error
		if events, body, err = p.without(body, func(place int, event string) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.refused[event] {
				refuse = append(refuse, failed{ID: strconv.Itoa(place), Code: "InvalidParameterValue", SenderFault: true})
			}
			return slices.ContainsFunc(refuse, func(f failed) bool { return f.ID == strconv.Itoa(place) })
		}); err != nil {
			p.t.Error(err)
		}
		if len(events) == 0 {
			text, err := p.withFailed(nil, refuse)
			if err != nil {
				p.t.Error(err)
			}
			_, _ = w.Write(text)
			return
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
		if text, err = p.withFailed(text, refuse); err != nil {
			p.t.Error(err)
		}
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
