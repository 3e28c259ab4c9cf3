package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/sql"
)

func newSetupDestroyCommand(loadConfig func() (*config.Config, error)) *cobra.Command {
	var url string
	d := &destroyer{}
	cmd := &cobra.Command{
		Use:   "destroy",
		Short: "Drop the slot and the publication, but not the table or the role",
		Long: "Drop the slot and the publication. Events that the slot has not delivered are never delivered: a new slot begins later.\n" +
			"It refuses while the slot is active: stop the daemon first.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig()
			if err != nil {
				return err
			}
			if d.params, err = setupParams(cfg); err != nil {
				return err
			}
			dsn, err := setupURL(url)
			if err != nil {
				return err
			}
			d.in, d.out = cmd.InOrStdin(), cmd.OutOrStdout()
			if err := d.run(cmd.Context(), dsn); err != nil {
				return withExitCode(err)
			}
			leavePositionTopic(cfg, d.out)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "url", "", "connection string of a role with the required privileges (default $"+setupURLEnv+")")
	f.BoolVar(&d.dryRun, "dry-run", false, "print what would be done, and change nothing")
	f.BoolVar(&d.yes, "yes", false, "do not ask")
	return cmd
}

// destroyer is one run of `setup destroy`.
type destroyer struct {
	params      sql.Params
	dryRun, yes bool
	in          io.Reader
	out         io.Writer
}

func (d *destroyer) run(ctx context.Context, dsn string) error {
	conn, err := connectSetup(ctx, dsn, setupTimeout)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	slot, publication, err := d.look(ctx, conn)
	if err != nil {
		return err
	}
	d.describe(slot, publication)
	if d.dryRun || (slot == nil && !publication) {
		return nil
	}
	if err := d.confirm(); err != nil {
		return err
	}
	statements, err := sql.Teardown(d.params)
	if err != nil {
		return err
	}
	if slot != nil {
		if _, err := conn.Exec(ctx, statements.Get(sql.Slot), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("drop slot %s: %w", d.params.Slot, err)
		}
		d.say("dropped slot %s; %s of WAL become free with the next checkpoint, as far as no other slot needs them", d.params.Slot, slot.retained)
	}
	if publication {
		if _, err := conn.Exec(ctx, statements.Get(sql.Publication), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("drop publication %s: %w", d.params.Publication, err)
		}
		d.say("dropped publication %s", d.params.Publication)
	}
	return nil
}

// look finds what is there and refuses what is in use or not ours.
func (d *destroyer) look(ctx context.Context, conn *pgx.Conn) (slot *slotState, publication bool, err error) {
	c := &catalog{conn: conn}
	if err := c.lookAtServer(ctx); err != nil {
		return nil, false, err
	}
	c.expectDatabase(d.params.Database)
	name := d.params.Slot
	if slot, err = readSlot(ctx, conn, name); err != nil {
		return nil, false, err
	}
	switch {
	case slot == nil:
	case slot.kind != "logical" || slot.plugin != "pgoutput":
		c.problem("slot %s is not a pgoutput slot, so it is not ours; check postgres.slot", name)
	case slot.database != c.database:
		c.problem("slot %s belongs to database %s; connect there", name, slot.database)
	case slot.active:
		c.problem("slot %s is active: pid %d, application %q is streaming from it; stop that first", name, slot.pid, slot.application)
	}
	var owner string
	var mine bool
	err = conn.QueryRow(ctx, `SELECT r.rolname, pg_has_role(r.oid, 'USAGE') FROM pg_publication p JOIN pg_roles r ON r.oid = p.pubowner WHERE pubname = $1`,
		d.params.Publication).Scan(&owner, &mine)
	if publication = err == nil; err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, false, fmt.Errorf("look at publication %s: %w", d.params.Publication, err)
	}
	if err := errors.Join(c.problems...); err != nil {
		return nil, false, fmt.Errorf("nothing was changed:\n%w", err)
	}
	if publication && !mine { // a slot that is dropped before this shows is gone for good
		return nil, false, &exitError{code: exitNoPermission, err: fmt.Errorf("nothing was changed: publication %s belongs to role %s, and only its owner may drop it: connect as %s",
			d.params.Publication, owner, owner)}
	}
	return slot, publication, nil
}

func (d *destroyer) describe(slot *slotState, publication bool) {
	would := ""
	if d.dryRun {
		would = "would drop "
	}
	if slot == nil {
		d.say("slot %s is not there", d.params.Slot)
	} else {
		d.say("%sslot %s: holds back %s of WAL; what it has not delivered, it never will", would, d.params.Slot, slot.retained)
	}
	if !publication {
		d.say("publication %s is not there", d.params.Publication)
	} else {
		d.say("%spublication %s", would, d.params.Publication)
	}
	if len(d.params.Tables) == 0 {
		d.say("role %s stays", d.params.Role)
		return
	}
	var names []string
	for i := range d.params.Tables {
		names = append(names, d.params.Tables[i].String())
	}
	d.say("table %s and role %s stay", strings.Join(names, ", "), d.params.Role)
}

// confirm wants the slot's name typed: a bare y comes too easily for something that cannot be undone.
func (d *destroyer) confirm() error {
	if d.yes {
		return nil
	}
	fmt.Fprintf(d.out, "Type the slot's name to go on: ")
	answer, err := bufio.NewReader(d.in).ReadString('\n')
	if err != nil && answer == "" {
		return usageError(errors.New("nobody there to ask; give --yes. Nothing was changed"))
	}
	if strings.TrimSpace(answer) != d.params.Slot {
		return errors.New("not confirmed; nothing was changed")
	}
	return nil
}

func (d *destroyer) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }
