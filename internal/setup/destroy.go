package setup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/advice"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// Destroy is one run of `setup destroy`: it drops slot and publication.
type Destroy struct {
	Params sql.Params
	DryRun bool // print what would be done, and change nothing
	Yes    bool // do not ask for confirmation
	In     io.Reader
	Out    io.Writer
}

// Run opens a connection, drops slot and publication, and closes the connection. The error has an exit code.
func (d *Destroy) Run(ctx context.Context, dsn string) error { return withExitCode(d.run(ctx, dsn)) }

func (d *Destroy) run(ctx context.Context, dsn string) error {
	conn, err := connect(ctx, dsn, DefaultTimeout)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	slot, recovery, publication, err := d.check(ctx, conn)
	if err != nil {
		return err
	}
	d.describe(slot, recovery, publication)
	if d.DryRun || (slot == nil && recovery == nil && publication == nil) {
		return nil
	}
	if err := d.confirm(); err != nil {
		return err
	}
	statements, err := sql.Teardown(d.Params)
	if err != nil {
		return err
	}
	if slot != nil {
		if _, err := conn.Exec(ctx, statements.Get(sql.Slot), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("drop slot %s: %w", d.Params.Slot, err)
		}
		d.printf("dropped slot %s; %s of WAL become free with the next checkpoint, as far as no other slot needs them", d.Params.Slot, human.Size(int64(slot.RetainedBytes())))
	}
	if recovery != nil {
		if _, err := conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", recovery.Name); err != nil {
			return fmt.Errorf("drop slot %s: %w", recovery.Name, err)
		}
		d.printf("dropped slot %s", recovery.Name)
	}
	if publication != nil {
		if _, err := conn.Exec(ctx, statements.Get(sql.Publication), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("drop publication %s: %w", d.Params.Publication, err)
		}
		d.printf("dropped publication %s", d.Params.Publication)
	}
	return nil
}

// check reads both slots and the publication. It fails if a slot is in use or is not a slot of outboxcdc.
func (d *Destroy) check(ctx context.Context, conn *pgx.Conn) (slot, recovery *replication.Slot, publication *replication.Publication, err error) {
	c := &catalog{conn: conn}
	if err := c.checkServer(ctx); err != nil {
		return nil, nil, nil, err
	}
	c.checkDatabase(d.Params.Database)
	name := d.Params.Slot
	if slot, recovery, err = replication.ReadSlots(ctx, conn, name); err != nil {
		return nil, nil, nil, err
	}
	c.checkDroppable(slot)
	c.checkDroppable(recovery)
	if publication, err = replication.ReadPublication(ctx, conn, d.Params.Publication); err != nil {
		return nil, nil, nil, err
	}
	if err := errors.Join(c.problems...); err != nil {
		return nil, nil, nil, fmt.Errorf("nothing was changed:\n%w", err)
	}
	if publication != nil && !publication.MayDrop { // the slot is dropped first and cannot be restored
		return nil, nil, nil, exit.With(exit.NoPermission, fmt.Errorf("nothing was changed: publication %s belongs to role %s, and only its owner may drop it: connect as %s",
			d.Params.Publication, publication.Owner, publication.Owner))
	}
	return slot, recovery, publication, nil
}

// checkDroppable checks that a slot is not in use and is a slot of outboxcdc.
func (c *catalog) checkDroppable(slot *replication.Slot) {
	switch {
	case slot == nil:
	case slot.Kind != "logical" || slot.Plugin != "pgoutput":
		c.problem("slot %s is not a pgoutput slot, so it does not belong to outboxcdc; check postgres.slot", slot.Name)
	case slot.Database != c.server.Database:
		c.problem("slot %s belongs to database %s; connect there", slot.Name, slot.Database)
	case slot.Active:
		c.problem("slot %s is active: pid %d, application %q is streaming from it; stop that client first", slot.Name, slot.ActivePID, slot.ActiveName)
	}
}

func (d *Destroy) describe(slot, recovery *replication.Slot, publication *replication.Publication) {
	would := ""
	if d.DryRun {
		would = "would drop "
	}
	if slot == nil {
		d.printf("slot %s does not exist", d.Params.Slot)
	} else {
		d.printf("%sslot %s, which retains %s of WAL. Events that it has not delivered can be delivered later: run outboxcdc setup apply --no-slot, then %s",
			would, d.Params.Slot, human.Size(int64(slot.RetainedBytes())), advice.Recover)
	}
	if recovery != nil {
		d.printf("%sslot %s, of a recovery that has not finished", would, recovery.Name)
	}
	if publication == nil {
		d.printf("publication %s does not exist", d.Params.Publication)
	} else {
		d.printf("%spublication %s", would, d.Params.Publication)
	}
	if len(d.Params.Tables) == 0 {
		d.printf("role %s is kept", d.Params.Role)
		return
	}
	var names []string
	for i := range d.Params.Tables {
		names = append(names, d.Params.Tables[i].String())
	}
	d.printf("table %s and role %s are kept", strings.Join(names, ", "), d.Params.Role)
}

// confirm asks the user to type the slot's name: a y is typed too easily for something that cannot be undone.
func (d *Destroy) confirm() error {
	if d.Yes {
		return nil
	}
	fmt.Fprintf(d.Out, "Type the name of the slot to continue: ")
	answer, err := bufio.NewReader(d.In).ReadString('\n')
	if err != nil && answer == "" {
		return exit.With(exit.Usage, errors.New("no answer on standard input; give --yes. Nothing was changed"))
	}
	if strings.TrimSpace(answer) != d.Params.Slot {
		return errors.New("not confirmed; nothing was changed")
	}
	return nil
}

func (d *Destroy) printf(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }
