package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// stage is everything that a scenario needs: the cluster, Kafka, two instances of the daemon, the load and a reader.
type stage struct {
	dir     string
	cluster *cluster
	kafka   kafkatest.Cluster
	relays  [2]*relay
	load    *load
	arrived *arrivals

	stopReading context.CancelFunc
	reading     sync.WaitGroup
}

// openStage starts everything, and returns when events flow. Close its result, also after an error.
func openStage(ctx context.Context, o options, t tools, c clusterOptions) (*stage, error) {
	s := &stage{arrived: newArrivals()}
	var err error
	if s.dir, err = os.MkdirTemp("", "outboxcdc-failover-"); err != nil {
		return s, err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return s, err
	}
	if s.cluster, err = startCluster(ctx, t, filepath.Join(s.dir, "cluster"), c); err != nil {
		return s, err
	}
	if s.kafka, err = startKafka(ctx, o.kafka); err != nil {
		return s, err
	}
	if err := kafkatest.CreateTopic(ctx, s.kafka.Brokers(), topic, 6, nil); err != nil {
		return s, err
	}
	binary := filepath.Join(s.dir, "outboxcdc")
	if err := copyBinary(o.binary, binary); err != nil {
		return s, err
	}
	for i := range s.relays {
		if s.relays[i], err = newRelay(s.cluster, fmt.Sprintf("outboxcdc%d", i+1), binary, s.kafka.Brokers()); err != nil {
			return s, err
		}
	}
	primary, _, err := s.cluster.primary(ctx)
	if err != nil {
		return s, err
	}
	if err := prepareDatabase(ctx, primary, s.relays[0]); err != nil {
		return s, err
	}
	if err := s.startRelays(); err != nil {
		return s, err
	}
	reading, stop := context.WithCancel(ctx)
	s.stopReading = stop
	s.reading.Go(func() {
		_ = kafkatest.Follow(reading, s.kafka.Brokers(), func(r kafkatest.Record) { s.arrived.arrive(idOf(r), time.Now()) }, topic)
	})
	s.load = startLoad(ctx, s.cluster.url("shop"), o.rate, s.arrived)
	return s, s.await(ctx, "events to arrive", func(context.Context) error {
		if s.arrived.records() == 0 {
			return errNotYet
		}
		return nil
	})
}

func startKafka(ctx context.Context, kind string) (kafkatest.Cluster, error) {
	if kind == "real" {
		return kafkatest.StartReal(ctx, kafkatest.RealOptions{})
	}
	return kafkatest.StartFake(ctx, kafkatest.FakeOptions{})
}

func (s *stage) startRelays() error {
	for _, r := range s.relays {
		if err := r.start(); err != nil {
			return err
		}
	}
	return nil
}

// await polls until do returns nil, and fails at once when an instance or the load has ended.
func (s *stage) await(ctx context.Context, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := s.cluster.await(ctx, what, func(ctx context.Context) error {
		for _, r := range s.relays {
			if r.proc != nil && r.proc.Exited() {
				cancel(fmt.Errorf("%s has ended with exit code %d; its log ends with:\n%s", r.name, daemon.ExitCode(r.proc), child.Tail(r.log)))
			}
		}
		if s.load != nil {
			select {
			case err := <-s.load.failed:
				cancel(err)
			default:
			}
		}
		return do(ctx)
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return errors.Join(cause, err)
	}
	return err
}

// settle stops the load and compares all records with all rows of the primary. A row that has no record after
// patience is missing.
func (s *stage) settle(ctx context.Context) (check.Report, error) {
	s.load.close()
	var report check.Report
	rows, err := s.rows(ctx)
	if err != nil {
		return report, err
	}
	err = s.await(ctx, "every row to be in Kafka", func(ctx context.Context) error {
		records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), topic)
		if err != nil {
			return err
		}
		report = check.Check(rows, toRecords(records))
		if len(report.Missing) > 0 {
			pause(ctx, time.Second)
			return errNotYet
		}
		return nil
	})
	if errors.Is(err, errNotYet) { // the report says what is missing
		err = nil
	}
	return report, err
}

// rows returns the records that the rows of the primary must become. The load numbers the events of each writer.
func (s *stage) rows(ctx context.Context) ([]check.Row, error) {
	conn, err := pgx.Connect(ctx, s.cluster.url(superuser))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	found, err := conn.Query(ctx, `SELECT id::text, aggregate_id, payload::text FROM outbox ORDER BY (payload->>'n')::bigint`)
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	return pgx.CollectRows(found, func(row pgx.CollectableRow) (check.Row, error) {
		var id, key, value string
		err := row.Scan(&id, &key, &value)
		count[key]++
		return check.Row{ID: id, Topic: topic, Key: []byte(key), Value: []byte(value), Seq: count[key]}, err
	})
}

func toRecords(records []kafkatest.Record) (out []check.Record) {
	for i := range records {
		out = append(out, records[i].Check())
	}
	return out
}

func idOf(r kafkatest.Record) string {
	for _, h := range r.Headers {
		if h.Key == "id" {
			return string(h.Value)
		}
	}
	return ""
}

// phantoms is the number of phantoms that the instances have counted.
func (s *stage) phantoms(ctx context.Context) (int, error) {
	sum := 0.0
	for _, r := range s.relays {
		n, err := r.metric(ctx, "outboxcdc_phantom_events_total")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return int(sum), nil
}

// judged ends everything. The logs and the data of a broken promise stay.
func (s *stage) judged(v outcome, keep bool) (outcome, error) {
	if len(v.broken) > 0 {
		keep = true
		v.broken = append(v.broken, "logs and data are in "+s.dir)
	}
	return v, s.close(keep)
}

// close ends everything. With keep, the logs and the data stay.
func (s *stage) close(keep bool) error {
	var failed []error
	if s.load != nil {
		s.load.close()
	}
	if s.stopReading != nil {
		s.stopReading()
		s.reading.Wait()
	}
	for _, r := range s.relays {
		failed = append(failed, r.close())
	}
	if s.cluster != nil {
		failed = append(failed, s.cluster.close())
	}
	if s.kafka != nil {
		failed = append(failed, s.kafka.Close())
	}
	if !keep {
		failed = append(failed, os.RemoveAll(s.dir))
	}
	return errors.Join(failed...)
}
