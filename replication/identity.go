package replication

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// Identity identifies the cluster of a stream and its history.
type Identity struct {
	SystemID uint64
	Database uint32 // OID of the slot's database; 0: not known
	Timeline int32
	Major    int           // major version of the server
	WALEnd   pglogrepl.LSN // flushed end of the server's WAL after the slot became ours
	forks    []fork        // ends of earlier timelines, oldest first
}

// fork is the end of a timeline: records that start before lsn are on it or on an earlier one.
type fork struct {
	timeline int32
	lsn      pglogrepl.LSN
}

// System is the cluster's system identifier.
func (id Identity) System() uint64 { return id.SystemID }

// Current is the server's timeline.
func (id Identity) Current() int32 { return id.Timeline }

// End is WALEnd.
func (id Identity) End() pglogrepl.LSN { return id.WALEnd }

// EndOf returns the LSN at which the server's history left a timeline. over is false for the current timeline, and
// for one that is not in the history.
func (id Identity) EndOf(timeline int32) (lsn pglogrepl.LSN, over bool) {
	for _, f := range id.forks {
		if f.timeline == timeline {
			return f.lsn, true
		}
	}
	return 0, false
}

// TimelineOf returns the timeline of a record that starts at lsn. After a failover it may be an earlier one than the
// server's (PostgreSQL, "Timelines").
func (id Identity) TimelineOf(lsn pglogrepl.LSN) int32 {
	for _, f := range id.forks {
		if lsn < f.lsn {
			return f.timeline
		}
	}
	return id.Timeline
}

// identify runs IDENTIFY_SYSTEM and, after the first timeline, TIMELINE_HISTORY.
func identify(ctx context.Context, conn *pgconn.PgConn) (Identity, error) {
	sys, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return Identity{}, classify("identify the system", connecting, err)
	}
	id := Identity{Timeline: sys.Timeline, Major: majorOf(conn.ParameterStatus("server_version")), WALEnd: sys.XLogPos}
	if id.SystemID, err = strconv.ParseUint(sys.SystemID, 10, 64); err != nil {
		return Identity{}, fail(Protocol, "identify the system", "", "system identifier %q: %w", sys.SystemID, err)
	}
	if id.Timeline > 1 {
		h, err := pglogrepl.TimelineHistory(ctx, conn, id.Timeline)
		if err != nil {
			return Identity{}, classify("read the timeline history", connecting, err)
		}
		if id, err = id.WithHistory(h.Content); err != nil {
			return Identity{}, fail(Protocol, "read the timeline history", "", "%w", err)
		}
	}
	return id, nil
}

// majorOf returns the major version of a server_version such as "17.10 (Debian 17.10-1)" or "19beta1"; 0: it is not
// known.
func majorOf(version string) int {
	digits := strings.IndexFunc(version+".", func(r rune) bool { return r < '0' || r > '9' })
	major, _ := strconv.Atoi(version[:digits])
	return major
}

// WithHistory adds the earlier timelines from the content of a timeline history file.
func (id Identity) WithHistory(content []byte) (_ Identity, err error) {
	id.forks, err = parseHistory(content)
	return id, err
}

// parseHistory reads a timeline history file: lines of "timeline<TAB>switch point<TAB>reason".
func parseHistory(content []byte) ([]fork, error) {
	var forks []fork
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) < 2 {
			return nil, fmt.Errorf("history line %q: want timeline and switch point", lines.Text())
		}
		tli, err := strconv.ParseInt(f[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("history line %q: %w", lines.Text(), err)
		}
		lsn, err := pglogrepl.ParseLSN(f[1])
		if err != nil {
			return nil, fmt.Errorf("history line %q: %w", lines.Text(), err)
		}
		forks = append(forks, fork{int32(tli), lsn})
	}
	return forks, lines.Err()
}
