package relay

import (
	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/checkpoint"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Contradiction is why a session would not begin at start, on this server, behind the position record; nil: it would. It is
// an error of class [Lost].
func Contradiction(record *checkpoint.Saved, server replication.Identity, start pglogrepl.LSN) error {
	return follows(record, server, start)
}
