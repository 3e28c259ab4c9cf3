package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/setup"
	"github.com/outboxcdc/outboxcdc/internal/wire"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sql"
)

// defaultRole is the daemon's role when postgres.url names no user.
const defaultRole = "outboxcdc"

// newSetupCommand is the command `setup sql|apply`.
func newSetupCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	return group(&cobra.Command{
		Use:   "setup",
		Short: "Create the role, table, publication, slot and topics",
	}, newSetupSQLCommand(loadConfig), newSetupApplyCommand(loadConfig))
}

func newSetupSQLCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	var server, output, platform string
	var partitioned, rds, noSlot, beside bool
	var ring ringFlags
	var shards, from int
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the SQL without executing it",
		Long: "Print the SQL without executing it. With --for, print the settings instead, for the servers and for what runs them,\n" +
			"that let the slot survive repeated failovers (PostgreSQL 17 and later).",
		Args: noArgs,
		RunE: withConfig(loadConfig, func(cmd *cobra.Command, cfg *config.Config) error {
			p, err := setupParams(cfg)
			if err != nil {
				return err
			}
			p.Timeout, p.RDS, p.NoSlot = setup.DefaultTimeout, rds, noSlot
			for i := range p.Tables {
				p.Tables[i].Partitioned = partitioned
			}
			if err := ring.apply(&p); err != nil {
				return err
			}
			if cmd.Flags().Changed("shards") {
				if err := p.Share(shards); err != nil {
					return usageError(err)
				}
			}
			if p.Beside = beside; beside && (shards == 0 || !noSlot) {
				return usageError(errors.New("--beside needs --shards and --no-slot: setup sql --from creates the slots later"))
			}
			if cmd.Flags().Changed("from") {
				return printHandOver(cmd, p, from, output)
			}
			name, _, _ := strings.Cut(server, ".")
			major, err := strconv.Atoi(name)
			if err != nil {
				return usageError(fmt.Errorf("--server-version %s: write a major version, %d or later", server, sql.MinMajor))
			}
			if warning := sql.Untested(major); warning != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "note: "+warning)
			}
			if platform != "" {
				if rds || partitioned || noSlot || ring.partitions > 0 || shards > 0 {
					return usageError(errors.New("--for prints settings and no SQL: remove --rds, --partitioned, --ring, --shards and --no-slot"))
				}
				text, err := sql.Failover(p, platform, major)
				if err != nil {
					return usageError(err)
				}
				return printAs(cmd.OutOrStdout(), output, map[string]string{"for": platform, "text": text}, text)
			}
			statements, err := sql.Setup(p, major)
			if err != nil {
				return usageError(err)
			}
			return printAs(cmd.OutOrStdout(), output, statements, fmt.Sprintf(
				"-- outboxcdc %s: set-up for PostgreSQL %d. Run it once, in the database of the outbox, as a role with the required privileges.\n\n%s",
				buildVersion(), major, statements)+commentsAfterSQL(&p, cfg))
		}),
	}
	cmd.Flags().StringVar(&server, "server-version", "17", "the server's major version, 14 or later")
	cmd.Flags().StringVar(&platform, "for", "", "print the settings for repeated failovers: `platform` is "+strings.Join(sql.FailoverPlatforms(), ", "))
	cmd.Flags().BoolVar(&rds, "rds", false, "the server is Amazon RDS or Aurora, which grant REPLICATION through the role rds_replication")
	cmd.Flags().BoolVar(&partitioned, "partitioned", false, "the table is partitioned (or all of several tables)")
	ring.add(cmd)
	cmd.Flags().IntVar(&shards, "shards", 0, fmt.Sprintf("create the table with %d partitions that this many daemons share, each with a publication and a slot", sql.Leaves))
	cmd.Flags().IntVar(&from, "from", 0, "with --shards: print the SQL that hands over from this number of daemons; 0: from one that delivers a table without these partitions")
	cmd.Flags().BoolVar(&beside, "beside", false, "with --shards: create the table in the schema "+sql.NewSchema+", beside one without these partitions, which it replaces later")
	addNoSlotFlag(cmd, &noSlot)
	addOutputFlag(cmd, &output)
	return cmd
}

// printHandOver prints the SQL that gives the outbox to another number of daemons.
func printHandOver(cmd *cobra.Command, p sql.Params, from int, output string) error {
	for _, name := range []string{"server-version", "for", "rds", "partitioned", "beside", "no-slot"} {
		if cmd.Flags().Changed(name) {
			return usageError(fmt.Errorf("--from prints the SQL that hands over, which --%s does not change: remove it", name))
		}
	}
	statements, err := sql.HandOverFrom(p, from)
	if err != nil {
		return usageError(err)
	}
	return printAs(cmd.OutOrStdout(), output, statements, fmt.Sprintf("-- outboxcdc %s: hand-over to %d daemons (docs/scale.md). Run it in the database of the outbox.\n\n%s",
		buildVersion(), p.Shards, statements))
}

