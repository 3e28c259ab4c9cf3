package brokerauth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTokensAreShared: connections that ask within a short time get the same token, and later ones another. A failure,
// and a token that expires soon, are for those alone that wait for it.
func TestTokensAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes, requests, life, failure := 9*time.Second, 0, time.Duration(0), error(nil)
		ctx, cancel := context.WithCancel(t.Context())
		s := &shared{ctx: ctx, request: func(ctx context.Context) (string, error) {
			requests++
			n := requests
			select {
			case <-time.After(takes):
			case <-ctx.Done():
				return "", ctx.Err()
			}
			if failure != nil {
				return "", failure
			}
			if life == 0 {
				return fmt.Sprint(n), nil
			}
			part := base64.RawURLEncoding.EncodeToString
			return fmt.Sprintf("%d.%s.", n, part(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(life).Unix()))), nil
		}}
		ask := func(what string, connections, wantRequests int, wantErr error) {
			t.Helper()
			var wg sync.WaitGroup
			tokens := make([]string, connections)
			for i := range connections {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * time.Second) // of the bubble
					var err error
					if tokens[i], err = s.get(); !errors.Is(err, wantErr) {
						t.Errorf("%s: connection %d: %v", what, i, err)
					}
				})
			}
			wg.Wait()
			for _, token := range tokens {
				if token != tokens[0] {
					t.Errorf("%s: tokens %v", what, tokens)
					break
				}
			}
			if requests != wantRequests {
				t.Errorf("%s: %d requests, want %d", what, requests, wantRequests)
			}
		}
		ask("while a request runs", 9, 1, nil) // the last one waits for a second
		time.Sleep(shareFor - time.Second)
		ask("soon after it", 1, 1, nil)
		time.Sleep(time.Second)
		ask("later", 1, 2, nil)

		time.Sleep(shareFor)
		failure = errors.New("no token")
		ask("a failure", 5, 3, failure)
		failure = nil
		ask("after a failure", 1, 4, nil)

		time.Sleep(shareFor)
		life = shareUntil + 5*time.Second
		ask("before it expires", 3, 5, nil)
		time.Sleep(4 * time.Second)
		ask("just before it expires", 1, 5, nil)
		time.Sleep(time.Second)
		ask("when it expires soon", 1, 6, nil)
		life = shareUntil
		time.Sleep(shareFor)
		ask("a short life", 1, 7, nil)
		ask("a short life, again", 1, 8, nil)

		takes = time.Hour
		time.AfterFunc(time.Minute, cancel)
		ask("when the session ends", 3, 9, context.Canceled)
	})
}
