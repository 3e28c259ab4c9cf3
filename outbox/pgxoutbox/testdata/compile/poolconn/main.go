// Command poolconn passes a *pgxpool.Conn to Emit.
package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
)

func main() {
	var w *outbox.Writer
	var target *pgxpool.Conn
	_ = pgxoutbox.Emit(context.Background(), w, target)
}
