// Command conn passes a *pgx.Conn to Emit.
package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/outbox"
	"github.com/outboxcdc/outboxcdc/outbox/pgxoutbox"
)

func main() {
	var w *outbox.Writer
	var target *pgx.Conn
	_ = pgxoutbox.Emit(context.Background(), w, target)
}
