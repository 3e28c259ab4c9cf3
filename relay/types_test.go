package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/router"
	"github.com/outboxcdc/outboxcdc/test/walsendertest"
)

// typesOf is a Resolver that knows one type, with OID 16400.
type typesOf struct{ base uint32 }

func (typesOf) Resolve(context.Context, *replication.Announced) (int, error) { return 0, nil }

func (t typesOf) Types(_ context.Context, oids []uint32) (replication.Types, error) {
	if fmt.Sprint(oids) != "[16400 25 25 25 25 25 25]" {
		return replication.Types{}, fmt.Errorf("types %v", oids)
	}
	return replication.Types{Names: map[uint32]string{16400: "sales.utc"}, Bases: map[uint32]uint32{16400: t.base}}, nil
}

// TestDomains: a domain is accepted where its base type is. If it is not, the error has its name.
func TestDomains(t *testing.T) {
	cfg := router.DefaultConfig()
	cfg.Timestamp = "id"
	r, err := router.New(cfg)
	must(t, err)
	cat := walsendertest.NewCatalog()
	table := cat.Outbox()
	u32 := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	relation := bytes.Replace(walsendertest.Relation(table), u32(25), u32(16400), 1)
	row := make([]any, len(table.Columns))
	for base, want := range map[uint32]string{1184: "", 23: "", 25: `"id" (named by route.timestamp) is sales.utc, but has to be timestamptz`} {
		d := NewDecoder(t.Context(), typesOf{base}, r, "")
		for _, msg := range [][]byte{walsendertest.Begin(8, time.Unix(1e9, 0), 1), relation} {
			if _, err := d.Decode(msg); err != nil {
				t.Fatal(err)
			}
		}
		_, err := d.Decode(walsendertest.Insert(table, row...))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("base type %d: %v", base, err)
		}
	}
}