// ringFlags are the flags that setup sql and setup apply share for a table that is a ring.
type ringFlags struct {
	partitions int
	lap        string
}

func (r *ringFlags) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&r.partitions, "ring", 0, "create the table with this many partitions, used in turn, for retain (or all of several tables)")
	cmd.Flags().StringVar(&r.lap, "lap", "day", "with --ring: how long a partition is used before the next: day or hour")
}

// apply adds the ring to the tables.
func (r *ringFlags) apply(p *sql.Params) error {
	switch {
	case r.lap != "day" && r.lap != "hour":
		return usageError(fmt.Errorf("--lap %s: write day or hour", r.lap))
	case r.partitions == 0:
		return nil
	case r.partitions < sql.MinRing || r.partitions > sql.MaxRing:
		return usageError(fmt.Errorf("--ring %d: write %d to %d, at least two more than retention.keep has laps", r.partitions, sql.MinRing, sql.MaxRing))
	case len(p.Tables) == 0:
		return usageError(errors.New("--ring: there is no outbox.table"))
	}
	for i := range p.Tables {
		t := &p.Tables[i]
		t.Ring, t.Hourly, t.Partitioned = r.partitions, r.lap == "hour", true
	}
	return nil
}

// addNoSlotFlag adds the flag that setup sql and setup apply share.
func addNoSlotFlag(cmd *cobra.Command, noSlot *bool) {
	cmd.Flags().BoolVar(noSlot, "no-slot", false, "do not create the slot, for backfill, which creates it")
}

// commentsAfterSQL are the comments of `setup sql` that say what is left to do: the slot, and the position topic with
// the command that creates it.
func commentsAfterSQL(p *sql.Params, cfg *config.Config) (text string) {
	values := "\n-- The same for the Helm chart:\n-- shards:\n"
	for n := range p.Shards {
		s := p.Shard(n)
		lines := []string{fmt.Sprintf("postgres: {publication: %s, slot: %s}", yamlText(s.Publication), yamlText(s.Slot)), "outboxes:"}
		for _, leaf := range s.Tables {
			lines = append(lines, "- table: "+yamlText(leaf.String()))
		}
		text += fmt.Sprintf("\n-- Daemon %d of %d, instead of outbox.table:\n-- %s\n", n, p.Shards, strings.Join(lines, "\n-- "))
		values += "-- - " + strings.Join(lines, "\n--   ") + "\n"
	}
	if p.Shards > 0 {
		text += values
	}
	if p.NoSlot && p.Shards == 0 {
		text += fmt.Sprintf("\n-- Slot %s is not created here: outboxcdc backfill creates it, or recover for a table that outboxcdc has delivered before.\n", p.Slot)
	}
	for _, t := range setupTopics(nil, cfg) {
		text += fmt.Sprintf("\n-- In Kafka, once, the %s (setup apply creates it as well):\n-- kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions %d --config %s\n",
			t.What, strings.Join(cfg.Kafka.Brokers, ","), t.Name, t.Create.Partitions, strings.Join(t.Create.Pairs(), " --config "))
	}
	return text
}

// yamlText quotes a text for a YAML file, in one line.
func yamlText(text string) string {
	return "'" + strings.NewReplacer("'", "''", "\n", " ", "\r", " ").Replace(text) + "'"
}

// setupParams returns the names of the objects in the configuration.
func setupParams(cfg *config.Config) (sql.Params, error) {
	dsn, err := cfg.PostgresAddress()
	if err != nil {
		return sql.Params{}, err
	}
	var tables []sql.Table
	for _, s := range cfg.Sources() {
		schema, name := s.Name()
		c := &s.Columns
		tables = append(tables, sql.Table{Schema: schema, Name: name, Columns: sql.Columns{
			ID: c.ID, AggregateType: c.AggregateType, AggregateID: c.AggregateID, EventType: c.EventType, Payload: c.Payload, Headers: c.Headers,
		}})
	}
	return sql.Params{
		Database: cmp.Or(config.DSNDatabase(dsn), os.Getenv("PGDATABASE")),
		Role:     cmp.Or(config.DSNUser(dsn), os.Getenv("PGUSER"), defaultRole),
		Tables:   tables, Messages: cfg.Messages.Prefix, Publication: cfg.Postgres.Publication, Slot: cfg.Postgres.Slot,
	}, nil
}

