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
	KeepSize    int64         // max_slot_wal_keep_size in bytes; -1: no limit
	IdleTimeout time.Duration // idle_replication_slot_timeout (PostgreSQL 18); 0: none
}

// Major is the major version.
func (s *Server) Major() int { return s.Version / 10000 }

// ReadServer reads version, state and settings of the server. The settings come in units that do not depend on how the
// server shows them.
func ReadServer(ctx context.Context, conn *pgx.Conn) (*Server, error) {
	var s Server
	var idle int64
	err := conn.QueryRow(ctx, `
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_database()::text, pg_is_in_recovery(), current_setting('wal_level'),
       coalesce((SELECT CASE WHEN setting::bigint < 0 THEN -1 ELSE setting::bigint * 1048576 END FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), -1),
       coalesce((SELECT (extract(epoch FROM current_setting('idle_replication_slot_timeout', true)::interval) * 1000)::bigint), 0)`).
		Scan(&s.Version, &s.VersionText, &s.Database, &s.Standby, &s.WALLevel, &s.KeepSize, &idle)
	if err != nil {
		return nil, classify("read the server's settings", inspecting, err)
	}
	s.IdleTimeout = time.Duration(idle) * time.Millisecond
	return &s, nil
}
