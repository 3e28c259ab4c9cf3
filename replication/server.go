package replication

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is what a server says of itself, and the settings that more than one command needs.
type Server struct {
	Version     int    // server_version_num
	VersionText string // server_version
	Database    string // of the connection
	Standby     bool   // the server is in recovery
	WALLevel    string
	// EffectiveWALLevel is effective_wal_level: since PostgreSQL 19 a logical slot raises it to logical. Before, it is
	// WALLevel.
	EffectiveWALLevel string
	KeepSize          int64         // max_slot_wal_keep_size in bytes; -1: no limit
	IdleTimeout       time.Duration // idle_replication_slot_timeout (PostgreSQL 18); 0: none
}

// Major is the major version.
func (s *Server) Major() int { return s.Version / 10000 }

// dynamicWALLevel is the first version in which wal_level = replica suffices: the first logical slot turns logical
// decoding on, without a restart.
const dynamicWALLevel = 19

// DynamicWALLevel says what follows from a logical slot with wal_level = replica, which PostgreSQL 19 and later permit.
const DynamicWALLevel = "a logical slot raises it to logical, and dropping the last one lowers it again, which invalidates the copies on standbys; keep wal_level = logical where there are standbys"

// CanDecode reports whether wal_level permits logical slots.
func (s *Server) CanDecode() bool {
	return s.WALLevel == "logical" || s.WALLevel == "replica" && s.Major() >= dynamicWALLevel
}

// NeededWALLevel names the values of wal_level that permit logical slots.
func (s *Server) NeededWALLevel() string {
	if s.Major() >= dynamicWALLevel {
		return "logical or replica"
	}
	return "logical"
}

// ReadServer reads version, state and settings of the server. The settings come in units that do not depend on how the
// server shows them.
func ReadServer(ctx context.Context, conn *pgx.Conn) (*Server, error) {
	var s Server
	var idle int64
	err := conn.QueryRow(ctx, `
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_database()::text, pg_is_in_recovery(), current_setting('wal_level'),
       coalesce(current_setting('effective_wal_level', true), current_setting('wal_level')),
       coalesce((SELECT CASE WHEN setting::bigint < 0 THEN -1 ELSE setting::bigint * 1048576 END FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), -1),
       coalesce((SELECT (extract(epoch FROM current_setting('idle_replication_slot_timeout', true)::interval) * 1000)::bigint), 0)`).
		Scan(&s.Version, &s.VersionText, &s.Database, &s.Standby, &s.WALLevel, &s.EffectiveWALLevel, &s.KeepSize, &idle)
	if err != nil {
		return nil, classify("read the server's settings", inspecting, err)
	}
	s.IdleTimeout = time.Duration(idle) * time.Millisecond
	return &s, nil
}
