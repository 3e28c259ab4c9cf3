// Command tx passes a pgx.Tx to Emit.
package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
)

func main() {
	var w *outbox.Writer
	var target pgx.Tx
	_ = pgxoutbox.Emit(context.Background(), w, target)
}
