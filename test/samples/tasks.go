package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// prepareTasks builds the program. dir is a copy, from which the modules of this repository cannot be found.
func prepareTasks(ctx context.Context, dir string) (commands, error) {
	root, err := daemon.ModuleRoot()
	program := filepath.Join(dir, "tasks")
	if err == nil {
		err = execute(filepath.Join(root, "samples", "tasks"), []string{"GOWORK=off", "CGO_ENABLED=0"}, "go", "build", "-o", program, ".")
	}
	return commands{producer: []string{program, "order"}, consumer: []string{program, "consume"}}, err
}

// migrateTasks creates the tables of the reports.
func (s *sample) migrateTasks(ctx context.Context) error {
	err := execute(s.dir, []string{"DATABASE_URL=" + s.postgres.SuperURL(s.books())}, s.commands.consumer[0], "migrate")
	if err != nil {
		return err
	}
	return s.postgres.Exec(ctx, s.books(), "GRANT DELETE ON ALL TABLES IN SCHEMA public TO "+app, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "+app)
}

// playTasks kills the worker while it works on reports, and the consumer, and lets the daemon and a command send events
// again. After each act there is one report for each order, and no job is left.
func (s *sample) playTasks(ctx context.Context) (string, error) {
	err := inOrder(ctx,
		s.startDaemon, s.produce, s.startConsumer, s.startWorker, s.checkReports("after the first orders"),
		s.killWorker, s.killTaskConsumer, s.checkReports("after worker and consumer were killed"),
		s.produce, s.awaitDelivery, s.killDaemon, s.startDaemon, s.replay, s.produce, s.checkReports("after events were sent again"),
	)
	if err != nil {
		return "", err
	}
	records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
	if err != nil {
		return "", err
	}
	rescued, err := queryInt(ctx, s.postgres.SuperURL(s.books()), "SELECT count(*) FROM river_job WHERE attempt > 1")
	if err == nil && rescued == 0 {
		err = errors.New("the worker was killed, and no job was rescued")
	}
	events := len(idsOf(records))
	return fmt.Sprintf("%d reports, one for each order, from %d records (%d duplicates), %d after a rescue", events, len(records), len(records)-events, rescued), err
}

func (s *sample) startWorker(context.Context) (err error) {
	s.worker, err = start(s.dir, "worker", []string{"DATABASE_URL=" + s.postgres.URL(s.books(), app, password)}, s.commands.consumer[0], "work")
	return err
}

// killWorker kills the worker while it works on jobs, and starts another one.
func (s *sample) killWorker(ctx context.Context) error {
	if err := s.produce(ctx); err != nil {
		return err
	}
	err := s.await(ctx, s.worker, "worker", func(ctx context.Context) error {
		n, err := queryInt(ctx, s.postgres.SuperURL(s.books()), "SELECT count(*) FROM river_job WHERE state = 'running'")
		if err == nil && n == 0 {
			err = errors.New("the worker has nothing to do")
		}
		return err
	})
	return errors.Join(err, s.worker.Kill(), s.startWorker(ctx))
}

func (s *sample) killTaskConsumer(ctx context.Context) error {
	return errors.Join(s.consumer.Kill(), s.startConsumer(ctx), s.produce(ctx))
}

// checkReports waits until all jobs are done.
func (s *sample) checkReports(when string) func(context.Context) error {
	check := s.check(when)
	return func(ctx context.Context) error {
		if err := s.awaitDelivery(ctx); err != nil {
			return err
		}
		if err := s.awaitRead(ctx); err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		err := s.await(ctx, s.worker, "worker", func(ctx context.Context) error {
			n, err := queryInt(ctx, s.postgres.SuperURL(s.books()), "SELECT count(*) FROM river_job WHERE state <> 'completed'")
			if err == nil && n > 0 {
				err = fmt.Errorf("%d jobs are not done", n)
			}
			return err
		})
		if err != nil {
			return err
		}
		return check(ctx)
	}
}
