package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Standby starts a second server that streams from this one (PostgreSQL 15 or newer) and returns when it answers
// queries. slot is a physical slot that Standby creates. settings are those of the standby; limits such as
// max_wal_senders must be at least this server's.
func (s *Server) Standby(ctx context.Context, slot string, settings map[string]string) (*Server, error) {
	if s.outside != nil {
		return nil, ErrExternal
	}
	b := &Server{Major: s.Major, BinDir: s.BinDir, env: s.env, made: true}
	err := s.copyTo(ctx, b, slot)
	if err == nil {
		if err = b.build(ctx, s.standbySettings(slot, settings)); err == nil {
			err = b.StartAgain(ctx)
		}
	}
	if err != nil {
		b.removeDir()
		return nil, fmt.Errorf("create a standby: %w", err)
	}
	return b, nil
}

// standbySettings are the settings of a standby of this server, over which settings go.
func (s *Server) standbySettings(slot string, settings map[string]string) map[string]string {
	all := map[string]string{
		"primary_slot_name": slot, "hot_standby_feedback": "on",
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s dbname=postgres", s.Port, Superuser, Password),
	}
	maps.Copy(all, settings)
	return all
}

// Follow makes this server, which was stopped cleanly, a standby of primary, which was its standby until then, and
// returns when it answers queries. slot is a physical slot that Follow creates there. It needs no pg_rewind, because a
// clean stop waits until standbys have all WAL.
func (s *Server) Follow(ctx context.Context, primary *Server, slot string, settings map[string]string) error {
	if s.outside != nil {
		return ErrExternal
	}
	err := primary.Exec(ctx, "postgres", "SELECT pg_create_physical_replication_slot('"+slot+"', true)")
	if err == nil {
		path := filepath.Join(s.DataDir, "standby.signal")
		if err = os.WriteFile(path, nil, 0o600); err == nil {
			err = s.account.Give(path)
		}
	}
	if err == nil {
		err = s.writeConf(primary.standbySettings(slot, settings))
	}
	if err == nil {
		err = s.StartAgain(ctx)
	}
	if err != nil {
		return fmt.Errorf("make a standby of a former primary: %w", err)
	}
	return nil
}

// copyTo takes a base backup like pg_basebackup, which is not among the fetched programs (package pgfull has it).
func (s *Server) copyTo(ctx context.Context, b *Server, slot string) (err error) {
	if b.account, err = ServerAccount(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "outboxcdc-pg"+s.Major+"-standby-"); err != nil {
		return err
	}
	if err := b.account.Give(b.dir); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.SuperURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true), pg_backup_start('standby', true)", slot); err != nil {
		return err
	}
	data := filepath.Join(b.dir, "data")
	if err := b.copyDir(s.DataDir, data); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label); err != nil {
		return err
	}
	for name, text := range map[string]string{"backup_label": label, "standby.signal": ""} {
		path := filepath.Join(data, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		if err := b.account.Give(path); err != nil {
			return err
		}
	}
	return nil
}

// copyDir copies a data directory except for the running server's own files: its process and its slots.
func (s *Server) copyDir(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // deleted meanwhile; the WAL says so too
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, from), "/")
		target := filepath.Join(to, name)
		switch {
		case name == "postmaster.pid" || strings.HasPrefix(name, "pg_replslot/"):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			err = os.Mkdir(target, 0o700)
		default:
			var text []byte
			if text, err = os.ReadFile(path); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				err = os.WriteFile(target, text, 0o600)
			}
		}
		if err != nil {
			return err
		}
		if s.account.credential == nil {
			return nil
		}
		return os.Chown(target, int(s.account.credential.Uid), int(s.account.credential.Gid))
	})
}

// HostPort returns the server's address.
func (s *Server) HostPort() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }
