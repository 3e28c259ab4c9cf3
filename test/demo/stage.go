package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

const (
	database       = "shop"
	ledgerDatabase = "ledger"
	role           = "outboxcdc" // the relay's; setup creates it
	password       = "demo"
)

// demo is the state of a run. A field is nil until its server or task was started.
type demo struct {
	out      *printer
	dir      string
	postgres *pgtest.Server
	broker   broker
	relay    *relay
	ledger   *ledger
	tally    *tally
	shop     *shop
	stop     context.CancelFunc // ends shop and reader at once
	reader   sync.WaitGroup
	failed   chan error   // of shop and reader: errors that no retry can fix
	second   *time.Ticker // of the live line
}

// prepare starts everything and prints each step. Call leave on its result, also after an error.
func prepare(ctx context.Context, o options, out *printer) (*demo, error) {
	to := targets[o.sink]
	d := &demo{out: out, tally: newTally(to), second: time.NewTicker(time.Second), failed: make(chan error, writers+2)}
	if o.kafka == "real" {
		if err := kafkatest.RealAvailable(); err != nil {
			return d, err
		}
	}
	var err error
	if d.dir, err = os.MkdirTemp("", "outboxcdc-demo-"); err != nil {
		return d, err
	}
	// PostgreSQL refuses root and runs as another user, who must be able to reach its data.
	if err := os.Chmod(d.dir, 0o755); err != nil {
		return d, err
	}
	binary := o.binary
	if binary == "" {
		err := out.step("outboxcdc: built (the first time, a minute)", func() (_ string, err error) {
			binary, err = build(ctx, d.dir)
			return "", err
		})
		if err != nil {
			return d, err
		}
	}
	booking := o.ledger
	if booking == "" && o.sink == "kafka" {
		err := out.step("ledger: built", func() (_ string, err error) {
			booking, err = buildLedger(ctx, d.dir)
			return "", err
		})
		if err != nil {
			return d, err
		}
	}
	if err := d.startPostgres(ctx, o.postgres); err != nil {
		return d, err
	}
	if d.broker, err = to.start(ctx, d, o); err != nil {
		return d, err
	}
	if err := d.startRelay(ctx, binary); err != nil {
		return d, err
	}
	if k, is := d.broker.(kafka); is {
		if err := d.startLedger(ctx, booking, k.Brokers()); err != nil {
			return d, err
		}
	}
	d.openShop(ctx)
	return d, nil
}

func (d *demo) startPostgres(ctx context.Context, major string) error {
	err := d.out.step("PostgreSQL "+major+": fetched if not in the cache (15 MB)", func() (string, error) {
		_, err := pgtest.Fetch(ctx, major)
		return "", err
	})
	if err != nil {
		return err
	}
	return d.out.step("PostgreSQL "+major+": started, with the shop's tables", func() (_ string, err error) {
		if d.postgres, err = pgtest.Start(ctx, pgtest.Options{Major: major, Dir: filepath.Join(d.dir, "postgres")}); err != nil {
			return "", err
		}
		if err := d.postgres.Exec(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
			return "", err
		}
		return fmt.Sprintf("127.0.0.1:%d", d.postgres.Port), d.postgres.Exec(ctx, database, shopSQL...)
	})
}

func (d *demo) startRelay(ctx context.Context, binary string) (err error) {
	d.relay, err = newRelay(binary, d.dir, d.postgres.URL(database, role, password), d.broker.settings())
	if err != nil {
		return err
	}
	err = d.out.step("outboxcdc setup apply: what the relay needs there", func() (string, error) {
		if err := d.relay.setup(ctx, d.postgres.SuperURL(database)); err != nil {
			return "", err
		}
		// setup leaves this to people: the application's privileges, and the role's password.
		made := "role, table, publication, slot"
		if d.tally.target.name == "Kafka" {
			made += ", position topic"
		}
		return made, d.postgres.Exec(ctx, database, outboxGrant,
			"ALTER ROLE "+role+" PASSWORD '"+password+"'")
	})
	if err != nil {
		return err
	}
	return d.out.step("outboxcdc run: the relay", func() (string, error) {
		if err := d.relay.start(); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return d.relay.url + "/status", d.relay.awaitReady(ctx)
	})
}

