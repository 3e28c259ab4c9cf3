package walsendertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// query is a query of package replication, recognised by a piece of its text, with the types of its parameters and
// columns.
type query struct {
	part            string
	params, columns []uint32
	rows            func(*view) [][]any
}

// view is the locked server, with the parameters of a query.
type view struct {
	*Server
	params [][]byte
}

func (v *view) text(i int) string { return string(v.params[i]) }

// oid returns a parameter of type oid, which pgx sends in binary.
func (v *view) oid(i int) uint32 { return binary.BigEndian.Uint32(v.params[i]) }

// hasText reports whether a parameter of type text[] has an element; texts that contain it are not told apart.
func (v *view) hasText(i int, element string) bool {
	return bytes.Contains(v.params[i], []byte(element))
}

// onlyOID returns the one element of an oid[].
func (v *view) onlyOID(i int) uint32 {
	b := v.params[i]
	return binary.BigEndian.Uint32(b[len(b)-4:])
}

// row is the answer to the query for a table and its partitions.
func (t *Table) row() []any {
	types := make([]uint32, len(t.Columns))
	for i := range types {
		types[i] = textOID
	}
	return []any{t.OID, t.Schema, t.Name, t.Kind, t.Columns, types}
}

const (
	text  = pgtype.TextOID
	boolT = pgtype.BoolOID
	int4  = pgtype.Int4OID
	int8T = pgtype.Int8OID
	oid   = pgtype.OIDOID
	oids  = pgtype.OIDArrayOID
	texts = pgtype.TextArrayOID
	int4s = pgtype.Int4ArrayOID
	int8s = pgtype.Int8ArrayOID
	json  = pgtype.JSONOID

	timestamptz = pgtype.TimestamptzOID
)

// DatabaseOID is the OID of the database.
const DatabaseOID = uint32(16384)

var queries = []query{
	{"select pg_is_in_recovery()", nil, []uint32{boolT}, func(v *view) [][]any { return [][]any{{v.cat.Standby}} }},
	{"IDENTIFY_SYSTEM", nil, []uint32{text, int4, text, text}, func(v *view) [][]any {
		return [][]any{{strconv.FormatUint(v.cat.SystemID, 10), v.cat.Timeline, v.end.String(), v.cat.Database}}
	}},
	{"TIMELINE_HISTORY", nil, []uint32{text, text}, func(v *view) [][]any {
		return [][]any{{fmt.Sprintf("%08X.history", v.cat.Timeline), v.cat.History}}
	}},
	{
		"FROM pg_replication_slots s",
		[]uint32{texts},
		[]uint32{text, text, text, text, oid, boolT, boolT, int4, text, text, boolT, timestamptz, text, text, boolT, boolT, boolT, int8T, text, text, int8T, text},
		(*view).slot,
	},
	{"SELECT puballtables, pubinsert", []uint32{text}, []uint32{boolT, boolT, boolT, boolT, boolT, boolT}, func(v *view) [][]any {
		p := &v.cat.Publication
		if p.Missing || p.Name != v.text(0) {
			return nil
		}
		return [][]any{{false, !p.NoInserts, false, false, false, p.ViaRoot}}
	}},
	// The publication is FOR TABLE outbox.
	{"WHERE r.prpubid = p.oid AND r.prrelid = ANY($2)", []uint32{text, oids}, []uint32{boolT}, func(*view) [][]any { return [][]any{{false}} }},
	{"SELECT c.oid, n.nspname, c.relname, c.relkind::text", []uint32{text, text}, []uint32{oid, text, text, text, texts, oids}, func(v *view) [][]any {
		o := v.cat.Outbox()
		if o.Schema != v.text(0) || o.Name != v.text(1) {
			return nil
		}
		rows := [][]any{o.row()}
		for _, t := range v.cat.Tables[1:] {
			if t.Partition {
				rows = append(rows, t.row())
			}
		}
		return rows
	}},
	{"FROM pg_publication_tables t", []uint32{text, oids}, []uint32{oid, text, text, text, texts, oid}, (*view).publishedTables},
	// No other publication names a partition, and no daemon has handed over to this one.
	{"WITH RECURSIVE named AS", []uint32{texts, texts, text}, []uint32{texts, text}, func(*view) [][]any { return [][]any{{[]string{}, ""}} }},
	{"WITH RECURSIVE pub AS", []uint32{text, oids, oids, int4, oids, int4s, int8T, boolT, int4s, texts}, []uint32{boolT, text, oid, texts, int8s, texts, boolT, boolT, boolT, int8s, texts, int8T, json, json, oid, text, text}, func(v *view) [][]any {
		p, o := &v.cat.Publication, v.cat.Outbox()
		exists := !p.Missing && p.Name == v.text(0)
		var rows [2]string // of the publication, and of the outbox
		if exists {
			rows[0] = fmt.Sprintf("p%d/%d", p.OID, p.XMin)
			if p.RelOID != 0 {
				rows[1] = fmt.Sprintf("r%d/%d", p.RelOID, p.RelXMin)
			}
		}
		table := ""
		if o.OID == v.onlyOID(2) {
			table = o.Schema + "." + o.Name
			if o.Unlogged {
				rows[1] += ";u"
			}
		}
		return [][]any{{
			exists, rows[0] + rows[1], p.OID, rows[:],
			[]int64{int64(p.XMin), int64(p.RelXMin)},
			[]string{table},
			false, p.Pending, false,
			[]int64{},
			nil, int64(1),
			"[]", "[]", uint32(0), v.cat.SyncNames, v.cat.SyncState,
		}}
	}},
	{"server_version_num", nil, []uint32{int4, text, text, boolT, text, text, int8T, int8T}, func(v *view) [][]any {
		major, _, _ := strings.Cut(v.cat.Version, ".")
		version, _ := strconv.Atoi(major)
		return [][]any{{int32(version * 10000), v.cat.Version, v.cat.Database, v.cat.Standby, "logical", "logical", int64(-1), v.cat.IdleTimeout.Milliseconds()}}
	}},
	{"WITH RECURSIVE up AS", []uint32{oid, oids, text}, []uint32{text, text, int4, boolT}, func(v *view) [][]any {
		for _, t := range v.cat.Tables {
			if t.OID == v.oid(0) {
				of := int32(0)
				if t.Partition {
					of = 1
				}
				return [][]any{{t.Schema, t.Name, of, false}}
			}
		}
		return nil
	}},
}

