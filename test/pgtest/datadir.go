package pgtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// initdb creates a data directory: UTF8, locale C, passwords required on every connection, so that a test can try a
// wrong one.
func (s *Server) initdb(ctx context.Context) error {
	// Not in the environment or the arguments, which every user can read.
	pw := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pw, []byte(Password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the superuser's password for initdb: %w", err)
	}
	defer os.Remove(pw)
	if err := s.account.Give(pw); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.BinDir, "initdb"),
		"--pgdata", s.DataDir,
		"--username", Superuser,
		"--pwfile", pw,
		"--auth", "scram-sha-256",
		"--encoding", "UTF8",
		"--locale", "C",
		"--no-sync", // a test does not survive a crash of the machine anyway
	)
	cmd.Env, cmd.Dir = append(s.account.Env(s.dir), s.env...), s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account.credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w; its output:\n%s", cmd.Path, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// defaults are the settings of every server. fsync stays on: a crash test without durability proves nothing.
func (s *Server) defaults() map[string]string {
	return map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.Port),
		"unix_socket_directories": "", // two servers must not meet in /tmp
		"wal_level":               "logical",
		"max_wal_senders":         "20",
		"max_replication_slots":   "10",
		"max_connections":         "200",
		"shared_buffers":          "64MB",
		"log_destination":         "stderr",
		"logging_collector":       "off",
		"log_line_prefix":         "%m [%p] %b %q%u@%d ",
	}
}

// settingsFile is written by us alone, and read after everything that initdb wrote.
const settingsFile = "outboxcdc.conf"

// writeConf writes the settings; a server in a used folder gets the settings, and the port, of this start.
func (s *Server) writeConf(settings map[string]string) error {
	all := s.defaults()
	maps.Copy(all, settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.WriteString(confLine(name, all[name]))
	}
	path := filepath.Join(s.DataDir, settingsFile)
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write the server's settings: %w", err)
	}
	if err := s.account.Give(path); err != nil {
		return err
	}
	main := filepath.Join(s.DataDir, "postgresql.conf")
	have, err := os.ReadFile(main)
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	include := confLine("include", settingsFile)
	if strings.Contains(string(have), include) {
		return nil
	}
	return s.appendTo("postgresql.conf", include)
}

// confLine formats one setting for postgresql.conf.
func confLine(name, value string) string {
	return name + " = '" + strings.ReplaceAll(value, "'", "''") + "'\n"
}

// AppendConf appends lines to the server's settings, overriding earlier ones. They take effect after Reload, or after a
// restart where needed.
func (s *Server) AppendConf(lines ...string) error {
	if s.outside != nil {
		return ErrExternal
	}
	return s.appendTo(settingsFile, strings.Join(lines, "\n")+"\n")
}

// AllowHost appends lines to pg_hba.conf, where the first match counts: they can admit connections that no line admits
// yet, but forbid none.
func (s *Server) AllowHost(lines ...string) error {
	if s.outside != nil {
		return ErrExternal
	}
	return s.appendTo("pg_hba.conf", strings.Join(lines, "\n")+"\n")
}

func (s *Server) appendTo(name, text string) error {
	f, err := os.OpenFile(filepath.Join(s.DataDir, name), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("append to %s: %w", name, err)
	}
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return fmt.Errorf("append to %s: %w", name, err)
	}
	return f.Close()
}

// Reload makes the server reload its settings. It does not wait until every process of the server has done so.
func (s *Server) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.outside != nil:
		return ErrExternal
	case s.proc == nil || s.proc.Exited():
		return fmt.Errorf("reload PostgreSQL %s: it is not running", s.Major)
	}
	return s.proc.Signal(syscall.SIGHUP)
}
