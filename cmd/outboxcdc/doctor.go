package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/deadletter"
)

// doctorTimeout is the default of --timeout.
const doctorTimeout = 30 * time.Second

// longTransaction is the age from which on `doctor` reports an open transaction.
const longTransaction = 10 * time.Minute

func newDoctorCommand(load func() (*config.Config, error), files *[]string) *cobra.Command {
	var topics []string
	cmd := newCheckCommand(&cobra.Command{
		Use:     "doctor",
		Aliases: []string{"check"},
		Short:   "Check all prerequisites in Postgres and Kafka and suggest fixes",
		Long: "Check Postgres, the outbox, the publication, the slot, Kafka and the topics as the daemon would, and print one line\n" +
			"for each check: OK; WARN if the daemon runs at a risk; FAIL if it does not run or deliver; and what to do about it. It\n" +
			"changes nothing and may run beside the daemon. Topics come from the settings and from the newest rows of the outbox.\n" +
			"Exit code: 0, or the highest of all FAILs: 69 a server is unavailable or unhealthy, 77 a privilege is missing, 78 a\n" +
			"setting is wrong, 79 slot, publication or table is missing, lost or changed, or there are two primaries.\n" +
			"docs/doctor.md lists the checks.",
	}, load, files, &topics, doctor.Run)
	cmd.Flags().StringArrayVar(&topics, "topic", nil, "a topic to check that neither the settings nor rows name yet; may be repeated")
	return cmd
}

// newCheckCommand completes a command that runs checks and prints their report.
func newCheckCommand(cmd *cobra.Command, load func() (*config.Config, error), files, topics *[]string, check func(context.Context, doctor.Config) *doctor.Report) *cobra.Command {
	var output string
	var timeout time.Duration
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return usageError(fmt.Errorf("--timeout %v: write a time above zero, such as 30s", timeout))
		}
		cfg, err := load()
		if err != nil {
			return err
		}
		config, err := doctorConfig(cfg, *topics, *files)
		if err != nil {
			return exit.With(exit.Config, err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		report := check(ctx, config)
		if err := printAs(cmd.OutOrStdout(), output, report, report.String()); err != nil {
			return err
		}
		if report.Exit != 0 {
			return exit.Logged(report.Exit, errors.New("a check failed"))
		}
		return nil
	}
	cmd.Flags().DurationVar(&timeout, "timeout", doctorTimeout, "how long all checks may take together")
	addOutputFlag(cmd, &output)
	return cmd
}

