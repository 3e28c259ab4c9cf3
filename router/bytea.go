package router

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// byteaOID is the type of bytea in pg_type, the same on every server.
const byteaOID = 17

var errBytea = errors.New(`bytea does not begin with \x: is bytea_output of the connection hex?`)

// appendBytea decodes text, in PostgreSQL's hex format, and appends the bytes.
func appendBytea(dst, text []byte) ([]byte, error) {
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return dst, errBytea
	}
	digits := text[2:]
	dst, err := hex.AppendDecode(slices.Grow(dst, hex.DecodedLen(len(digits))), digits)
	if err != nil {
		return dst, fmt.Errorf("bytea: %w", err)
	}
	return dst, nil
}

// columnBytes returns the value of a column as sent to Kafka: the stored bytes of bytea, and the printed text of
// other types, also of a domain over bytea: the bytes of a record do not depend on a look-up in the catalogs, which may
// have lost the type of an older row.
func (r *Router) columnBytes(p *plan, column int, text []byte) ([]byte, error) {
	if p.relation.Columns[column].TypeOID != byteaOID {
		return text, nil
	}
	start := len(r.scratch)
	var err error
	if r.scratch, err = appendBytea(r.scratch, text); err != nil {
		// Not poison: the cause is bytea_output of the connection, which concerns every row.
		return nil, fmt.Errorf("column %s: %w", quoteColumn(p.relation, column), err)
	}
	return r.scratchFrom(start), nil
}

// scratchFrom returns the scratch memory from start on. The capacity is limited, so that an append does not overwrite
// later parts. The slice stays valid when scratch is reallocated. It is never nil, which would mean NULL.
func (r *Router) scratchFrom(start int) []byte {
	if r.scratch == nil {
		return []byte{}
	}
	return r.scratch[start:len(r.scratch):len(r.scratch)]
}
