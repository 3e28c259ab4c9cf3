package httpsink

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
)

// TestNoSecretInErrors: everything but the host of the address may be a secret. A receiver repeats it in many ways: in
// a redirect, in its answer, as it was encoded, or by sending back what it has got.
func TestNoSecretInErrors(t *testing.T) {
	echo := sinktest.Listen(t, "")
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	s := newServer(t)
	s.answer = func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, "/moved/") {
			http.Redirect(w, req, "http://"+s.addr+req.URL.RequestURI()+"/", http.StatusMovedPermanently)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, strings.Repeat("x", len(req.Header.Get("Outboxcdc-Position"))))
		fmt.Fprintf(w, "%s %s %s\n", req.URL.Path, req.RequestURI, req.Header.Get("Authorization"))
	}
	const user, password = "shop", "s%2F3cr3t"
	basic := base64.StdEncoding.EncodeToString([]byte("shop:s/3cr3t"))
	for name, test := range map[string]struct{ url, says string }{
		"answer":   {"http://" + user + ":" + password + "@" + s.addr + "/hooks/t%C3%B6ken-0123/{topic}?code=c%2B0de9", "404 Not Found, \""},
		"redirect": {"http://" + user + ":" + password + "@" + s.addr + "/moved/t%C3%B6ken-0123?code=c%2B0de9", "redirects to http://" + s.addr},
		"echo":     {"http://" + user + ":" + password + "@" + echo.Addr().String() + "/hooks/t%C3%B6ken-0123/{topic}?code=c%2B0de9", "malformed HTTP"},
	} {
		tr := newTransport(testReceiver(t, test.url), &Target{URL: test.url})
		for before := range maxQuoted { // of what is quoted: it may end in a secret
			rec := record("a", "k", "orders")
			rec.Headers = []router.Header{{Name: router.HeaderPosition, Value: []byte(strings.Repeat("x", before))}}
			_, why := tr.deliver(t.Context(), []*lane.Item{{Record: rec}})
			if !strings.Contains(why.Error(), test.says) {
				t.Fatalf("%s: not %s: %v", name, test.says, why)
			}
			for _, secret := range []string{"0123", "3cr3t", "0de9", "ken-", basic[:4]} {
				if strings.Contains(why.Error(), secret) {
					t.Fatalf("%s: %s is shown: %v", name, secret, why)
				}
			}
		}
		tr.Close()
	}
}
