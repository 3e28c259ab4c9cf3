// Command conn passes a *sql.Conn to Emit.
package main

import (
	"context"
	"database/sql"

	"github.com/outboxcdc/outboxcdc/outbox"
)

func main() {
	var w *outbox.Writer
	var target *sql.Conn
	_ = w.Emit(context.Background(), target)
}
