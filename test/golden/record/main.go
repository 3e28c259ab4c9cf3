// Command record runs a real Debezium over the cases of package golden and writes the recordings. `make golden` calls
// it.
//
// Each set has a database, a slot created before its rows, and a connector; one Kafka Connect runs all of them, one
// after another. A set that Debezium has to deliver is done when each row has arrived; a broken one when the task has
// failed or reported nothing for a while. Anything else ends the command with status 1, and keeps the recordings so
// far.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/debezium"
	"github.com/outboxcdc/outboxcdc/test/golden"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// How long to wait for the records of a set, and for a task to fail before it counts as hanging.
const (
	patience = 60 * time.Second
	silence  = 20 * time.Second
)

func main() {
	dir := flag.String("o", "test/golden/testdata", "folder for the recordings")
	only := flag.String("run", "", "only sets whose names match")
	major := flag.String("postgres", "17", "major version")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := record(ctx, *dir, *only, *major); err != nil {
		fmt.Fprintln(os.Stderr, "golden:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stopped above
	}
}

// recorder has the three servers.
type recorder struct {
	dir     string
	pg      *pgtest.Server
	kafka   kafkatest.Cluster
	connect *debezium.Connect

	postgres string // version
}

func record(ctx context.Context, dir, only, major string) (err error) {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	r := &recorder{dir: dir}
	work, err := os.MkdirTemp("", "outboxcdc-golden-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(work)
		} else {
			err = fmt.Errorf("%w\nDebezium's log is in %s", err, work)
		}
	}()
	if r.pg, err = pgtest.Start(ctx, pgtest.Options{Major: major, Settings: map[string]string{"max_replication_slots": "100"}}); err != nil {
		return err
	}
	defer r.pg.Close()
	if r.kafka, err = kafkatest.StartReal(ctx, kafkatest.RealOptions{QuickStart: true}); err != nil {
		return err
	}
	defer r.kafka.Close()
	r.connect, err = debezium.Start(ctx, debezium.Options{Dir: work, Brokers: r.kafka.Brokers(), QuickStart: true})
	if err != nil {
		return err
	}
	defer func() { _ = r.connect.Proc.Kill() }()
	if err := r.connect.AwaitListening(ctx); err != nil {
		return err
	}
	var failed []error
	for _, set := range golden.Sets() {
		if !chosen.MatchString(set.Name) {
			continue
		}
		begin := time.Now()
		err := r.set(ctx, set)
		fmt.Printf("%-28s %d cases, %v\n", set.Name, len(set.Cases), time.Since(begin).Round(time.Millisecond))
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", set.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// set records one set.
func (r *recorder) set(ctx context.Context, set golden.Set) error {
	database := "golden_" + set.Name
	began := time.Now()
	if err := r.write(ctx, &set, database); err != nil {
		return err
	}
	config, err := debezium.Postgres(r.pg.SuperURL(database))
	if err != nil {
		return err
	}
	maps.Copy(config, set.Connector)
	config["slot.name"] = database
	if err := r.connect.Create(ctx, set.Name, config); err != nil {
		return err
	}
	out := golden.Recording{
		Debezium: debezium.Version, Connect: debezium.ConnectVersion, Kafka: kafkatest.RealVersion, Postgres: r.postgres,
		Recorded: time.Now().UTC().Format(time.DateOnly), Set: set,
	}
	records, err := r.read(ctx, &out)
	if err = errors.Join(err, r.connect.Delete(ctx, set.Name)); err != nil {
		return err
	}
	if out.Results, err = set.Sort(records, began); err != nil {
		return err
	}
	return out.Write(r.dir)
}

// write creates database, topics and slot, and writes the rows.
func (r *recorder) write(ctx context.Context, set *golden.Set, database string) error {
	if err := r.pg.Exec(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	for topic, partitions := range set.Topics {
		if err := kafkatest.CreateTopic(ctx, r.kafka.Brokers(), topic, partitions, nil); err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, r.pg.SuperURL(database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, "SELECT split_part(current_setting('server_version'), ' ', 1)").Scan(&r.postgres); err != nil {
		return err
	}
	if err := set.Make(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", database); err != nil {
		return err
	}
	return set.Play(ctx, conn)
}

// read waits for the records or the failure of the set.
func (r *recorder) read(ctx context.Context, out *golden.Recording) ([]kafkatest.Record, error) {
	set := &out.Set
	want := 0
	for _, c := range set.Cases {
		want += len(c.IDs)
	}
	until := time.Now().Add(patience)
	if set.Broken {
		until = time.Now().Add(silence)
	}
	topics := slices.Sorted(maps.Keys(set.Topics))
	for {
		records, err := kafkatest.ReadAll(ctx, r.kafka.Brokers(), topics...)
		if err != nil {
			return nil, err
		}
		var failed *debezium.Failed
		running := r.connect.Running(ctx, set.Name)
		switch {
		case errors.As(running, &failed) && !set.Broken:
			return nil, fmt.Errorf("the task failed: %s", strings.Join(failed.Causes(), "\n  "))
		case errors.As(running, &failed):
			for _, cause := range failed.Causes() {
				out.Stops = append(out.Stops, strings.ReplaceAll(cause, "golden_"+set.Name, "golden"))
			}
			return records, nil
		case !set.Broken && len(records) >= want:
			return r.awaitSurplus(ctx, records, topics)
		case time.Now().After(until) && set.Broken:
			if out.Hangs = len(records) < want; !out.Hangs {
				return nil, errors.New("everything was delivered, although the set should break Debezium")
			}
			return records, nil
		case time.Now().After(until):
			return nil, errors.Join(fmt.Errorf("%d records have arrived, want %d", len(records), want), running)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// awaitSurplus waits for a fixed time, in which surplus records would arrive: their absence is no condition to wait
// for.
func (r *recorder) awaitSurplus(ctx context.Context, records []kafkatest.Record, topics []string) ([]kafkatest.Record, error) {
	time.Sleep(500 * time.Millisecond)
	later, err := kafkatest.ReadAll(ctx, r.kafka.Brokers(), topics...)
	if err == nil && len(later) != len(records) {
		err = fmt.Errorf("%d records have arrived, more than there are rows", len(later))
	}
	return later, err
}
