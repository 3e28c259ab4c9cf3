package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxcdc/outboxcdc/test/child"
	"github.com/outboxcdc/outboxcdc/test/daemon"
	"github.com/outboxcdc/outboxcdc/test/faultproxy"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

const (
	partitions = 3
	perRun     = 60               // orders of a producer's run
	patience   = 10 * time.Minute // for a sample, on a busy machine
)

// sample is one sample at work: two databases, a topic, the daemon, and the language's programs.
type sample struct {
	*stage
	language
	dir         string
	kills       bool // of producer and consumer
	topic       string
	commands    commands
	config, url string   // of the daemon
	env         []string // of the daemon
	daemon      *child.Process
	consumer    *child.Process
	worker      *child.Process // of the tasks

	// With another broker than Kafka:
	broker   broker
	proxy    *faultproxy.Proxy // between it and the consumer
	again    int64             // rows that were inserted once more
	repeated int64             // messages that were delivered once more
}

// shop is the producer's database, books the consumer's.
func (s *sample) shop() string  { return "shop_" + s.name }
func (s *sample) books() string { return "books_" + s.name }
func (s *sample) group() string { return "books-" + s.name }

// runSample prepares the language, runs its programs, and returns what was counted.
func runSample(ctx context.Context, st *stage, l language, kills bool) (text string, err error) {
	s := &sample{stage: st, language: l, kills: kills}
	s.dir, s.topic = filepath.Join(st.dir, s.name), s.name+".order"
	defer func() { err = errors.Join(err, s.end()) }()
	source := filepath.Join(s.dir, "sample")
	if err := copyFolder(source, filepath.Join(st.samples, l.folder())); err != nil {
		return "", err
	}
	if s.commands, err = l.prepare(ctx, source); err != nil {
		return "", err
	}
	if l.server != nil {
		s.topic = l.server.topic
		if err := s.openBroker(ctx); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.setUp(ctx); err != nil {
		return "", err
	}
	if l.play != nil {
		return l.play(s, ctx)
	}
	return s.playLedger(ctx)
}

// playLedger is what happens to a sample. After each act the ledger is compared with the orders.
func (s *sample) playLedger(ctx context.Context) (string, error) {
	begin := []func(context.Context) error{s.startDaemon, s.produce, s.startConsumer, s.check("after the first orders")}
	if s.kills {
		begin = []func(context.Context) error{s.killProducer, s.startDaemon, s.produce, s.killConsumer, s.check("after producer and consumer were killed")}
	}
	err := inOrder(ctx, append(begin,
		s.repeat,
		s.check("after the daemon was killed and delivered events again"),
		s.replay, s.sendRecovered,
		s.check("after commands sent events"),
		s.sendRestored,
		s.check("after a restore onto an older timeline"),
	)...)
	if err != nil {
		return "", err
	}
	return s.count(ctx)
}

// inOrder calls steps until one fails.
func inOrder(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// killProducer kills the producer between its two inserts: neither may be left.
func (s *sample) killProducer(ctx context.Context) error {
	if err := s.killWhileWriting(ctx, s.shop(), "outbox", s.startProducer); err != nil {
		return fmt.Errorf("kill the producer: %w\n%s", err, s.log("producer"))
	}
	return nil
}

// killConsumer kills the consumer after it has written the id of an event, and before it can write the effect.
func (s *sample) killConsumer(ctx context.Context) error {
	if err := s.startConsumer(ctx); err != nil {
		return err
	}
	err := s.await(ctx, s.consumer, "consumer", func(ctx context.Context) error {
		if n, err := queryInt(ctx, s.postgres.SuperURL(s.books()), "SELECT count(*) FROM ledger"); err != nil || n == 0 {
			return errors.Join(err, errors.New("the ledger is empty"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = s.killWhileWriting(ctx, s.books(), "ledger", func() (*child.Process, error) { return s.consumer, s.produce(ctx) })
	if err != nil {
		return fmt.Errorf("kill the consumer: %w\n%s", err, s.log("consumer"))
	}
	return s.startConsumer(ctx)
}

// repeat kills the daemon before it has confirmed events that Kafka has, so it delivers them again.
func (s *sample) repeat(ctx context.Context) error {
	if err := inOrder(ctx, s.produce, s.awaitDelivery, s.killDaemon, s.awaitRead); err != nil {
		return err
	}
	before, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
	if err != nil {
		return err
	}
	if err := inOrder(ctx, s.startDaemon, s.produce, s.awaitDelivery); err != nil {
		return err
	}
	// The daemon leaves when Kafka has everything.
	if err := daemon.Stop(ctx, s.daemon); err != nil {
		return fmt.Errorf("stop the daemon: %w\n%s", err, s.log("daemon"))
	}
	records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
	if err != nil {
		return err
	}
	if len(records) <= len(before)+perRun {
		return fmt.Errorf("the daemon was killed and delivered nothing again: %d records, then %d with %d new events",
			len(before), len(records), perRun)
	}
	return nil
}

// replay sends events again that were processed.
func (s *sample) replay(ctx context.Context) error {
	ids, err := queryTexts(ctx, s.postgres.SuperURL(s.shop()),
		"SELECT id::text FROM outbox ORDER BY aggregate_id::bigint DESC LIMIT 5")
	if err != nil {
		return err
	}
	args := []string{"replay"}
	for _, id := range ids {
		args = append(args, "--id", id)
	}
	return s.outboxcdc(ctx, args...)
}

// count returns what happened.
func (s *sample) count(ctx context.Context) (string, error) {
	records, err := kafkatest.ReadAll(ctx, s.kafka.Brokers(), s.topic)
	if err != nil {
		return "", err
	}
	events := len(idsOf(records))
	return fmt.Sprintf("%d orders booked once, from %d records (%d duplicates)", events, len(records), len(records)-events), nil
}

// end ends the processes.
func (s *sample) end() error {
	var errs []error
	for _, p := range []*child.Process{s.consumer, s.worker, s.daemon} {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	if s.proxy != nil {
		errs = append(errs, s.proxy.Close())
	}
	if s.broker != nil {
		s.broker.close()
	}
	return errors.Join(errs...)
}

// produce runs the producer to its end.
func (s *sample) produce(ctx context.Context) error {
	p, err := s.startProducer()
	if err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return errors.Join(err, p.Kill())
	}
	if err := p.Err(); err != nil {
		return fmt.Errorf("the producer failed: %w\n%s", err, s.log("producer"))
	}
	return nil
}

func (s *sample) startProducer() (*child.Process, error) {
	command := append(s.commands.producer[:len(s.commands.producer):len(s.commands.producer)], strconv.Itoa(perRun))
	return start(s.dir, "producer", []string{"DATABASE_URL=" + s.convert(s.postgres.URL(s.shop(), app, password))}, command...)
}

func (s *sample) startConsumer(context.Context) (err error) {
	command := append(s.commands.consumer[:len(s.commands.consumer):len(s.commands.consumer)], s.group(), s.topic)
	env := []string{"DATABASE_URL=" + s.convert(s.postgres.URL(s.books(), app, password))}
	if s.broker == nil {
		env = append(env, "BOOTSTRAP_SERVERS="+strings.Join(s.kafka.Brokers(), ","))
	} else {
		env = slices.Concat(env, s.broker.env(), s.broker.client(s.proxy.Addr()))
	}
	s.consumer, err = start(s.dir, "consumer", env, command...)
	return err
}

func (s *sample) convert(url string) string {
	if s.databaseURL == nil {
		return url
	}
	return s.databaseURL(url)
}

// setUp creates databases, tables and topic, and runs `outboxcdc setup apply`.
func (s *sample) setUp(ctx context.Context) error {
	for _, name := range []string{s.shop(), s.books()} {
		if err := s.postgres.Exec(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
			return err
		}
	}
	if err := s.executeFile(ctx, s.shop(), "orders.sql"); err != nil {
		return err
	}
	tables := s.tables
	if tables == nil {
		tables = func(s *sample, ctx context.Context) error { return s.executeFile(ctx, s.books(), "consumer.sql") }
	}
	if err := tables(s, ctx); err != nil {
		return err
	}
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	listen := "127.0.0.1:" + strconv.Itoa(port)
	s.config, s.url = filepath.Join(s.dir, "outboxcdc.yaml"), "http://"+listen
	target, topic := "", s.topic
	if s.broker == nil {
		target, topic = fmt.Sprintf("kafka:\n  brokers: [%q]\n", strings.Join(s.kafka.Brokers(), `", "`)), s.name+".{aggregate_type}"
	} else {
		target, s.env = s.broker.config(), s.broker.env()
	}
	// At least once, and no position is confirmed: a killed daemon delivers everything again.
	yaml := fmt.Sprintf("postgres:\n  url: %s\n  slot: %s\n%sroute:\n  topic: %q\nhttp:\n  listen: %s\n"+
		"delivery:\n  mode: at_least_once\ntuning:\n  status_interval: 1h\n",
		s.postgres.URL(s.shop(), role, password), s.name, target, topic, listen)
	if err := os.WriteFile(s.config, []byte(yaml), 0o600); err != nil {
		return err
	}
	if err := s.outboxcdc(ctx, "setup", "apply", "--function"); err != nil {
		return err
	}
	if err := s.postgres.Exec(ctx, s.shop(), "GRANT INSERT, SELECT ON orders TO "+app, "GRANT INSERT ON outbox TO "+app); err != nil {
		return err
	}
	if err := s.postgres.Exec(ctx, s.books(), "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO "+app); err != nil {
		return err
	}
	if s.broker != nil {
		return nil
	}
	return kafkatest.CreateTopic(ctx, s.kafka.Brokers(), s.topic, partitions, nil)
}

func (s *sample) executeFile(ctx context.Context, database, file string) error {
	text, err := os.ReadFile(filepath.Join(s.samples, file))
	if err != nil {
		return err
	}
	if err := executeSQL(ctx, s.postgres.SuperURL(database), string(text)); err != nil {
		return fmt.Errorf("execute %s: %w", file, err)
	}
	return nil
}

// outboxcdc runs a command as a superuser.
func (s *sample) outboxcdc(ctx context.Context, args ...string) error {
	super := s.postgres.SuperURL(s.shop())
	env := append([]string{"OUTBOXCDC_SETUP_URL=" + super}, s.env...)
	if args[0] != "setup" {
		env = append(env, "OUTBOXCDC_POSTGRES_URL="+super)
	}
	_, err := daemon.Run(ctx, s.binary, s.config, env, args...)
	return err
}

// startDaemon returns when the daemon is ready.
func (s *sample) startDaemon(ctx context.Context) (err error) {
	if s.daemon, err = start(s.dir, "daemon", s.env, s.binary, "-c", s.config, "run"); err != nil {
		return err
	}
	return s.await(ctx, s.daemon, "daemon", func(ctx context.Context) error { return daemon.Ready(ctx, s.url) })
}

func (s *sample) killDaemon(context.Context) error { return s.daemon.Kill() }

// await polls until the condition holds. The error contains the end of the process's log.
func (s *sample) await(ctx context.Context, p *child.Process, name string, condition func(context.Context) error) error {
	if err := p.Poll(ctx, condition); err != nil {
		return fmt.Errorf("wait for the %s: %w\n%s", name, err, s.log(name))
	}
	return nil
}

func (s *sample) log(name string) string { return child.Tail(filepath.Join(s.dir, name+".log")) }
