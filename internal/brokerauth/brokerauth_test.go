package brokerauth

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTokenRefused: a token server's answer may contain the secret. The error does not repeat it.
func TestTokenRefused(t *testing.T) {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error": "invalid_client", "error_description": "s3cr3t is wrong"}`))
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { answer(w, req) }))
	defer srv.Close()
	_, err := newTokens(context.Background(), &SASL{User: "u", Password: "s3cr3t", TokenURL: srv.URL}).Token()
	if err == nil || !strings.Contains(err.Error(), srv.URL+" (kafka.sasl.token_url): the answer is 401 Unauthorized, \"invalid_client\"") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("refused: %v", err)
	}
	if !errors.As(err, new(*TokenError)) {
		t.Errorf("%T", err)
	}
	answer = func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte("s3cr3t"))
	}
	if _, err := newTokens(context.Background(), &SASL{User: "u", Password: "s3cr3t", TokenURL: srv.URL}).Token(); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("broken: %v", err)
	}
	// Nor does it contain the query of the URL, also if there is no answer.
	for _, server := range []string{srv.URL, "http://127.0.0.1:1"} {
		_, err := newTokens(context.Background(), &SASL{User: "u", Password: "p", TokenURL: server + "/t?key=s3cr3t"}).Token()
		if err == nil || strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), server+"/t (kafka.sasl.token_url): ") {
			t.Errorf("%s: %v", server, err)
		}
	}
}
