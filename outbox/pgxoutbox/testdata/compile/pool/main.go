// Command pool passes a *pgxpool.Pool to Emit.
package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
)

func main() {
	var w *outbox.Writer
	var target *pgxpool.Pool
	_ = pgxoutbox.Emit(context.Background(), w, target)
}
