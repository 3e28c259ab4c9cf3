package inbox_test

import (
	"context"
	"database/sql"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// A consumer with its own loop: it stores in the transaction of the effect that it has handled the event.
func Example() {
	var store inbox.Store
	_ = func(ctx context.Context, tx *sql.Tx, topic string, key, value []byte, header func(name string) (string, bool)) error {
		event, err := inbox.ReadEvent(topic, key, value, header)
		if err != nil {
			return err
		}
		first, err := store.Once(ctx, tx, "billing", event)
		if err != nil || !first {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO bills (body) VALUES ($1)`, value)
		return err
	}
}
