package integration

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// SIGINT at the question ends the command, and drops the slot that it has created.
func TestRecoverInterruptedAtQuestion(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
	o.insert("order", "k", 1, 3)
	cmd := exec.Command(testSuite.binary, slices.Concat(o.args, []string{"recover"})...)
	cmd.Env = append(append(cleanEnv(), o.env()...), env...)
	in, err := cmd.StdinPipe() // no person answers
	must(t, err)
	defer in.Close() //nolint:errcheck // a test
	file, err := os.CreateTemp(t.TempDir(), "out")
	must(t, err)
	cmd.Stdout, cmd.Stderr = file, file
	must(t, cmd.Start())
	output := func() string {
		b, err := os.ReadFile(file.Name())
		must(t, err)
		return string(bytes.TrimSpace(b))
	}
	await(t, patience, "the question", func() error {
		if !strings.Contains(output(), "send 3 rows? [y/N]") {
			return os.ErrNotExist
		}
		return nil
	})
	must(t, cmd.Process.Signal(syscall.SIGINT))
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		t.Errorf("it goes on after SIGINT:\n%s", output())
	}
	if n := slots(o); n != 0 {
		t.Errorf("%d slots are left:\n%s", n, output())
	}
}

// The server releases the lock of a run that has ended a little later. A run that goes on keeps it.
func TestRecoverLock(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	o.exec(`SELECT pg_advisory_lock(hashtext('outboxcdc recover'), hashtext($1))`, o.name)
	o.recover(env, 69)
	go func() {
		time.Sleep(2 * time.Second)
		_ = o.admin.do(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
			return err
		})
	}()
	o.recover(env, 0)
}
