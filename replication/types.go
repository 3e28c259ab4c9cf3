package replication

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Types says what the catalogs have about types that users have created, by OID. A type that was dropped is not in it.
type Types struct {
	Names map[uint32]string // as SQL writes them
	Bases map[uint32]uint32 // of each domain, the type that it is based on; of another type, the type itself
}

// firstOwnType is the first OID that a server gives to what users create.
const firstOwnType = 16384

const typesSQL = `
WITH RECURSIVE base AS (
  SELECT t.oid AS own, t.oid, t.typbasetype FROM pg_type t WHERE t.oid = ANY($1)
  UNION ALL
  SELECT b.own, t.oid, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.typbasetype
)
SELECT own, format_type(own, NULL), oid FROM base WHERE typbasetype = 0`

// ReadTypes looks up those of the types that users have created. It queries only if there are any.
func ReadTypes(ctx context.Context, conn *pgx.Conn, oids []uint32) (Types, error) {
	var own []uint32
	for _, oid := range oids {
		if oid >= firstOwnType {
			own = append(own, oid)
		}
	}
	var t Types
	if own == nil {
		return t, nil
	}
	t.Names, t.Bases = map[uint32]string{}, map[uint32]uint32{}
	rows, err := conn.Query(ctx, typesSQL, own)
	if err == nil {
		var oid, base uint32
		var name string
		_, err = pgx.ForEachRow(rows, []any{&oid, &name, &base}, func() error {
			t.Names[oid], t.Bases[oid] = name, base
			return nil
		})
	}
	if err != nil {
		return t, classify("look up the types of columns", inspecting, err)
	}
	return t, nil
}

// Types looks up those of the types that users have created.
func (st *Stream) Types(ctx context.Context, oids []uint32) (Types, error) {
	st.controlMu.Lock()
	defer st.controlMu.Unlock()
	return ReadTypes(ctx, st.control, oids)
}