// doctorConfig is the configuration of the checks.
func doctorConfig(cfg *config.Config, topics, files []string) (doctor.Config, error) {
	c := doctor.Config{
		Slot: cfg.Postgres.Slot, Publication: cfg.Postgres.Publication, Messages: cfg.Messages.Prefix,
		SenderTimeout: cfg.Tuning.WALSenderTimeout, Retention: doctor.Retention{Mode: cfg.Retention.Mode, Keep: cfg.Retention.Keep, Slots: cfg.Retention.Slots},
		Brokers: cfg.Kafka.Brokers, Partitions: cfg.Route.Partitions, Cut: cfg.Poison.Oversize == "cut",
		Topics: append(fixedTopics(cfg), topics...), OwnTime: hasOwnTime(cfg),
		Command: "outboxcdc", Now: time.Now, LongTransaction: longTransaction, EventSources: cfg.EventSources(),
	}
	for _, f := range files {
		c.Command += " -c " + shellWord(f)
	}
	if p := wire.PoisonPolicies(&cfg.Poison); p.SendsDeadLetters() {
		c.Letters = cfg.Poison.Topic
		if p.HoldsKeys() {
			c.HeldGroup = deadletter.Group(cfg.Postgres.Slot)
		}
	}
	if cfg.Deduplicated() {
		c.Positions = cfg.Delivery.PositionTopic
	}
	if cfg.TLS.Enabled || cfg.Kafka.SASL.Mechanism != "" {
		c.Client = " --command-config <client.properties>"
	}
	if cfg.Kafka.SASL.Mechanism != "OAUTHBEARER" { // with OAUTHBEARER the token names the user
		c.User = cfg.Kafka.SASL.User
	}
	for _, s := range cfg.Sources() {
		schema, name := s.Name()
		c.Tables = append(c.Tables, doctor.Table{
			Schema: schema, Name: name, Needs: wire.RouterConfig(&s.Columns, &s.Route).Needs(), Routing: routingColumns(&s),
			Order: s.Order, CreatedAt: s.Columns.CreatedAt,
			ID: wire.RouterConfig(&s.Columns, &s.Route).IDColumns(),
		})
	}
	dsn, err := cfg.PostgresAddress()
	if err != nil {
		return c, err
	}
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return c, fmt.Errorf("postgres.url: %w", err)
	}
	c.Role, c.Database, c.Server = cc.User, cc.Database, serverName(cc)
	c.NoURL = dsn == "" && os.Getenv("PGHOST") == "" && os.Getenv("PGSERVICE") == ""
	c.NoPassword = cc.Password == ""
	if sasl := wire.KafkaSASL(cfg); sasl != nil && sasl.Local() {
		c.TokenCommand = sasl.Token
	}
	// Errors are in the report, so nothing is logged.
	log := slog.New(slog.DiscardHandler)
	if c.Source, err = wire.Source(wire.Fixed(cfg), log); err != nil {
		return c, err
	}
	if cfg.PasswordFromCommand(dsn) {
		c.NoPassword, c.PasswordCommand = false, c.Source.Password
	}
	c.AutoStandbys = cfg.AutoStandbys()
	if c.Standbys, err = standbyHosts(cfg); err != nil {
		return c, err
	}
	if c.Router, err = wire.Router(cfg); err != nil {
		return c, err
	}
	if cfg.HasReceiver() {
		receiver, err := wire.OpenReceiver(wire.Fixed(cfg), prometheus.NewRegistry(), log)
		if err != nil {
			return c, err
		}
		c.Receiver, c.ReceiverName = receiver.Probe, cfg.Redacted().Receiver.URL
		if r, ok := receiver.(interface {
			Durability(context.Context) (string, []string, error)
		}); ok {
			c.Durability = r.Durability
		}
		if r, ok := receiver.(interface {
			Durability(context.Context, []string) (string, []string, error)
		}); ok {
			c.Durability = func(ctx context.Context) (string, []string, error) { return r.Durability(ctx, c.Topics) }
		}
		return c, nil
	}
	c.Kafka, err = wire.ClusterWith(wire.Fixed(cfg), prometheus.NewRegistry(), log, func(k *kafka.Config) {
		k.DialTimeout, k.AskTimeout = 3*time.Second, 5*time.Second // short, because a person waits
	})
	return c, err
}

// shellWord quotes s for a shell, if necessary.
func shellWord(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-+=") == "" && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// serverName is host:port of the server, for people.
func serverName(cc *pgx.ConnConfig) string {
	host := cc.Host
	if strings.HasPrefix(host, "/") { // a socket
		host = "localhost"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(cc.Port)))
}

// routes are those of all tables, and of logical messages.
func routes(cfg *config.Config) (all []*config.Route) {
	for _, s := range cfg.Sources() {
		all = append(all, &s.Route)
	}
	if cfg.Messages.Prefix != "" {
		all = append(all, &cfg.Route)
	}
	return all
}

// fixedTopics are the topics that do not depend on rows.
func fixedTopics(cfg *config.Config) []string {
	var all []string
	for _, r := range routes(cfg) {
		if r.Topic != "" && !strings.Contains(r.Topic, "{") {
			all = append(all, r.Topic)
		}
		for _, topic := range r.Topics {
			all = append(all, topic)
		}
		if r.Unmatched != router.UnmatchedPoison && r.Unmatched != router.UnmatchedKeep {
			all = append(all, r.Unmatched)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hasOwnTime reports whether the timestamp of any record is not the time of sending.
func hasOwnTime(cfg *config.Config) bool {
	return slices.ContainsFunc(routes(cfg), func(r *config.Route) bool { return r.Timestamp != router.TimestampProduce })
}

// routingColumns are the columns that may decide about the topic of a row, without the payload.
func routingColumns(s *config.Source) []string {
	c := s.Columns
	return router.Config{
		Columns: router.Columns{ID: c.ID, AggregateType: c.AggregateType, AggregateID: c.AggregateID, EventType: c.EventType},
		Topic:   s.Route.Topic, Timestamp: router.TimestampProduce,
	}.Needs()
}
