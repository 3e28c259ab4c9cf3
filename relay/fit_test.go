package relay

import (
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/replication"
)

// TestTablesThatDoNotFit: if a column is unsuitable according to the catalogs, the process ends before it reads, and
// nothing is confirmed. Once an event was delivered, rows in the slot may be older than the catalogs, and relation
// messages decide.
func TestTablesThatDoNotFit(t *testing.T) {
	now := func(b *bench, headersType uint32) {
		table := replication.TableNow{OID: b.pg.table.OID, Schema: "public", Name: "outbox"}
		for _, name := range b.pg.table.Columns {
			c := replication.Column{Name: name, TypeOID: 25}
			if name == "headers" {
				c.TypeOID = headersType
			}
			table.Columns = append(table.Columns, c)
		}
		b.pg.edit(func() { b.pg.now = []replication.TableNow{table} })
	}
	bubble(t, testConfig(), func(b *bench) {
		now(b, 17)
		b.pg.commit("a")
		b.start()
		if err := b.ends(Wrong, time.Second); !strings.Contains(err.Error(), `"headers" (named by outbox.columns.headers) is bytea`) {
			b.Errorf("%v", &err)
		}
		b.delivered()
		if closed, _ := b.pg.stream().isClosed(); !closed || len(b.pg.stream().updates()) != 0 {
			b.Error("the stream is open, or something was confirmed")
		}
	})
	bubble(t, testConfig(), func(b *bench) {
		now(b, 25)
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		now(b, 17)
		b.pg.cut()
		b.pg.commit("b")
		b.sleep(5 * time.Second)
		b.want(Streaming)
		b.delivered("a", "b")
	})
	bubble(t, testConfig(), func(b *bench) { // older rows may have the column
		now(b, 25)
		b.pg.edit(func() { b.pg.now[0].Columns = b.pg.now[0].Columns[1:] })
		b.start()
		b.pg.commit("a")
		b.sleep(3 * time.Second)
		b.delivered("a")
	})
}
