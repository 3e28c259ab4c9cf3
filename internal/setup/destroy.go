package setup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/human"
	"github.com/outboxcdc/outboxcdc/replication"
	"github.com/outboxcdc/outboxcdc/sql"
)

// Destroy is one run of `setup destroy`: it drops slot and publication.
type Destroy struct {
	Params sql.Params
	DryRun bool // say what would be done
	Yes    bool // do not ask
	In     io.Reader
	Out    io.Writer
}

// Run does it over a connection of its own. Its error has an exit code.
func (d *Destroy) Run(ctx context.Context, dsn string) error { return withExitCode(d.run(ctx, dsn)) }

func (d *Destroy) run(ctx context.Context, dsn string) error {
	conn, err := connect(ctx, dsn, DefaultTimeout)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	slot, publication, err := d.look(ctx, conn)
	if err != nil {
		return err
	}
	d.describe(slot, publication)
	if d.DryRun || (slot == nil && !publication) {
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
		d.say("dropped slot %s; %s of WAL become free with the next checkpoint, as far as no other slot needs them", d.Params.Slot, human.Size(int64(slot.RetainedBytes())))
	}
	if publication {
		if _, err := conn.Exec(ctx, statements.Get(sql.Publication), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("drop publication %s: %w", d.Params.Publication, err)
		}
		d.say("dropped publication %s", d.Params.Publication)
	}
	return nil
}

// look finds what is there and refuses what is in use or not ours.
func (d *Destroy) look(ctx context.Context, conn *pgx.Conn) (slot *replication.Slot, publication bool, err error) {
	c := &catalog{conn: conn}
	if err := c.lookAtServer(ctx); err != nil {
		return nil, false, err
	}
	c.expectDatabase(d.Params.Database)
	name := d.Params.Slot
	if slot, err = replication.ReadSlot(ctx, conn, name); err != nil {
		return nil, false, err
	}
	switch {
	case slot == nil:
	case slot.Kind != "logical" || slot.Plugin != "pgoutput":
		c.problem("slot %s is not a pgoutput slot, so it is not ours; check postgres.slot", name)
	case slot.Database != c.database:
		c.problem("slot %s belongs to database %s; connect there", name, slot.Database)
	case slot.Active:
		c.problem("slot %s is active: pid %d, application %q is streaming from it; stop that first", name, slot.ActivePID, slot.ActiveName)
	}
	var owner string
	var mine bool
	err = conn.QueryRow(ctx, `SELECT r.rolname, pg_has_role(r.oid, 'USAGE') FROM pg_publication p JOIN pg_roles r ON r.oid = p.pubowner WHERE pubname = $1`,
		d.Params.Publication).Scan(&owner, &mine)
	if publication = err == nil; err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, false, fmt.Errorf("look at publication %s: %w", d.Params.Publication, err)
	}
	if err := errors.Join(c.problems...); err != nil {
		return nil, false, fmt.Errorf("nothing was changed:\n%w", err)
	}
	if publication && !mine { // a slot that is dropped before this shows is gone for good
		return nil, false, exit.With(exit.NoPermission, fmt.Errorf("nothing was changed: publication %s belongs to role %s, and only its owner may drop it: connect as %s",
			d.Params.Publication, owner, owner))
	}
	return slot, publication, nil
}

func (d *Destroy) describe(slot *replication.Slot, publication bool) {
	would := ""
	if d.DryRun {
		would = "would drop "
	}
	if slot == nil {
		d.say("slot %s is not there", d.Params.Slot)
	} else {
		d.say("%sslot %s: holds back %s of WAL; what it has not delivered, it never will", would, d.Params.Slot, human.Size(int64(slot.RetainedBytes())))
	}
	if !publication {
		d.say("publication %s is not there", d.Params.Publication)
	} else {
		d.say("%spublication %s", would, d.Params.Publication)
	}
	if len(d.Params.Tables) == 0 {
		d.say("role %s stays", d.Params.Role)
		return
	}
	var names []string
	for i := range d.Params.Tables {
		names = append(names, d.Params.Tables[i].String())
	}
	d.say("table %s and role %s stay", strings.Join(names, ", "), d.Params.Role)
}

// confirm wants the slot's name typed: a bare y comes too easily for something that cannot be undone.
func (d *Destroy) confirm() error {
	if d.Yes {
		return nil
	}
	fmt.Fprintf(d.Out, "Type the slot's name to go on: ")
	answer, err := bufio.NewReader(d.In).ReadString('\n')
	if err != nil && answer == "" {
		return exit.With(exit.Usage, errors.New("no answer on standard input; give --yes. Nothing was changed"))
	}
	if strings.TrimSpace(answer) != d.Params.Slot {
		return errors.New("not confirmed; nothing was changed")
	}
	return nil
}

func (d *Destroy) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }
