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

// Answers are made whole before a byte of them is written: a client that does not read holds its own connection and its
// own answer, for at most writeWithin, and nothing that another one needs.

const (
	// writeWithin is how long a client may take to read an answer.
	writeWithin = 10 * time.Second
	// renderWithin is how long a scrape may wait for those before it.
	renderWithin = 5 * time.Second
	// renderAtOnce bounds the work and the memory of many scrapes at a time.
	renderAtOnce = 2
)

// answer writes JSON with 200 or 503.
func answer(w http.ResponseWriter, ok bool, body any) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	whole := rendered{status: http.StatusOK, header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}}}
	if !ok {
		whole.status = http.StatusServiceUnavailable
	}
	if err := enc.Encode(body); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	whole.body = text
	whole.writeTo(w)
}

// metrics answers scrapes, a few at a time; further ones wait for their turn, which does not depend on slow readers.
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
			http.Error(w, "too many scrapes at a time", http.StatusServiceUnavailable)
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

// rendered is an answer that has not been sent yet.
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
	// From here on: what the making took is not the client's time.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes()) // the client has gone: nothing to do about it
}
