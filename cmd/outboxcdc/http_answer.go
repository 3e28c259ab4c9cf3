package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A response is complete before its first byte is written. A client that does not read holds only its own connection
// and response, for at most writeWithin, and blocks no other client.

const (
	// writeWithin is how long a client may take to read a response.
	writeWithin = 10 * time.Second
	// renderWithin is how long a scrape may wait for earlier ones.
	renderWithin = 5 * time.Second
	// renderAtOnce is the maximum number of scrapes that are rendered at the same time.
	renderAtOnce = 2
)

// answer writes body as JSON, with status 200 if ok and 503 otherwise.
func answer(w http.ResponseWriter, ok bool, body any) {
	whole := rendered{status: http.StatusOK, header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}}}
	if !ok {
		whole.status = http.StatusServiceUnavailable
	}
	enc := json.NewEncoder(&whole)
	enc.SetIndent("", "  ")
	if err := enc.Encode(body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	whole.writeTo(w)
}

// metrics serves scrapes. It renders renderAtOnce of them at a time; further ones wait, but not for slow readers.
func metrics(reg *prometheus.Registry) http.Handler {
	scrape := promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
	turns := make(chan struct{}, renderAtOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		late := time.NewTimer(renderWithin)
		defer late.Stop()
		select {
		case turns <- struct{}{}:
		case <-req.Context().Done():
			return
		case <-late.C:
			http.Error(w, "too many concurrent scrapes", http.StatusServiceUnavailable)
			return
		}
		whole := rendered{status: http.StatusOK, header: http.Header{}}
		func() {
			defer func() { <-turns }()
			scrape.ServeHTTP(&whole, req)
		}()
		whole.writeTo(w)
	})
}

// rendered is a complete response that has not been sent yet.
type rendered struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *rendered) Header() http.Header         { return r.header }
func (r *rendered) WriteHeader(status int)      { r.status = status }
func (r *rendered) Write(p []byte) (int, error) { return r.body.Write(p) }

func (r *rendered) writeTo(w http.ResponseWriter) {
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(r.body.Len()))
	// The deadline starts here, so that it does not include the time for rendering.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes()) // an error means that the client has gone
}
