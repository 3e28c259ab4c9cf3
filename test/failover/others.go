package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
)

// uncleaned never drops the slot that the first primary keeps when it becomes a standby. The slot is in the way of
// the copy, so the next time that this server is the primary, it has that old slot. As long as the slot holds its
// WAL, nothing is missing. When it has lost its WAL, the daemon stops, and recover brings what is missing.
func uncleaned(ctx context.Context, o options, t tools, out *printer) (outcome, error) {
	s, err := openStage(ctx, o, t, clusterOptions{synchronized: true})
	if err != nil {
		return outcome{}, s.fail(err)
	}
	v, err := s.keepLeftover(ctx, out)
	if err != nil {
		return outcome{}, s.fail(err)
	}
	return s.judged(v, o.keep)
}

func (s *stage) keepLeftover(ctx context.Context, out *printer) (v outcome, err error) {
	if _, err := s.awaitReady(ctx); err != nil {
		return v, err
	}
	first, second, err := s.cluster.primary(ctx)
	if err != nil {
		return v, err
	}
	if err := s.switchAndDeliver(ctx, first, second); err != nil {
		return v, err
	}
	if err := s.awaitLeftover(ctx, first, second); err != nil {
		return v, err
	}
	if err := s.switchAndDeliver(ctx, second, first); err != nil {
		return v, err
	}
	out.text("  the old slot of %s has its WAL: delivery went on from it", first.name)
	if err := s.switchAndDeliver(ctx, first, second); err != nil {
		return v, err
	}
	if err := s.awaitLeftover(ctx, first, second); err != nil {
		return v, err
	}
	if err := s.loseWAL(ctx, first, second); err != nil {
		return v, err
	}
	if err := s.cluster.switchover(ctx, second, first); err != nil {
		return v, err
	}
	code, err := s.firstExit(ctx)
	if err != nil {
		return v, err
	}
	out.text("  the old slot of %s had lost its WAL: the daemon ended with exit code %d", first.name, code)
	v.expect(code == exit.Lost, "the daemon ended with exit code %d, want %d", code, exit.Lost)
	return v, s.recover(ctx, &v, out)
}

// switchAndDeliver switches over and returns when an event of the new primary is in Kafka.
func (s *stage) switchAndDeliver(ctx context.Context, from, to *node) error {
	s.arrived.watch(to.address())
	if err := s.cluster.switchover(ctx, from, to); err != nil {
		return err
	}
	return s.awaitDelivery(ctx, to)
}

// awaitDelivery waits until an event of the watched primary is in Kafka.
func (s *stage) awaitDelivery(ctx context.Context, from *node) error {
	return s.await(ctx, "delivery from "+from.name, func(context.Context) error {
		if s.arrived.firstArrival().IsZero() {
			return errNotYet
		}
		return nil
	})
}

// awaitLeftover waits until the former primary streams with its old slot, and then for events that this slot lacks.
func (s *stage) awaitLeftover(ctx context.Context, former, primary *node) error {
	before := s.arrived.records()
	return s.await(ctx, "the slot of "+former.name+" to be in the way", func(ctx context.Context) error {
		slot, err := former.slot(ctx)
		if err != nil || !slot.leftover || s.arrived.records() < before+1000 {
			return errors.Join(err, fmt.Errorf("the slot is %s", slot.text))
		}
		return primary.hasStandby(ctx, former.name)
	})
}

// loseWAL sets max_slot_wal_keep_size and writes more WAL than that, until the old slot has lost its own.
func (s *stage) loseWAL(ctx context.Context, former, primary *node) error {
	if err := s.cluster.setParameter(ctx, "max_slot_wal_keep_size", "64MB"); err != nil {
		return err
	}
	return s.await(ctx, "the slot of "+former.name+" to lose its WAL", func(ctx context.Context) error {
		slot, err := former.slot(ctx)
		if err != nil || slot.lost {
			return err
		}
		// 16 MB each time, and a restart point, which invalidates the slot.
		if err := primary.query(ctx, "postgres", "SELECT pg_switch_wal(); CHECKPOINT"); err != nil {
			return err
		}
		pause(ctx, 200*time.Millisecond)
		if err := former.query(ctx, "postgres", "CHECKPOINT"); err != nil {
			return err
		}
		return fmt.Errorf("the slot is %s", slot.text)
	})
}

