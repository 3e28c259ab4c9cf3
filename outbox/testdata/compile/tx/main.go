// Command tx passes a *sql.Tx to Emit.
package main

import (
	"context"
	"database/sql"

	"github.com/outboxcdc/outboxcdc/outbox"
)

func main() {
	var w *outbox.Writer
	var target *sql.Tx
	_ = w.Emit(context.Background(), target)
}
