package sender

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// TestPace: records are evenly spread. At first, and after a pause, those of 10 ms leave at once.
func TestPace(t *testing.T) {
	for _, rate := range []int{1, 100, 1000, 20_000} {
		synctest.Test(t, func(t *testing.T) {
			p := newPace(rate)
			for _, pause := range []time.Duration{0, time.Minute} {
				time.Sleep(pause)
				began := time.Now()
				for n := range max(5, rate/10) {
					must(t, p.wait(t.Context()))
					if at, want := time.Since(began), max(0, time.Duration(n)*time.Second/time.Duration(rate)-burst); at != want {
						t.Fatalf("rate %d: record %d after %s, want %s", rate, n, at, want)
					}
				}
			}
		})
	}
}

func TestPaceCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := errors.Join(p.wait(ctx), p.wait(ctx)); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if err := p.wait(t.Context()); err != nil || time.Since(began) != time.Second-burst {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestRate: Send keeps to the rate.
func TestRate(t *testing.T) {
	f := newFake(t, kfake.SeedTopics(3, "orders"))
	s := newSender(t, f, Options{Rate: 2000})
	open(t, s, "orders")
	began := time.Now()
	for n := range 1000 {
		send(t, s, "orders", n+2)
	}
	must(t, s.Wait(t.Context()))
	if d := time.Since(began); d < 480*time.Millisecond || d > 20*time.Second {
		t.Errorf("1000 records took %s", d)
	}
}
