package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// ledger is the second application, as a process of its own: it reads the topics as a consumer, and books the amount of
// each order into its own database. Its source is test/ends/ledger.
type ledger struct {
	binary, log string
	url         string // of its database
	orders      string // URL of the shop's database
	brokers     []string

	proc *child.Process
}

// buildLedger builds the second application from the sources around us and returns its path.
func buildLedger(ctx context.Context, dir string) (string, error) {
	root, err := daemon.ModuleRoot()
	if err != nil {
		return "", fmt.Errorf("build the ledger: %w", err)
	}
	binary := filepath.Join(dir, "ledger")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(root, "test", "ends"), "-o", binary, "./ledger")
	cmd.Env = daemon.Environment("CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the ledger: %w\n%s", err, bytes.TrimSpace(out))
	}
	return binary, nil
}

func (l *ledger) args(more ...string) []string {
	return append([]string{"-database", l.url, "-brokers", strings.Join(l.brokers, ","), "-topics", strings.Join(topics, ",")}, more...)
}

// migrate creates the ledger's tables.
func (l *ledger) migrate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, l.binary, l.args("-migrate")...)
	cmd.Env = daemon.Environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create the ledger's tables: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

// start starts the process and returns at once.
func (l *ledger) start() (err error) {
	l.proc, err = child.Start(child.Spec{
		Path: l.binary, Args: l.args(), Env: daemon.Environment(), LogFile: l.log, DeathSignal: syscall.SIGKILL,
	})
	return err
}

// kill sends SIGKILL.
func (l *ledger) kill() error {
	if l.proc == nil {
		return nil
	}
	return l.proc.Kill()
}

// totals is what one of the two databases says of the orders.
type totals struct {
	number int   // of orders, or of entries
	cents  int64 // their sum
}

func (t totals) String() string {
	return fmt.Sprintf("%s with a sum of %s", count(t.number), count(int(t.cents)))
}

const (
	orderTotals  = `SELECT count(*), coalesce(sum(cents), 0)::bigint FROM orders`
	ledgerTotals = `SELECT count(*), coalesce(sum(cents), 0)::bigint FROM entries`
)

func queryTotals(ctx context.Context, url, query string) (t totals, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return t, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, query).Scan(&t.number, &t.cents)
	return t, err
}

// awaitBooked waits until the ledger has at least as many entries as there are orders now, and fails with errLate if
// that takes too long.
func (l *ledger) awaitBooked(ctx context.Context) error {
	orders, err := queryTotals(ctx, l.orders, orderTotals)
	if err != nil {
		return fmt.Errorf("count the orders: %w", err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		booked, err := queryTotals(ctx, l.url, ledgerTotals)
		switch {
		case err != nil:
			return fmt.Errorf("count the ledger's entries: %w", err)
		case booked.number >= orders.number:
			return nil
		case l.proc.Exited():
			return l.ended()
		}
	}
	return errLate
}

func (l *ledger) ended() error {
	return fmt.Errorf("the ledger has ended (%s): %s", exitText(l.proc), child.Tail(l.log))
}

// settle returns what was ordered and what was booked in the end. It waits until the ledger has read as many records as
// Kafka has, and ends it: then no entry can follow.
func (l *ledger) settle(ctx context.Context, inKafka int) (ordered, booked totals, err error) {
	if ordered, err = queryTotals(ctx, l.orders, orderTotals); err != nil {
		return ordered, booked, fmt.Errorf("count the orders: %w", err)
	}
	for end := time.Now().Add(patience / 2); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var read int
		if l.proc.Exited() {
			return ordered, booked, l.ended()
		}
		if read, err = l.recordsRead(ctx); err != nil {
			return ordered, booked, err
		}
		if read >= inKafka {
			break
		}
	}
	if err := daemon.Stop(ctx, l.proc); err != nil {
		return ordered, booked, fmt.Errorf("stop the ledger: %w", err)
	}
	booked, err = queryTotals(ctx, l.url, ledgerTotals)
	return ordered, booked, err
}

// recordsRead returns how many records of the topics the ledger is done with.
func (l *ledger) recordsRead(ctx context.Context) (int, error) {
	t, err := queryTotals(ctx, l.url, `SELECT coalesce(sum(next_offset), 0)::bigint, 0::bigint FROM inbox_marks`)
	return t.number, err
}
