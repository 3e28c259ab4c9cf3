package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/peek"
	"github.com/outboxcdc/outboxcdc/kafka"
	"github.com/outboxcdc/outboxcdc/kafka/sender"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
)

// tableSet is what the commands that read the outbox tables have open. It is an [audit.Slot].
type tableSet struct {
	cfg      *config.Config
	poison   relay.PoisonPolicies
	route    *router.Router
	source   *replication.Source
	identity replication.Identity
	database uint32    // its OID
	control  *pgx.Conn // for short questions
	conn     *pgx.Conn // of the snapshot
	snapshot *outboxtable.Snapshot
	cluster  *kafka.Cluster
	client   *kafka.Client
	list     []audit.Table
	// also are topics that the routing has left, from --also-topic.
	also []string
}

// commandName is the application_name of the commands' connections.
const commandName = "outboxcdc-command"

// openTables connects to Postgres and Kafka and takes the snapshot.
func openTables(ctx context.Context, cfg *config.Config) (*tableSet, error) {
	t, err := connectTables(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := t.takeSnapshot(ctx); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// connectTables connects to Postgres and Kafka, for a command that reads the tables.
func connectTables(ctx context.Context, cfg *config.Config) (*tableSet, error) {
	if len(cfg.Sources()) == 0 {
		return nil, exit.With(exit.Config, cfg.Problem("outbox.table", "there is no table: logical messages leave no row to compare or to send again"))
	}
	return connectServers(ctx, cfg)
}

// connectServers connects to Postgres and Kafka.
func connectServers(ctx context.Context, cfg *config.Config) (_ *tableSet, err error) {
	t := &tableSet{cfg: cfg, poison: poisonConfig(&cfg.Poison)}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	t.poison.Slot = cfg.Postgres.Slot
	for i, s := range cfg.Sources() {
		id := s.Columns.ID
		if c := routerConfigs(cfg)[i]; c.ID != "" && c.ID != "{id}" && c.ID != "{"+id+"}" {
			id = "" // a template of several columns
		}
		t.list = append(t.list, audit.Table{Name: tableName(&s), IDColumn: id, CreatedAt: s.Columns.CreatedAt, Audited: true})
	}
	quiet := slog.New(slog.DiscardHandler) // what goes wrong is an error of the command
	if t.route, err = newRouter(cfg); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if t.source, err = newSource(fixed(cfg), quiet); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if t.cluster, err = newCluster(fixed(cfg), prometheus.NewRegistry(), quiet); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if t.control, err = t.source.Connect(ctx, commandName, false); err != nil {
		return nil, err
	}
	if err = t.control.QueryRow(ctx, "SELECT oid FROM pg_database WHERE datname = current_database()").Scan(&t.database); err != nil {
		return nil, fmt.Errorf("read the database: %w", err)
	}
	if t.identity, err = t.source.Identify(ctx, commandName); err != nil {
		return nil, err
	}
	if t.client, err = t.cluster.NewClient(ctx); err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	return t, nil
}

// takeSnapshot takes a snapshot of the tables, instead of the one there was.
func (t *tableSet) takeSnapshot(ctx context.Context) (err error) {
	t.closeSnapshot()
	t.snapshot, t.conn, err = t.newSnapshot(ctx)
	return err
}

// newSnapshot takes a snapshot on a connection of its own.
func (t *tableSet) newSnapshot(ctx context.Context) (_ *outboxtable.Snapshot, _ *pgx.Conn, err error) {
	publication, err := replication.ReadPublication(ctx, t.control, t.cfg.Postgres.Publication)
	if err != nil {
		return nil, nil, err
	}
	var list []outboxtable.Table
	for i, s := range t.cfg.Sources() {
		schema, name := s.Name()
		list = append(list, outboxtable.Table{
			Schema: schema, Name: name, Columns: tables(t.cfg)[i].Columns, CreatedAt: s.Columns.CreatedAt, Order: s.Order,
			ByPartition: publication != nil && !publication.ViaRoot,
		})
	}
	conn, err := t.source.Connect(ctx, commandName, false)
	if err != nil {
		return nil, nil, err
	}
	snapshot, err := outboxtable.Open(ctx, conn, list)
	if err != nil {
		closeConn(conn)
		return nil, nil, err
	}
	return snapshot, conn, nil
}

// checkRange finds out whether the rows of a range can be read, in a snapshot of its own.
func (t *tableSet) checkRange(ctx context.Context, rows outboxtable.Range) error {
	snapshot, conn, err := t.newSnapshot(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for i := range t.list {
		if err := snapshot.Check(ctx, i, rows); err != nil {
			if errors.As(err, new(*outboxtable.ConditionError)) {
				err = usageError(err)
			}
			return err
		}
	}
	return nil
}

// ordered reports whether all tables have columns that order their rows: those of outbox.order, or a sequence. If the catalogs cannot be read, it
// reports false.
func (t *tableSet) ordered() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range t.cfg.Sources() {
		if len(s.Order) > 0 {
			continue
		}
		schema, name := s.Name()
		if u, err := outboxtable.ReadOrder(ctx, t.control, schema, name); err != nil || u != nil {
			return false
		}
	}
	return true
}

// fresh takes a snapshot beside the one there is.
func (t *tableSet) fresh(ctx context.Context) (audit.Snapshot, func(), error) {
	snapshot, conn, err := t.newSnapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	return snapshot, func() { closeConn(conn) }, nil
}

// closeConn closes a connection on which nothing is pending.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func tableName(s *config.Source) string {
	schema, name := s.Name()
	return schema + "." + name
}

// names lists the tables that were chosen.
func (t *tableSet) names() string {
	var names []string
	for i := range t.list {
		if t.list[i].Audited {
			names = append(names, t.list[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// choose leaves only the named tables; none: all.
func (t *tableSet) choose(names []string) error {
	if len(names) == 0 {
		return nil
	}
	all := t.names()
	for i := range t.list {
		t.list[i].Audited = false
	}
	for _, name := range names {
		i := slices.IndexFunc(t.list, func(x audit.Table) bool { return x.Name == name || strings.HasSuffix(x.Name, "."+name) })
		if i < 0 {
			return usageError(fmt.Errorf("--table %s: the configuration has %s", name, all))
		}
		t.list[i].Audited = true
	}
	return nil
}

// audit is a comparison of these tables.
func (t *tableSet) audit(rows outboxtable.Range, deep bool) *audit.Audit {
	topics := slices.Clone(t.also)
	byTime := false
	for _, s := range t.cfg.Sources() {
		for _, topic := range s.Route.Topics {
			topics = append(topics, topic)
		}
		byTime = byTime || s.Route.Timestamp != router.TimestampProduce
	}
	partitions := int32(0)
	for _, n := range t.cfg.Route.Partitions {
		if partitions == 0 || int32(n) < partitions {
			partitions = int32(n)
		}
	}
	return &audit.Audit{
		Router: t.route, PartitionCount: partitions, Poison: &t.poison, Tables: t.list, Lineage: t.identity, Range: rows, Deep: deep, Topics: topics,
		Slot: t.cfg.Postgres.Slot, WholeLogs: byTime, Messages: t.cfg.Messages.Prefix != "", Fresh: t.fresh, WALEnd: t.walEnd,
		Release: t.closeSnapshot,
	}
}

// Read returns the slot.
func (t *tableSet) Read(ctx context.Context) (*replication.Slot, error) {
	return replication.ReadSlot(ctx, t.control, t.cfg.Postgres.Slot)
}

// Waiting calls fn with the record of each event that waits in the slot.
func (t *tableSet) Waiting(ctx context.Context, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	return t.waiting(ctx, t.source, t.cfg.Postgres.Slot, upTo, fn)
}

// waiting is Waiting of the slot of a source.
func (t *tableSet) waiting(ctx context.Context, source *replication.Source, slot string, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	if err := t.awaitFlushed(ctx, upTo); err != nil {
		return err
	}
	st, err := source.OpenCopy(ctx)
	if err != nil {
		return t.explainOlderSlot(ctx, slot, err)
	}
	defer st.Abandon()
	waiting := t.peek(func(e *peek.Event) error {
		rec := *e.Record
		if e.Poison != nil {
			rec.Topic = e.Poison.Topic
		}
		return fn(&rec)
	})
	seen, err := waiting.Run(ctx, st)
	switch {
	case err != nil:
		return t.explainOlderSlot(ctx, slot, fmt.Errorf("read what waits in slot %s: %w", slot, err))
	case !seen.Whole:
		return fmt.Errorf("read what waits in slot %s: %w", slot, context.Cause(ctx))
	}
	return nil
}

// walEnd returns the end of the server's WAL.
func (t *tableSet) walEnd(ctx context.Context) (pglogrepl.LSN, error) {
	var end string
	if err := t.control.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		return 0, fmt.Errorf("read the end of the WAL: %w", err)
	}
	return pglogrepl.ParseLSN(end)
}

// peek reads the events of a stream.
func (t *tableSet) peek(show func(*peek.Event) error) *peek.Peek {
	return &peek.Peek{Router: t.route, Poison: t.poison, MessagePrefix: t.cfg.Messages.Prefix, WalSenderTimeout: t.cfg.Tuning.WALSenderTimeout, Show: show}
}

// awaitFlushed waits until the WAL is flushed up to a position: the walsender sends no more than that, and with synchronous_commit = off
// a row is visible before.
func (t *tableSet) awaitFlushed(ctx context.Context, upTo pglogrepl.LSN) error {
	for {
		var flushed bool
		if err := t.control.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn", upTo.String()).Scan(&flushed); err != nil || flushed {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// explainOlderSlot says what to do about a slot that is older than the publication: it decodes with the catalogs of its time, in which
// there was none.
func (t *tableSet) explainOlderSlot(ctx context.Context, slot string, err error) error {
	if replication.KindOf(err) != replication.PublicationMissing {
		return err
	}
	if p, readErr := replication.ReadPublication(ctx, t.control, t.cfg.Postgres.Publication); readErr != nil || p == nil {
		return err
	}
	return fmt.Errorf("%w. The publication exists now, but slot %s is older and cannot be read with it: drop the slot "+
		"(SELECT pg_drop_replication_slot('%[2]s')) and run outboxcdc recover, which creates it and delivers what is missing", err, slot)
}

func (t *tableSet) closeSnapshot() {
	if t.conn != nil {
		closeConn(t.conn)
	}
	t.snapshot, t.conn = nil, nil
}

func (t *tableSet) close() {
	t.closeSnapshot()
	if t.control != nil {
		closeConn(t.control)
	}
	if t.client != nil {
		_ = t.client.Close() // nothing is in flight
	}
}

// senderOptions are those of commands that send rows. A missing topic is waited for as the daemon does.
func (t *tableSet) senderOptions(rate int) sender.Options {
	patience := t.cfg.MissingTopicAfter()
	if patience == 0 {
		patience = sender.Forever
	}
	return sender.Options{Rate: rate, MissingTopic: patience}
}

// noPosition is the position of records that are outside the order of the stream.
var noPosition checkpoint.Position

func addRangeFlags(f *pflag.FlagSet, since, until *string) {
	f.StringVar(since, "since", "", "only rows whose created_at is not before this time: 24h (ago), 2026-11-24, 2026-11-24T22:00 or RFC 3339")
	f.StringVar(until, "until", "", "only rows whose created_at is before this time, written like --since")
}

func addAlsoFlag(f *pflag.FlagSet, also *[]string) {
	f.StringArrayVar(also, "also-topic", nil, "also look for records in this topic, to which the events were routed before; may be repeated")
}

// allMissing says about the topics of which nine of ten judged rows are missing what else may be the reason.
func allMissing(res *audit.Result, say func(string)) {
	for _, topic := range slices.Sorted(maps.Keys(res.ByTopic)) {
		if n := res.ByTopic[topic]; topic != "" && n.Missing >= 10 && n.Missing*10 >= n.Judged*9 {
			say(fmt.Sprintf("%d of %d rows of topic %s are missing: if these events were routed to another topic before, name it with --also-topic", n.Missing, n.Judged, topic))
		}
	}
}

// timeRange reads --since and --until.
func timeRange(since, until string, now time.Time) (r outboxtable.Range, err error) {
	if r.Since, err = parseTime("--since", since, now); err != nil {
		return r, err
	}
	if r.Until, err = parseTime("--until", until, now); err != nil {
		return r, err
	}
	if !r.Since.IsZero() && !r.Until.IsZero() && !r.Since.Before(r.Until) {
		return r, usageError(fmt.Errorf("--since %s is not before --until %s", since, until))
	}
	return r, nil
}

// parseTime reads a time, or how long ago it was; "": none. Times without a zone are local.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if ago, err := time.ParseDuration(days + "h"); err == nil && ago > 0 {
			return now.Add(-24 * ago), nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError(fmt.Errorf("%s %s: write how long ago, such as 24h or 7d, or a time, such as 2026-11-24T22:00 or 2026-11-24T22:00:00Z", flag, text))
}