// firstExit waits until the instance that had the slot has ended, and then ends the other one too.
func (s *stage) firstExit(ctx context.Context) (code int, err error) {
	err = s.cluster.await(ctx, "an instance to end", func(context.Context) error {
		for _, r := range s.relays {
			if r.proc.Exited() {
				code = daemon.ExitCode(r.proc)
				return nil
			}
		}
		return errNotYet
	})
	for _, r := range s.relays {
		err = errors.Join(err, r.close())
	}
	return code, err
}

// recover runs `outboxcdc recover` and starts the instances again.
func (s *stage) recover(ctx context.Context, v *outcome, out *printer) error {
	text, err := s.relays[0].run(ctx, "recover", "--yes")
	if err != nil {
		return err
	}
	out.text("  outboxcdc recover:")
	out.indented(text)
	if err := s.startRelays(); err != nil {
		return err
	}
	if _, err := s.awaitReady(ctx); err != nil { // the new slot is a failover slot as well
		return err
	}
	if v.report, err = s.settle(ctx); err != nil {
		return err
	}
	v.expect(v.report.OK(), "the records are those of the rows: %s", v.report)
	return nil
}

// lossy kills the primary while its standby lacks transactions that Kafka has: synchronized_standby_slots is not set.
func lossy(ctx context.Context, o options, t tools, out *printer) (outcome, error) {
	s, err := openStage(ctx, o, t, clusterOptions{})
	if err != nil {
		return outcome{}, s.fail(err)
	}
	v, err := s.loseTransactions(ctx, out)
	if err != nil {
		return outcome{}, s.fail(err)
	}
	return s.judged(v, o.keep)
}

func (s *stage) loseTransactions(ctx context.Context, out *printer) (v outcome, err error) {
	if _, err := s.awaitReady(ctx); err != nil {
		return v, err
	}
	primary, standby, err := s.cluster.primary(ctx)
	if err != nil {
		return v, err
	}
	var sender int
	if err := primary.query(ctx, "postgres", `SELECT active_pid FROM pg_replication_slots WHERE slot_name = '`+standby.name+`'`, &sender); err != nil {
		return v, err
	}
	// What the frozen process has not sent, the standby never gets.
	if err := syscall.Kill(sender, syscall.SIGSTOP); err != nil {
		return v, err
	}
	before := s.arrived.records()
	if err := s.await(ctx, "events that the standby lacks", func(context.Context) error {
		if s.arrived.records() < before+500 {
			return errNotYet
		}
		return nil
	}); err != nil {
		return v, err
	}
	s.arrived.watch(standby.address())
	if err := errors.Join(primary.kill9(), syscall.Kill(sender, syscall.SIGKILL)); err != nil {
		return v, err
	}
	if err := s.await(ctx, standby.name+" to be the primary", standby.isPrimary); err != nil {
		return v, err
	}
	if err := s.awaitDelivery(ctx, standby); err != nil {
		return v, err
	}
	pause(ctx, time.Second) // of new events
	if v.report, err = s.settle(ctx); err != nil {
		return v, err
	}
	counted, err := s.phantoms(ctx)
	if err != nil {
		return v, err
	}
	found := len(v.report.Phantom)
	out.text("  Kafka has %d events whose transactions the failover lost; the daemon counts %d", found, counted)
	v.expect(found > 0, "no transaction was lost: this run proves nothing")
	v.expect(counted == found, "the daemon counts %d phantoms, Kafka has %d", counted, found)
	v.report.Phantom = nil
	v.expect(v.report.OK(), "apart from the phantoms, the records are those of the rows: %s", v.report)
	v.report.Phantom = make([]string, found)
	return v, nil
}

// fail adds what the processes logged to an error, and ends the processes. The folder stays.
func (s *stage) fail(err error) error {
	logs := ""
	if s.cluster != nil {
		logs = s.cluster.logTails()
	}
	for _, r := range s.relays {
		if r != nil {
			logs += fmt.Sprintf("--- %s\n%s\n", r.name, child.Tail(r.log))
		}
	}
	return errors.Join(fmt.Errorf("%w\n%s\nall logs are in %s", err, logs, s.dir), s.close(true))
}