func (d *demo) startLedger(ctx context.Context, binary string, brokers []string) error {
	return d.out.step("the ledger: a consumer with its own database", func() (string, error) {
		if err := d.postgres.Exec(ctx, "postgres", "CREATE DATABASE "+ledgerDatabase); err != nil {
			return "", err
		}
		d.ledger = &ledger{
			binary: binary, log: filepath.Join(d.dir, "ledger.log"), brokers: brokers,
			url: d.postgres.SuperURL(ledgerDatabase), orders: d.postgres.SuperURL(database),
		}
		if err := d.ledger.migrate(ctx); err != nil {
			return "", err
		}
		return "database " + ledgerDatabase, d.ledger.start()
	})
}

// openShop starts the writers and the reader. They do not end with ctx: after a Ctrl-C with -keep the shop is still
// closed in order.
func (d *demo) openShop(ctx context.Context) {
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.shop = openShop(ctx, d.postgres.URL(database, "shop", "shop"), d.tally, d.failed)
	d.reader.Go(func() {
		if err := d.broker.follow(ctx, d.tally); err != nil {
			d.failed <- err
		}
	})
	d.out.begun = time.Now()
	d.second.Reset(time.Second)
}

// watch prints live lines until the condition holds (nil: until the time is over), and fails when a process ends
// unexpectedly.
func (d *demo) watch(ctx context.Context, most time.Duration, until func() bool) error {
	end := time.NewTimer(most)
	defer end.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if err := d.relay.checkRunning(); err != nil {
			return err
		}
		if until != nil && until() {
			return nil
		}
		select {
		case err := <-d.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			if until != nil {
				return errLate
			}
			return nil
		case <-d.second.C:
			d.out.row(d.tally.look(), d.relay.look(ctx))
		case <-look.C:
		}
	}
}

// runWithLiveLines calls do and prints live lines until it returns.
func (d *demo) runWithLiveLines(ctx context.Context, do func() error) error {
	result := make(chan error, 1)
	go func() { result <- do() }()
	var err error
	watched := d.watch(ctx, startPatience, func() bool {
		select {
		case err = <-result:
			return true
		default:
			return false
		}
	})
	if errors.Is(watched, errLate) {
		watched = fmt.Errorf("a server has not stopped or started, or the shop not closed, within %s", duration(startPatience))
	}
	return errors.Join(watched, err)
}

// errLate says that a condition did not hold in time.
var errLate = errors.New("not in time")

// cleanUp stops and removes everything and returns the status. After a failure it keeps the logs and prints the relay's
// last lines.
func (d *demo) cleanUp(status int) int {
	if d.stop != nil {
		d.stop()
		d.shop.wg.Wait()
		d.reader.Wait()
	}
	var errs []error
	if d.relay != nil {
		errs = append(errs, d.relay.kill())
	}
	if d.ledger != nil {
		errs = append(errs, d.ledger.kill())
	}
	if d.broker != nil {
		errs = append(errs, d.broker.Close())
	}
	if d.postgres != nil {
		errs = append(errs, d.postgres.Close())
	}
	if status != exitBroken {
		errs = append(errs, os.RemoveAll(d.dir))
	} else if logs := d.keepLogs(); len(logs) > 0 {
		if d.relay != nil {
			d.out.text("", "The last lines of the relay's log:", child.Tail(d.relay.log))
		}
		d.out.text("", "Logs are kept:")
		d.out.text(logs...)
	}
	if err := errors.Join(errs...); err != nil {
		d.out.text("", "Cleaning up: "+err.Error())
	}
	return status
}

// keepLogs removes everything except the logs, and returns those.
func (d *demo) keepLogs() []string {
	if d.dir == "" {
		return nil
	}
	for _, junk := range []string{"postgres/data", "kafka/data", "rabbitmq/mnesia", "rabbitmq/quorum", "outboxcdc", "ledger"} {
		_ = os.RemoveAll(filepath.Join(d.dir, junk))
	}
	var logs []string
	for _, pattern := range []string{"*.log", "*/*.log", "*/log"} {
		found, _ := filepath.Glob(filepath.Join(d.dir, pattern))
		logs = append(logs, found...)
	}
	if len(logs) == 0 {
		_ = os.RemoveAll(d.dir)
	}
	return logs
}
