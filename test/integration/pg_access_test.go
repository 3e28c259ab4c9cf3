package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// pg_hba.conf is closed to the daemon's role under load, and its connections are ended; when it is opened again,
// delivery continues.
func TestHBAClosed(t *testing.T) {
	t.Parallel()
	rounds := fullOrShort(3, 1)
	rnd := newRand(t)
	o := newOutbox(t, options{pg: ownPostgres(t, defaultMajor, nil)})
	o.proves("F55", "pg_hba.conf closed to the daemon under load and opened again, %d times", rounds)
	o.sample()
	w := o.write(load{rand: rnd})
	r := o.startStreaming()
	file := filepath.Join(o.pg.DataDir, "pg_hba.conf")
	opened, err := os.ReadFile(file)
	must(t, err)
	closed := append([]byte("host all "+role+" all reject\n"), opened...)
	reload := func(text []byte, want bool) {
		must(t, os.WriteFile(file, text, 0o600)) // keeps the owner
		must(t, o.pg.Reload())
		await(t, patience, "the reload", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			conn, err := pgx.Connect(ctx, o.pg.URL(o.name, role, password))
			if err == nil {
				_ = conn.Close(ctx)
			}
			if (err == nil) != want {
				return errors.Join(errors.New("not in effect yet"), err)
			}
			return nil
		})
	}
	for range rounds {
		w.awaitDelivered(50)
		had := r.reconnects("postgres_credentials")
		reload(closed, false)
		o.endSessions()
		r.awaitReconnects("postgres_credentials", had+4)
		w.awaitCommits(50)
		reload(opened, true)
		o.awaitHealed()
	}
	w.stop()
	o.repeatsAtMost(o.verify(patience), 0, daemonRemembers)
	// In each round: why the session ended, why none begins, that one has begun, and what its start reads, if that
	// takes a while.
	if n := len(r.logged("state")); n > 1+6*rounds {
		t.Errorf("%d changes of state in the log: %s", n, states(r))
	}
}