// setupURL returns the connection string of --url, of the environment, or of the file that the environment names; "" if
// libpq's variables name a server. It never returns postgres.url, because the daemon's role should not have these
// privileges.
func setupURL(flag string) (string, error) {
	env, file := os.Getenv(setup.URLEnv), os.Getenv(setup.URLEnv+"_FILE")
	switch {
	case flag != "":
		return flag, nil
	case env != "" && file != "":
		return "", exit.With(exit.Config, fmt.Errorf("%s and %s_FILE are both set; remove one", setup.URLEnv, setup.URLEnv))
	case env != "":
		return env, nil
	case file != "":
		dsn, err := config.ReadSecret(file)
		if err != nil {
			return "", exit.With(exit.Config, fmt.Errorf("%s_FILE: %w", setup.URLEnv, err))
		}
		return dsn, nil
	case os.Getenv("PGHOST") != "" || os.Getenv("PGSERVICE") != "":
		return "", nil // pgx reads them
	}
	return "", usageError(fmt.Errorf("no server named: give --url or %s, the connection string of a role with the required privileges (not the daemon's)", setup.URLEnv))
}

func newSetupApplyCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	var url string
	var noTopic, noSlot bool
	var ring ringFlags
	a := &setup.Apply{}
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Create what is missing: role, table, grants, publication, slot and topics",
		Long: "Check every object first, then create what is missing. If an existing object is unfit, it is named with its remedy,\n" +
			"and nothing is changed. Creating the slot waits for open transactions that have written. Topics are created last, by the\n" +
			"daemon's own Kafka user: the position topic, except for delivery.mode at_least_once, and the dead-letter topic, if a\n" +
			"policy sends events to it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Timeout <= 0 {
				return usageError(fmt.Errorf("--timeout %s: write a time above zero", a.Timeout))
			}
			cfg, err := loadConfig()
			if err != nil {
				return err
			}
			params, err := setupParams(cfg)
			if err != nil {
				return err
			}
			dsn, err := setupURL(url)
			if err != nil {
				return err
			}
			if a.Function && !params.HasFunction() {
				return usageError(errors.New("--function: the function needs logical messages, or a single table with a column for each argument"))
			}
			params.NoSlot = noSlot
			if err := ring.apply(&params); err != nil {
				return err
			}
			a.Params = params
			a.Out = cmd.OutOrStdout()
			if err := a.Run(cmd.Context(), dsn); err != nil {
				return err
			}
			if noTopic || len(setupTopics(nil, cfg)) == 0 {
				return nil
			}
			cluster, err := wire.Cluster(wire.Fixed(cfg), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			if err != nil {
				return exit.With(exit.Config, err)
			}
			for _, t := range setupTopics(cluster, cfg) {
				if err := t.Apply(cmd.Context(), cluster, a.Out, a.DryRun); err != nil {
					return withExitCode(err)
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "url", "", "connection string of a role with the required privileges (default $"+setup.URLEnv+")")
	f.BoolVar(&a.DryRun, "dry-run", false, "print what would be done, and change nothing")
	f.DurationVar(&a.Timeout, "timeout", setup.DefaultTimeout, "how long to wait for locks and, for the slot, for open transactions")
	f.BoolVar(&a.Function, "function", false, "also create the function "+sql.FunctionName+", with which the application writes events")
	f.StringArrayVar(&a.Owners, "owner", nil, "a `role` that may own an existing table or function, in a schema where every role may create objects (as in public before PostgreSQL 15)")
	f.BoolVar(&a.Create, "create-table", false, "create a missing table even if a table with a similar name exists")
	f.BoolVar(&a.NoRole, "no-role", false, "do not create the role or grant privileges")
	ring.add(cmd)
	addNoSlotFlag(cmd, &noSlot)
	f.BoolVar(&noTopic, "no-topic", false, "do not create topics, and do not connect to Kafka")
	return cmd
}

// letterPartitions is the number of partitions of a new dead-letter topic, unless a setting gives another one.
const letterPartitions = 6

// setupTopics are the topics that the daemon needs besides those of events. With kafka.create_topics they are like the
// topics that it creates; otherwise the brokers' default decides about replicas.
func setupTopics(cluster *kafka.Cluster, cfg *config.Config) (all []setup.Topic) {
	t := &cfg.Kafka.CreateTopics
	like := &kafka.Create{Partitions: int32(cmp.Or(cfg.Route.Partitions[cfg.Poison.Topic], t.Partitions, letterPartitions)), ReplicationFactor: -1}
	if t.Partitions > 0 {
		like.ReplicationFactor, like.Config = int16(t.ReplicationFactor), t.Config
	}
	if cfg.Deduplicated() {
		all = append(all, setup.PositionTopic(cluster, cfg.Delivery.PositionTopic, like.ReplicationFactor))
	}
	if p := wire.PoisonPolicies(&cfg.Poison); p.SendsDeadLetters() && !cfg.HasReceiver() {
		all = append(all, setup.LetterTopic(cluster, cfg.Poison.Topic, like))
	}
	return all
}