// publishedTables returns the tables that the publication carries under their own name: leaves, unless it publishes
// via the root.
func (v *view) publishedTables() [][]any {
	p := &v.cat.Publication
	if p.Missing || p.RelOID == 0 {
		return nil
	}
	var columns []string
	for _, c := range v.cat.Outbox().Columns {
		if !slices.Contains(p.WithoutColumns, c) {
			columns = append(columns, c)
		}
	}
	leaves := v.cat.Outbox().Kind == "p" && !p.ViaRoot
	var rows [][]any
	for i, t := range v.cat.Tables {
		if leaves && t.Partition && !slices.Contains(p.WithoutTables, t.OID) || !leaves && i == 0 {
			rows = append(rows, []any{t.OID, t.Schema, t.Name, p.Filter, columns, v.cat.Outbox().OID})
		}
	}
	return rows
}

func (v *view) slot() [][]any {
	s := &v.cat.Slot
	if !v.hasText(0, "^"+s.Name+"$") {
		return nil
	}
	var rows [][]any
	if s.Unfinished {
		rows = append(rows, []any{
			s.Name + "_recovery", "logical", s.Plugin, v.cat.Database, DatabaseOID, false, false, int32(0), "", "", false, nil, "reserved", "", false, false, false, nil,
			s.Restart.String(), s.Confirmed.String(), int64(1), v.end.String(),
		})
	}
	if s.Missing {
		return rows
	}
	pid, name := s.Holder, s.HolderName
	if v.active != nil {
		pid, name = v.active.conn.pid, strings.TrimSpace("outboxcdc-"+s.Name)
	}
	return append(rows, []any{
		s.Name, "logical", s.Plugin, v.cat.Database, DatabaseOID, false, pid != 0, int32(pid), name, "", s.Works, nil, s.WALStatus, s.Invalidation, s.TwoPhase, s.Failover, false, s.Safe,
		s.Restart.String(), s.Confirmed.String(), int64(1), v.end.String(),
	})
}
