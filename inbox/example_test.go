package inbox_test

import (
	"context"
	"database/sql"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// A consumer with its own loop: it decides in the transaction of the effect whether a record is new. The header of a
// record tells by which rule.
func Example() {
	var store inbox.Store
	_ = func(ctx context.Context, tx *sql.Tx, at inbox.Place, header func(key string) (string, bool), body []byte) error {
		event, err := inbox.ReadHeaders(header)
		if err != nil {
			return err
		}
		var first bool
		if event.Command != "" { // a person has sent it: it is outside the order of the partition
			first, err = store.Once(ctx, tx, "billing", event.ID)
		} else {
			first, err = store.After(ctx, tx, "billing", at, event.Position)
		}
		if err != nil || !first {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO bills (body) VALUES ($1)`, body)
		return err
	}
}
