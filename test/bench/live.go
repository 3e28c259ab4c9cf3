package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// live is a database with a running daemon.
type live struct {
	b      *bench
	run    *run
	topics []string
	conn   *pgx.Conn
	sender int // pid of the walsender
	follow *follower
}

// goLive creates database, topics and slot, and starts the daemon.
func (b *bench) goLive(ctx context.Context) (*live, error) {
	b.runs++
	l := &load{Name: fmt.Sprintf("steady%d", b.runs), PerTx: 1, Payload: 1000}
	l.complete()
	if err := l.prepare(ctx, b.pg); err != nil {
		return nil, err
	}
	r := &run{load: l, subject: &subjects[0], name: l.Name}
	r.dir = filepath.Join(b.dir, r.name)
	r.log = filepath.Join(r.dir, "log")
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	v := &live{b: b, run: r, topics: l.topics(r.name)}
	if err := b.makeTopics(ctx, l, v.topics); err != nil {
		return nil, err
	}
	if err := b.makeOwnTopics(ctx, r.name); err != nil {
		return nil, err
	}
	var err error
	if v.conn, err = pgx.Connect(ctx, b.pg.SuperURL(l.database())); err != nil {
		return nil, err
	}
	if _, err := v.conn.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, master, r.name); err != nil {
		return nil, err
	}
	if v.follow, err = follow(b.kafka.Brokers(), v.topics); err != nil {
		return nil, err
	}
	return v, startDaemon(b, r)
}

// awaitStreaming waits until the daemon streams.
func (v *live) awaitStreaming(ctx context.Context) error {
	for {
		var pid *int
		if err := v.conn.QueryRow(ctx, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, v.run.name).Scan(&pid); err != nil {
			return err
		}
		if pid != nil {
			v.sender = *pid
			return nil
		}
		if v.run.proc.Exited() {
			return errors.Join(errors.New("the daemon has ended"), v.run.end(ctx))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// warmUpEvents is how many events go through topic and daemon at full speed before anything is measured: Java
// compiles only code that has run often.
const warmUpEvents = 200_000

// warmUpFirstRow is the first row number of the warm-up, above all measured ones.
const warmUpFirstRow = 1 << 30

// warm sends the warm-up events and forgets them.
func (v *live) warm(ctx context.Context) error {
	l := *v.run.load
	l.PerTx = 100
	begun := time.Now()
	if err := v.b.pg.Exec(ctx, l.database(), l.script(warmUpFirstRow, warmUpEvents)); err != nil {
		return err
	}
	if err := v.follow.await(ctx, warmUpEvents, 2*time.Minute); err != nil {
		return err
	}
	v.follow.forget()
	if err := v.b.pg.Exec(ctx, l.database(), `TRUNCATE outbox`, `CHECKPOINT`); err != nil {
		return err
	}
	syscall.Sync() // or commits wait for the disk writes of server and broker
	v.b.say("warmed up with %d events in %.0f s", warmUpEvents, time.Since(begun).Seconds())
	return nil
}

func (v *live) end(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	err := v.run.end(ctx)
	v.follow.close()
	_ = v.conn.Close(ctx)
	v.b.removeTopics(append(v.topics, ownTopics(v.run.name)...))
	return errors.Join(err, v.b.drop(ctx, v.run.load))
}
