package standby

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/replication"
)

// CheckLeftover returns nil if [Clean] may drop the slot of a host, and otherwise why not, with the remedy and an exit
// code. primary and host are what the two servers answered; address names the host.
func CheckLeftover(slot, address string, primary, host *Server) error {
	refuse := func(code int, format string, args ...any) error {
		return exit.With(code, fmt.Errorf("%s: %s; nothing was changed", address, fmt.Sprintf(format, args...)))
	}
	v := Judge(primary, host, nil)
	s := host.Slot
	switch {
	case v.State == OtherCluster:
		return refuse(exit.Config, "%s; remedy: name a standby of the server that postgres.url leads to", v.Text)
	case v.State == OtherPrimary:
		return refuse(exit.Fault, "%s; remedy: find out which of the two is the right one, and stop the other", v.Text)
	case v.State == IsPrimary:
		return refuse(exit.Fault, "it is the primary, and the daemon reads its slot; remedy: name a standby")
	case primary.System == "" || host.System == "":
		return refuse(exit.NoPermission, "the role may not execute pg_control_system(), so the host may belong to another cluster; "+
			"remedy: GRANT EXECUTE ON FUNCTION pg_control_system() TO the role")
	case host.Major() < syncMajor:
		return refuse(exit.Fault, "it is PostgreSQL %d, and leftovers exist since %d; remedy: what copies the slot (Patroni, pg_failover_slots) also removes it", host.Major(), syncMajor)
	case s == nil:
		return refuse(exit.Fault, "it has no slot %s, so nothing blocks the copy; remedy: outboxcdc doctor shows why there is none", slot)
	case s.Synced:
		return refuse(exit.Fault, "its slot %s is a synchronized copy, and no leftover; remedy: none is needed", slot)
	case s.Kind != "logical" || !s.Failover:
		return refuse(exit.Fault, "its slot %s is no leftover (%s, failover %t, synced %t): another program has created it; remedy: find out which, then there: SELECT pg_drop_replication_slot('%s')",
			slot, s.Kind, s.Failover, s.Synced, slot)
	case s.Active:
		return refuse(exit.Fault, "its slot %s is in use by PID %d (application %q); remedy: stop that client first", slot, s.ActivePID, s.ActiveName)
	case primary.Slot == nil || primary.Slot.Kind != "logical" || primary.Slot.Lost():
		return refuse(exit.Lost, "the primary has no valid slot %s, so the leftover (at %s) may be the only trace of the position; remedy: %s, and run this again", slot, s.ConfirmedFlush, advice.Recover)
	}
	return nil
}

// dropSQL drops a leftover and nothing else, whatever has changed since it was seen.
const dropSQL = `
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
 WHERE slot_name = $1 AND slot_type = 'logical' AND failover AND NOT synced AND NOT active
   AND pg_is_in_recovery() AND (SELECT system_identifier::text FROM pg_control_system()) = $2`

// Clean drops the leftover of a slot on a host of the cluster with that system identifier. The role needs REPLICATION.
// [CheckLeftover] says before whether there is one. The error has an exit code.
func Clean(ctx context.Context, h *replication.Host, slot, system string) error {
	connect, err := h.Prepare(ctx)
	if err != nil {
		return exit.With(exit.Unavailable, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := connect(ctx)
	if err != nil {
		return exit.With(exit.Unavailable, err)
	}
	defer hangUp(ctx, conn)
	tag, err := conn.Exec(ctx, dropSQL, slot, system)
	switch {
	case err != nil && replication.LacksPrivilege(err):
		return exit.With(exit.NoPermission, fmt.Errorf("%s: drop slot %s: %w; remedy: the role needs REPLICATION", h.Address, slot, err))
	case err != nil:
		return exit.With(exit.Unavailable, fmt.Errorf("%s: drop slot %s: %w", h.Address, slot, err))
	case tag.RowsAffected() != 1:
		return exit.With(exit.Fault, errors.New(h.Address+": the slot was changed meanwhile and was not dropped; remedy: run this again to see what it is now"))
	}
	return nil
}
