// Command record writes decoder/testdata/pg<major>/<scenario>.txt: what real walsenders of every supported version
// send for a list of scenarios. It fetches and starts the servers itself: the builds of package pgfull where there is
// one, because they are the newest minor releases, and those of package pgtest otherwise. Run it with go generate in
// decoder/, then check the difference and run go test ./decoder -update.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxcdc/outboxcdc/test/pgfull"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func main() {
	out := flag.String("out", "testdata", "folder to write to")
	majors := flag.String("majors", strings.Join(pgtest.Majors(), ","), "the versions to record")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, major := range strings.Split(*majors, ",") {
		if err := recordMajor(ctx, major, filepath.Join(*out, "pg"+major)); err != nil {
			fmt.Fprintf(os.Stderr, "record PostgreSQL %s: %v\n", major, err)
			os.Exit(1)
		}
	}
}

func recordMajor(ctx context.Context, major, dir string) (err error) {
	options := pgtest.Options{Major: major, Settings: map[string]string{
		"max_prepared_transactions": "5", "max_replication_slots": "50", // one per scenario, none is dropped
	}}
	if slices.Contains(pgfull.Majors(), major) {
		build, err := pgfull.Fetch(ctx, major)
		if err != nil {
			return err
		}
		options = build.Options(options)
	}
	server, err := pgtest.Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, sc := range scenarios() {
		if err := server.Exec(ctx, "postgres", "CREATE DATABASE "+sc.name); err != nil {
			return err
		}
		text, err := sc.record(ctx, server.SuperURL(sc.name))
		if err != nil {
			return fmt.Errorf("scenario %s: %w", sc.name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, sc.name+".txt"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// record plays the scenario in an empty database and returns the text of its file, except for the decoded part.
func (sc scenario) record(ctx context.Context, url string) (string, error) {
	conns := map[string]*pgx.Conn{}
	for _, name := range []string{"a", "b"} {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return "", err
		}
		defer c.Close(context.WithoutCancel(ctx))
		conns[name] = c
	}
	a := conns["a"]
	for _, sql := range sc.setup {
		if _, err := a.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("%s: %w", sql, err)
		}
	}
	var start pglogrepl.LSN
	if err := a.QueryRow(ctx, "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput')", sc.name).Scan(&start); err != nil {
		return "", err
	}
	for _, s := range sc.steps {
		if rows, ok := strings.CutPrefix(s.sql, "COPY "); ok {
			head, data, _ := strings.Cut(rows, "\n")
			if _, err := conns[s.conn].PgConn().CopyFrom(ctx, strings.NewReader(data), "COPY "+head); err != nil {
				return "", fmt.Errorf("COPY %s: %w", head, err)
			}
			continue
		}
		if _, err := conns[s.conn].Exec(ctx, s.sql); err != nil {
			return "", fmt.Errorf("%s: %w", s.sql, err)
		}
	}
	var version string
	var end pglogrepl.LSN
	if err := a.QueryRow(ctx, "SELECT current_setting('server_version'), pg_current_wal_flush_lsn()").Scan(&version, &end); err != nil {
		return "", err
	}
	messages, err := sc.stream(ctx, url, start, end)
	if err != nil {
		return "", err
	}

	var b strings.Builder
	version, _, _ = strings.Cut(version, " ")
	fmt.Fprintf(&b, "# PostgreSQL %s: %s\n", version, sc.what)
	for _, sql := range sc.setup {
		fmt.Fprintf(&b, "#      %s\n", comment(sql))
	}
	for _, s := range sc.steps {
		fmt.Fprintf(&b, "#   %s: %s\n", s.conn, comment(s.sql))
	}
	b.WriteString("# WAL start of the XLogData, and its message\n")
	for _, m := range messages {
		fmt.Fprintf(&b, "%s %s\n", m.WALStart, strconv.QuoteToASCII(string(m.WALData)))
	}
	return b.String(), nil
}

func comment(sql string) string { return strings.ReplaceAll(sql, "\n", "\n#        ") }

// stream reads the slot from start until everything up to end was sent.
func (sc scenario) stream(ctx context.Context, url string, start, end pglogrepl.LSN) ([]pglogrepl.XLogData, error) {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"replication": "database", "client_encoding": "UTF8", "DateStyle": "ISO", "IntervalStyle": "postgres",
		"extra_float_digits": "3", "TimeZone": "UTC", "bytea_output": "hex",
	} {
		config.RuntimeParams[name] = value
	}
	if sc.workMem != "" {
		config.RuntimeParams["logical_decoding_work_mem"] = sc.workMem
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	args := append([]string{"proto_version '1'", "publication_names 'p'"}, sc.options...)
	if err := pglogrepl.StartReplication(ctx, conn, sc.name, 0, pglogrepl.StartReplicationOptions{PluginArgs: args}); err != nil {
		return nil, err
	}
	var messages []pglogrepl.XLogData
	var asked time.Time
	for {
		if time.Since(asked) > time.Second {
			asked = time.Now()
			status := pglogrepl.StandbyStatusUpdate{WALWritePosition: start, WALFlushPosition: start, WALApplyPosition: start, ReplyRequested: true}
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, status); err != nil {
				return nil, err
			}
		}
		wait, cancel := context.WithDeadline(ctx, asked.Add(time.Second))
		raw, err := conn.ReceiveMessage(wait)
		cancel()
		if pgconn.Timeout(err) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		switch m := raw.(type) {
		case *pgproto3.ErrorResponse:
			return nil, pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyData:
			switch m.Data[0] {
			case pglogrepl.XLogDataByteID:
				x, err := pglogrepl.ParseXLogData(m.Data[1:])
				if err != nil {
					return nil, err
				}
				x.WALData = append([]byte(nil), x.WALData...) // pgx reuses the buffer for the next message
				messages = append(messages, x)
			case pglogrepl.PrimaryKeepaliveMessageByteID:
				k, err := pglogrepl.ParsePrimaryKeepaliveMessage(m.Data[1:])
				if err != nil {
					return nil, err
				}
				if k.ServerWALEnd >= end {
					return messages, nil
				}
			}
		case *pgproto3.CopyDone:
			return nil, io.ErrUnexpectedEOF
		}
	}
}
