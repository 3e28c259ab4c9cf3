package outboxtable

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// existingAtOnce is the number of ids of one query.
const existingAtOnce = 10_000

// Existing returns which of the ids are in the column of a row. Ids are in PostgreSQL's text format, as in records.
// It uses an index on the column if the type is text, varchar, uuid, smallint, integer, bigint, or a domain over one
// of them; otherwise it reads the table once for each 10,000 ids.
func (s *Snapshot) Existing(ctx context.Context, table int, idColumn string, ids []string) (map[string]bool, error) {
	t := s.tables[table]
	c := t.column(idColumn)
	op := "look for ids in table " + t.String()
	if c == nil {
		return nil, fmt.Errorf("%s: it has no column %q; remedy: set outbox.columns.id", op, idColumn)
	}
	name, possible := quote(idColumn), s.isText
	// format prints a value as the server prints it for a client; a cast to text prints boolean and character in another
	// way.
	printed := "format('%s', " + name + ")"
	var match string
	switch c.baseOID {
	case textOID, varcharOID:
		match = name + " = ANY($1::text[])"
	case uuidOID:
		match, possible = name+" = ANY($1::uuid[])", isUUID
	case int2OID, int4OID, int8OID:
		match, possible = name+" = ANY($1::bigint[])", isInteger
	default:
		match = name + " IS NOT NULL AND " + printed + " = ANY($1::text[])"
	}
	sql := "SELECT " + printed + " FROM " + t.from + " WHERE " + match
	found := make(map[string]bool)
	for len(ids) > 0 {
		n := min(len(ids), existingAtOnce)
		want := make(map[string]bool, n)
		for _, id := range ids[:n] {
			if possible(id) {
				want[id] = true
			}
		}
		ids = ids[n:]
		if len(want) == 0 {
			continue
		}
		rr := s.conn.PgConn().ExecParams(ctx, sql, [][]byte{arrayOf(want)}, nil, nil, nil)
		for rr.NextRow() {
			// The collation of the column may take two texts for equal.
			if id := string(rr.Values()[0]); want[id] {
				found[id] = true
			}
		}
		if _, err := rr.Close(); err != nil {
			return nil, s.fail(ctx, op, err)
		}
	}
	return found, nil
}

// arrayOf prints an array in PostgreSQL's text format.
func arrayOf(ids map[string]bool) []byte {
	b := []byte{'{'}
	for id := range ids {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, '"')
		for i := range len(id) {
			if id[i] == '"' || id[i] == '\\' {
				b = append(b, '\\')
			}
			b = append(b, id[i])
		}
		b = append(b, '"')
	}
	return append(b, '}')
}

// isText reports whether the server accepts id as a text. Text of a SQL_ASCII database can be any bytes.
func (s *Snapshot) isText(id string) bool {
	return !strings.Contains(id, "\x00") && (s.isASCII() || utf8.ValidString(id))
}

// isInteger reports whether Postgres prints an integer in this way.
func isInteger(id string) bool {
	n, err := strconv.ParseInt(id, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == id
}

// isUUID reports whether Postgres prints a uuid in this way.
func isUUID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}
