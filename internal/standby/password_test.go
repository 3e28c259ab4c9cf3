package standby

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// slowlyWatched is a watcher of one host. prepare is called for its password before it is asked.
func slowlyWatched(t *testing.T, prepare func(context.Context) error) *watched {
	t.Helper()
	hosts, _, err := replication.Hosts([]string{"host=127.0.0.1 port=1 user=u sslmode=disable"}, "test", func(ctx context.Context, _, _, _ string) (string, error) {
		return "", prepare(ctx)
	})
	must(t, err)
	w := newWatched(nil)
	w.hosts = hosts
	return w
}

// A start waits until a slow command has printed the password, and only then for the answers: it goes on without
// them a second later, and not before.
func TestStartWaitsForPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 9 * time.Second
		sleep := func(ctx context.Context) error {
			select {
			case <-time.After(slow):
				return errors.New("no password")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		w := slowlyWatched(t, sleep)
		asked := make(chan time.Duration, 1)
		begin := time.Now()
		w.cfg.Primary = func(ctx context.Context) (Question, error) {
			_ = sleep(ctx)
			return func(ctx context.Context) (*Server, string, error) {
				asked <- time.Since(begin)
				<-ctx.Done() // it does not answer
				return nil, "", ctx.Err()
			}, nil
		}
		stop := w.run()
		w.AwaitOnePrimary(t.Context())
		if d := time.Since(begin); d != slow+startWait {
			t.Errorf("the start waited for %v, want %v", d, slow+startWait)
		}
		if d := <-asked; d != slow { // both commands run at the same time
			t.Errorf("asked after %v, want %v", d, slow)
		}
		stop()
	})
}

// The limit of a question begins when the password is known: no command has to hurry for it.
func TestLimitBeginsWithThePassword(t *testing.T) {
	refused, asked := errors.New("no password"), 0
	password := func(ctx context.Context, _, _, _ string) (string, error) {
		asked++
		if _, limited := ctx.Deadline(); limited {
			t.Error("the command has the limit of the server")
		}
		return "", refused
	}
	const url = "host=127.0.0.1 port=1 user=u"
	hosts, _, err := replication.Hosts([]string{url}, "test", password)
	must(t, err)
	source, err := replication.NewSource(replication.Config{Slot: slot, URL: func() (string, error) { return url, nil }, Password: password})
	must(t, err)
	_, ofHost := Ask(context.Background(), hosts[0], slot)
	_, _, ofPrimary := Primary(context.Background(), source, "test", slot)
	cleaned := Clean(context.Background(), hosts[0], slot, "1")
	if asked != 3 || !errors.Is(ofHost, refused) || !errors.Is(ofPrimary, refused) || !errors.Is(cleaned, refused) || exit.Code(cleaned) != exit.Unavailable {
		t.Errorf("asked %d times: %v; %v; %v", asked, ofHost, ofPrimary, cleaned)
	}
}
