// Package standby observes the copies of a logical slot on the standbys of its server: whether the slot would survive a
// failover to each of them.
//
// PostgreSQL 17 and later copies a failover slot to standbys (sync_replication_slots). After a switchover the demoted
// primary keeps the slot that it had: a leftover, which the synchronization of slots refuses to overwrite, so that the
// next failover to that server loses the slot (PostgreSQL, "Replication Slot Synchronization"). Before version 17,
// Patroni's permanent slots or the extension pg_failover_slots copy a slot.
//
// [Read] asks one server, [Judge] compares the answer with the primary's, and [Watcher] repeats that for the daemon,
// which ends if the cluster has [TwoPrimaries]; a role with CONNECT suffices. [Clean] removes a leftover. The package
// confirms nothing and delivers nothing.
package standby

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/replication"
)

// askTimeout limits the connection to one server and all queries there.
const askTimeout = 5 * time.Second

// syncMajor is the first version that copies slots to standbys.
const syncMajor = 17

// Server is what a server says about itself and the slot at one moment.
type Server struct {
	Version    int       // server_version_num
	InRecovery bool      // it is a standby
	System     string    // the cluster's system identifier; "": the role may not read it
	Started    time.Time // start of the postmaster, which tells two servers of a cluster apart
	Slot       *replication.Slot
	SyncSkip   string // why the last synchronization of the slot was skipped, PostgreSQL 19 and later; "": it was not

	// Settings of a standby, and whether it receives WAL.
	SyncSlots   string // sync_replication_slots; "" before version 17
	Feedback    bool   // hot_standby_feedback
	PrimarySlot string // primary_slot_name
	NamesDB     *bool  // whether primary_conninfo has a dbname; nil: the role may not read it
	Receiving   bool   // a WAL receiver runs

	// Slots of standbys, on a primary.
	Waited   []string        // synchronized_standby_slots
	Physical map[string]bool // physical slots: whether a standby uses them
}

// Major is the major version.
func (s *Server) Major() int { return s.Version / 10000 }

// serverSQL does not return primary_conninfo, which may contain a password.
const serverSQL = `
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), pg_postmaster_start_time(),
       coalesce(current_setting('sync_replication_slots', true), ''), current_setting('hot_standby_feedback') = 'on', current_setting('primary_slot_name'),
       (SELECT setting ~ '(^|\s)dbname\s*=\s*\S' OR setting ~ '^postgres(ql)?://[^/?]*/[^?]' OR setting ~ '[?&]dbname=[^&]' FROM pg_settings WHERE name = 'primary_conninfo'),
       EXISTS (SELECT FROM pg_stat_wal_receiver),
       ARRAY(SELECT trim(w) FROM unnest(string_to_array(nullif(current_setting('synchronized_standby_slots', true), ''), ',')) w),
       ARRAY(SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical'),
       ARRAY(SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'physical' AND active),
       coalesce((SELECT to_jsonb(s)->>'slotsync_skip_reason' FROM pg_replication_slots s WHERE s.slot_name = $1), '')`

// Read asks a server about itself and about the slot.
func Read(ctx context.Context, conn *pgx.Conn, slot string) (*Server, error) {
	s := &Server{Physical: map[string]bool{}}
	var physical, active []string
	err := conn.QueryRow(ctx, serverSQL, slot).Scan(&s.Version, &s.InRecovery, &s.Started, &s.SyncSlots, &s.Feedback, &s.PrimarySlot,
		&s.NamesDB, &s.Receiving, &s.Waited, &physical, &active, &s.SyncSkip)
	if err != nil {
		return nil, fmt.Errorf("read the server's settings: %w", err)
	}
	for _, name := range physical {
		s.Physical[name] = slices.Contains(active, name)
	}
	// Every role may execute the function, unless that was revoked.
	if err := conn.QueryRow(ctx, "SELECT system_identifier::text FROM pg_control_system()").Scan(&s.System); err != nil && !replication.LacksPrivilege(err) {
		return nil, fmt.Errorf("read the system identifier: %w", err)
	}
	s.Slot, err = replication.ReadSlot(ctx, conn, slot)
	return s, err
}

// Question asks one server, whose password is known. It returns the address of the server, too.
type Question func(ctx context.Context) (s *Server, address string, err error)

// Ask connects to a host and asks it.
func Ask(ctx context.Context, h *replication.Host, slot string) (*Server, error) {
	ask, err := PrepareHost(ctx, h, slot)
	if err != nil {
		return nil, err
	}
	s, _, err := ask(ctx)
	return s, err
}

// PrepareHost gets the password for a host, and returns the question, whose address is the host's.
func PrepareHost(ctx context.Context, h *replication.Host, slot string) (Question, error) {
	connect, err := h.Prepare(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*Server, string, error) {
		s, _, err := ask(ctx, connect, slot)
		return s, h.Address, err
	}, nil
}

// Primary connects to the server of the slot, which must not be in recovery, and asks it. It returns the server's IP
// address and port, too.
func Primary(ctx context.Context, source *replication.Source, application, slot string) (*Server, string, error) {
	ask, err := PreparePrimary(ctx, source, application, slot)
	if err != nil {
		return nil, "", err
	}
	return ask(ctx)
}

// PreparePrimary gets the password for the server of the slot, and returns the question of [Primary].
func PreparePrimary(ctx context.Context, source *replication.Source, application, slot string) (Question, error) {
	connect, err := source.Prepare(ctx, application, false)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*Server, string, error) { return ask(ctx, connect, slot) }, nil
}

// ask connects to a server and asks it. The limit begins here, where the password is known: a command that prints
// one may take longer.
func ask(ctx context.Context, connect replication.Connector, slot string) (*Server, string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := connect(ctx)
	if err != nil {
		return nil, "", err
	}
	defer hangUp(ctx, conn)
	s, err := Read(ctx, conn, slot)
	return s, conn.PgConn().Conn().RemoteAddr().String(), err
}

// hangUp ends a connection, soon also if the server does not answer, and at once if ctx has ended. An idle connection
// would delay a smart shutdown of the server, so none is kept.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// ApplicationName is the application_name of connections that ask about the copies of a slot.
func ApplicationName(slot string) string {
	name := "outboxcdc-standbys-" + slot
	return name[:min(len(name), 63)] // the server truncates longer names
}

// SameServer reports whether two answers are from one server, which has several names or addresses.
func SameServer(a, b *Server) bool { return a.System == b.System && a.Started.Equal(b.Started) }

// unreachable is the text for a host that could not be asked.
func unreachable(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer within " + strconv.Itoa(int(askTimeout/time.Second)) + " s"
	}
	if e, ok := errors.AsType[*replication.Error](err); ok {
		err = e.Err
	}
	return err.Error()
}
