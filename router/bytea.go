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
