package lane

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
)

// DialHTTP connects to the host of an http or https URL as a request does, with TLS for https.
func DialHTTP(ctx context.Context, u *url.URL, conf *tls.Config) (net.Conn, error) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	addr := net.JoinHostPort(u.Hostname(), port)
	if u.Scheme == "http" {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
	d := tls.Dialer{Config: conf}
	return d.DialContext(ctx, "tcp", addr)
}
