package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxcdc/outboxcdc/internal/audit"
	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/outboxtable"
	"github.com/outboxcdc/outboxcdc/internal/peek"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/sink/kafka"
	"github.com/outboxcdc/outboxcdc/sink/kafka/sender"
)

// Servers is what the commands that read the outbox tables have open: connections to Postgres and Kafka, and the
// parts that the settings make. It is an [audit.Slot].
type Servers struct {
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
	// Also are topics that the routing has left.
	Also []string
}

// commandName is the application_name of the commands' connections.
const commandName = "outboxcdc-command"

// OpenTables connects to Postgres and Kafka and takes the snapshot.
func OpenTables(ctx context.Context, cfg *config.Config) (*Servers, error) {
	t, err := ConnectTables(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := t.takeSnapshot(ctx); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// ConnectTables connects to Postgres and Kafka, for a command that reads the tables.
func ConnectTables(ctx context.Context, cfg *config.Config) (*Servers, error) {
	if len(cfg.Sources()) == 0 {
		return nil, exit.With(exit.Config, cfg.Problem("outbox.table", "there is no table: logical messages leave no row to compare or to send again"))
	}
	return Connect(ctx, cfg)
}

// Connect connects to Postgres and Kafka.
func Connect(ctx context.Context, cfg *config.Config) (_ *Servers, err error) {
	t := &Servers{cfg: cfg, poison: PoisonPolicies(&cfg.Poison)}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	t.poison.Slot = cfg.Postgres.Slot
	for i, s := range cfg.Sources() {
		id := s.Columns.ID
		if c := RouterConfigs(cfg)[i]; c.ID != "" && c.ID != "{id}" && c.ID != "{"+id+"}" {
			id = "" // a template of several columns
		}
		t.list = append(t.list, audit.Table{Name: tableName(&s), IDColumn: id, CreatedAt: s.Columns.CreatedAt, Audited: true})
	}
	quiet := slog.New(slog.DiscardHandler) // what goes wrong is an error of the command
	if t.route, err = Router(cfg); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if t.source, err = Source(Fixed(cfg), quiet); err != nil {
		return nil, exit.With(exit.Config, err)
	}
	if t.cluster, err = Cluster(Fixed(cfg), prometheus.NewRegistry(), quiet); err != nil {
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
func (t *Servers) takeSnapshot(ctx context.Context) (err error) {
	t.closeSnapshot()
	t.snapshot, t.conn, err = t.newSnapshot(ctx)
	return err
}

// newSnapshot takes a snapshot on a connection of its own.
func (t *Servers) newSnapshot(ctx context.Context) (_ *outboxtable.Snapshot, _ *pgx.Conn, err error) {
	publication, err := replication.ReadPublication(ctx, t.control, t.cfg.Postgres.Publication)
	if err != nil {
		return nil, nil, err
	}
	var list []outboxtable.Table
	for i, s := range t.cfg.Sources() {
		schema, name := s.Name()
		list = append(list, outboxtable.Table{
			Schema: schema, Name: name, Columns: Tables(t.cfg)[i].Columns, CreatedAt: s.Columns.CreatedAt, Order: s.Order,
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

// CheckRange finds out whether the rows of a range can be read, in a snapshot of its own.
func (t *Servers) CheckRange(ctx context.Context, rows outboxtable.Range) error {
	snapshot, conn, err := t.newSnapshot(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for i := range t.list {
		if err := snapshot.Check(ctx, i, rows); err != nil {
			if errors.As(err, new(*outboxtable.ConditionError)) {
				err = exit.With(exit.Usage, err)
			}
			return err
		}
	}
	return nil
}

// HasOrder reports whether all tables have columns that order their rows.
func (t *Servers) HasOrder(ctx context.Context) (bool, error) {
	for _, s := range t.cfg.Sources() {
		if len(s.Order) > 0 {
			continue
		}
		schema, name := s.Name()
		if unordered, err := outboxtable.ReadOrder(ctx, t.control, schema, name); err != nil || unordered != nil {
			return false, err
		}
	}
	return true, nil
}

// fresh takes a snapshot beside the one there is.
func (t *Servers) fresh(ctx context.Context) (audit.Snapshot, func(), error) {
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

// Names lists the tables that were chosen.
func (t *Servers) Names() string {
	var names []string
	for i := range t.list {
		if t.list[i].Audited {
			names = append(names, t.list[i].Name)
		}
	}
	return strings.Join(names, ", ")
}

// Check returns an error if the rows of a range of the snapshot cannot be read.
func (t *Servers) Check(ctx context.Context, table int, rows outboxtable.Range) error {
	return t.snapshot.Check(ctx, table, rows)
}

// Choose leaves only the named tables; none: all.
func (t *Servers) Choose(names []string) error {
	if len(names) == 0 {
		return nil
	}
	all := t.Names()
	for i := range t.list {
		t.list[i].Audited = false
	}
	for _, name := range names {
		i := slices.IndexFunc(t.list, func(x audit.Table) bool { return x.Name == name || strings.HasSuffix(x.Name, "."+name) })
		if i < 0 {
			return exit.With(exit.Usage, fmt.Errorf("--table %s: the configuration has %s", name, all))
		}
		t.list[i].Audited = true
	}
	return nil
}

// Audit is a comparison of these tables, without the fields of its output.
func (t *Servers) Audit(rows outboxtable.Range, deep bool) *audit.Audit {
	topics := slices.Clone(t.Also)
	for _, s := range t.cfg.Sources() {
		for _, topic := range s.Route.Topics {
			topics = append(topics, topic)
		}
	}
	partitions := int32(0)
	for _, n := range t.cfg.Route.Partitions {
		if partitions == 0 || int32(n) < partitions {
			partitions = int32(n)
		}
	}
	var kept time.Time
	if t.cfg.Retention.Mode != "off" {
		kept = time.Now().Add(-t.cfg.Retention.Keep)
	}
	var letters func(context.Context) (func(int32, int64) bool, error)
	if t.poison.HoldsKeys() {
		letters = t.openLetters
	}
	return &audit.Audit{
		Letters: letters,
		Kept:    kept, Router: t.route, PartitionCount: partitions, Poison: &t.poison, Tables: t.list, Lineage: t.identity, Database: t.database, Range: rows, Deep: deep, Topics: topics,
		Slot: t.cfg.Postgres.Slot, Messages: t.cfg.Messages.Prefix != "", Fresh: t.fresh, WALEnd: t.walEnd,
		Release: t.closeSnapshot,
	}
}

// Read returns the slot.
func (t *Servers) Read(ctx context.Context) (*replication.Slot, error) {
	return replication.ReadSlot(ctx, t.control, t.cfg.Postgres.Slot)
}

// Waiting calls fn with the record of each event that waits in the slot.
func (t *Servers) Waiting(ctx context.Context, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	return t.waiting(ctx, t.source, t.cfg.Postgres.Slot, upTo, fn)
}

// waiting is Waiting of the slot of a source.
func (t *Servers) waiting(ctx context.Context, source *replication.Source, slot string, upTo pglogrepl.LSN, fn func(*router.Record) error) error {
	if err := t.awaitFlushed(ctx, upTo); err != nil {
		return err
	}
	st, err := source.OpenCopy(ctx)
	if err != nil {
		return t.explainOlderSlot(ctx, slot, err)
	}
	defer st.Abandon()
	waiting := t.peek(waitingRows(fn))
	seen, err := waiting.Run(ctx, st)
	switch {
	case err != nil:
		return fmt.Errorf("read what waits in slot %s: %w", slot, t.explainOlderSlot(ctx, slot, err))
	case !seen.Whole:
		return fmt.Errorf("read what waits in slot %s: %w", slot, context.Cause(ctx))
	}
	return nil
}

// waitingRows returns what calls fn with the record of each event of a row. An update is none: the row's insert, which
// is its event, may be lost.
func waitingRows(fn func(*router.Record) error) func(*peek.Event) error {
	return func(e *peek.Event) error {
		rec := *e.Record
		if e.Poison != nil {
			if e.Poison.Cause == router.Update {
				return nil
			}
			rec.Topic = e.Poison.Topic
		}
		return fn(&rec)
	}
}

// walEnd returns the end of the server's WAL.
func (t *Servers) walEnd(ctx context.Context) (pglogrepl.LSN, error) {
	var end string
	if err := t.control.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		return 0, fmt.Errorf("read the end of the WAL: %w", err)
	}
	return pglogrepl.ParseLSN(end)
}

// peek reads the events of a stream.
func (t *Servers) peek(show func(*peek.Event) error) *peek.Peek {
	return &peek.Peek{Router: t.route, Poison: t.poison, MessagePrefix: t.cfg.Messages.Prefix, WalSenderTimeout: t.cfg.Tuning.WALSenderTimeout, Show: show}
}

// awaitFlushed waits until the WAL is flushed up to a position: the walsender sends no more than that, and with
// synchronous_commit = off a row is visible before.
func (t *Servers) awaitFlushed(ctx context.Context, upTo pglogrepl.LSN) error {
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

// explainOlderSlot says what to do about a slot that is older than the publication: it decodes with the catalogs of
// its time, in which there was none.
func (t *Servers) explainOlderSlot(ctx context.Context, slot string, err error) error {
	found, ok := errors.AsType[*replication.Error](err)
	if !ok || found.Kind != replication.PublicationMissing {
		return err
	}
	if p, readErr := replication.ReadPublication(ctx, t.control, t.cfg.Postgres.Publication); readErr != nil || p == nil {
		return err
	}
	again := "outboxcdc recover"
	if replication.IsBackfill(slot) { // recover would send the rows that its condition leaves out
		again = "the same outboxcdc backfill again, with the same --where"
	}
	found.Remedy = fmt.Sprintf("the publication exists now, but slot %s is older and cannot be read with it: drop the slot "+
		"(SELECT pg_drop_replication_slot('%[1]s')) and run %s, which creates it and delivers what is missing", slot, again)
	return found // what wraps it has the former remedy in its text
}

func (t *Servers) closeSnapshot() {
	if t.conn != nil {
		closeConn(t.conn)
	}
	t.snapshot, t.conn = nil, nil
}

func (t *Servers) Close() {
	t.closeSnapshot()
	if t.control != nil {
		closeConn(t.control)
	}
	if t.client != nil {
		t.client.Close()
	}
}

// RunAudit runs a comparison on the snapshot.
func (t *Servers) RunAudit(ctx context.Context, a *audit.Audit) (*audit.Result, error) {
	if p := t.positions(); p != nil {
		old, err := p.Load(ctx)
		if err != nil {
			a.Note("the position record cannot be read, so it is not known whether this server has replaced another one: " + err.Error())
		}
		a.Predecessors = old.Predecessors(t.identity.SystemID)
		if old != nil && err == nil {
			a.Acked, _ = old.AckedFor(t.cfg.EventSources())
			a.Acked = a.Acked.On(t.identity)
		}
	}
	return a.Run(ctx, t.snapshot, t, t.client, "")
}

// sender opens a sender of rows. It waits for a missing topic as the daemon does. refusals, if not nil, are kept from
// one sender to the next.
func (t *Servers) sender(rate int, refusals *sender.Refusals) *sender.Sender {
	patience := t.cfg.MissingTopicAfter()
	if patience == 0 {
		patience = sender.Forever
	}
	return sender.New(t.cluster, sender.Options{Rate: rate, MissingTopic: patience, Refusals: refusals})
}
