// Command db passes a *sql.DB to Emit.
package main

import (
	"context"
	"database/sql"

	"github.com/outboxcdc/outboxcdc/outbox"
)

func main() {
	var w *outbox.Writer
	var target *sql.DB
	_ = w.Emit(context.Background(), target)
}
