package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxcdc/outboxcdc/sql"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

func postgresOutcomes(t *testing.T, w *world) {
	good := w.newPlace(t, w.pg).make()
	t.Run("nothing is wrong", func(t *testing.T) {
		p := good.in(t)
		p.wants()
		r := p.examine()
		if r.Count(OK) < 40 {
			t.Errorf("only %d OK:\n%s", r.Count(OK), r)
		}
	})
	t.Run("nothing is changed", func(t *testing.T) {
		p := good.in(t)
		const everything = `SELECT (SELECT string_agg(s::text, E'\n' ORDER BY s.slot_name) FROM (SELECT slot_name, temporary, active, restart_lsn, confirmed_flush_lsn, catalog_xmin FROM pg_replication_slots) s)
			|| (SELECT string_agg(p::text, E'\n') FROM pg_publication p) || (SELECT string_agg(c::text, E'\n' ORDER BY oid) FROM pg_class c WHERE relnamespace = 'public'::regnamespace)
			|| (SELECT count(*)::text FROM pg_stat_replication) || (SELECT string_agg(o::text, '') FROM outbox o)`
		look := func() (all string) {
			p.await("the end of the doctor's sessions", "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'outboxcdc-doctor%')")
			must(t, p.conn.QueryRow(t.Context(), everything).Scan(&all))
			return all
		}
		before := look()
		p.wants()
		if after := look(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
	// Servers that accept a connection and do not answer: the run ends in time, and Kafka gets its share of the time.
	t.Run("no server answers", func(t *testing.T) {
		p := good.in(t)
		mute := openPort(t, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
		p.rcfg.URL = func() (string, error) { return "postgres://x@" + mute + "/d?sslmode=disable", nil }
		p.kcfg.Brokers, p.kcfg.DialTimeout, p.kcfg.AskTimeout = []string{mute}, time.Minute, time.Minute
		p.patience = 2 * time.Second
		began := time.Now()
		p.wants(outcome{pgConnect, "FAIL 69", "no answer in time"}, outcome{kafkaAuth, "FAIL 69", "speak to"})
		if took := time.Since(began); took > p.patience+2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("password", func(t *testing.T) {
		p := good.in(t)
		p.rcfg.URL = func() (string, error) { return p.s.URL(p.name, roleName, "wrong"), nil }
		p.wants(outcome{pgConnect, "FAIL 69", "password"})
	})
	t.Run("what is wrong with the connection string", func(t *testing.T) {
		p := good.in(t)
		plain := p.s.URL(p.name, roleName, rolePassword)
		for _, c := range []struct {
			url, words, never string
			edit              func(*Config)
		}{
			{strings.Replace(plain, "sslmode=disable", "sslmode=require", 1), "does not support TLS, and sslmode", "firewall", func(*Config) {}},
			{plain + "&foo=bar", "does not know a keyword", "firewall", func(*Config) {}},
			{"postgres://x@" + closedPort + "/d", "postgres.url is not set", "firewall", func(c *Config) { c.NoURL = true }},
		} {
			p := good.in(t)
			p.rcfg.URL = func() (string, error) { return c.url, nil }
			c.edit(&p.cfg)
			p.wants(outcome{pgConnect, "FAIL 78", c.words})
			if text := p.examine().String(); strings.Contains(text, c.never) {
				t.Errorf("%s:\n%s", c.words, text)
			}
		}
		p.rcfg.URL = func() (string, error) {
			return strings.Replace(p.s.URL(p.name, roleName, ""), "sslmode=disable", "sslmode=prefer", 1), nil
		}
		p.cfg.NoPassword = true
		p.wants(outcome{pgConnect, "FAIL 69", "none was found in postgres.url, PGPASSWORD or PGPASSFILE: FATAL: password authentication failed"})
	})
	t.Run("no server", func(t *testing.T) {
		p := good.in(t)
		p.rcfg.URL = func() (string, error) { return "postgres://x@" + closedPort + "/d", nil }
		p.wants(outcome{pgConnect, "FAIL 69", "refused"})
	})
	t.Run("pooler", func(t *testing.T) {
		p := good.in(t)
		pooler := openPort(t, refuseStartup(`unsupported startup parameter: default_transaction_read_only`))
		p.rcfg.URL = func() (string, error) { return "postgres://x@" + pooler + "/d?sslmode=disable", nil }
		p.wants(outcome{pgConnect, "FAIL 69", "is a connection pooler, not a server"})
		p.advises(pgConnect, "let postgres.url name the server itself")
	})
	t.Run("another database", func(t *testing.T) {
		p := good.in(t)
		p.rcfg.URL = func() (string, error) { return p.s.URL("nowhere", roleName, rolePassword), nil }
		p.wants(outcome{pgConnect, "FAIL 69", "no database"})
	})
	t.Run("CONNECT", func(t *testing.T) {
		p := good.in(t)
		p.exec("REVOKE CONNECT ON DATABASE " + p.name + " FROM PUBLIC")
		defer p.exec("GRANT CONNECT ON DATABASE " + p.name + " TO PUBLIC")
		p.wants(outcome{pgConnect, "FAIL 77", "may not connect"})
	})
	t.Run("REPLICATION", func(t *testing.T) {
		p := good.in(t)
		p.exec("CREATE ROLE plain LOGIN PASSWORD '"+rolePassword+"'", "GRANT SELECT ON outbox TO plain")
		p.rcfg.URL = func() (string, error) { return p.s.URL(p.name, "plain", rolePassword), nil }
		p.wants(outcome{pgReplication, "FAIL 77", "lacks REPLICATION"})
	})
	t.Run("a pooler", func(t *testing.T) {
		p := good.in(t)
		var dials atomic.Int32
		p.rcfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) > 1 { // the first connection is the ordinary one
				return nil, errors.New("no replication here")
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		p.wants(outcome{pgReplication, "FAIL 69", "no replication here"})
	})
	t.Run("settings", func(t *testing.T) {
		p := good.in(t)
		p.setting("max_slot_wal_keep_size", "'-1'")
		p.setting("idle_replication_slot_timeout", "'1h'")
		p.setting("synchronous_standby_names", "'*'")
		p.cfg.SenderTimeout = 2 * time.Second
		p.cfg.Now = func() time.Time { return time.Now().Add(time.Hour) }
		p.wants(outcome{pgKeepSize, "WARN", "no limit"}, outcome{pgIdle, "WARN", "1h0m0s"}, outcome{pgSync, "FAIL 78", "every commit would wait"},
			outcome{pgTimeout, "WARN", "a short stall"}, outcome{pgClock, "WARN", "from this machine's"})
	})
	t.Run("other settings", func(t *testing.T) {
		p := good.in(t)
		p.setting("max_slot_wal_keep_size", "'512MB'")
		p.setting("synchronous_standby_names", "'outboxcdc_other, \"outboxcdc-"+p.name+"\"'")
		p.cfg.SenderTimeout = time.Hour
		p.wants(outcome{pgKeepSize, "WARN", "512 MB"}, outcome{pgTimeout, "WARN", "waits so long"}, outcome{pgSync, "FAIL 78", p.name})
	})
	t.Run("limit of WAL", func(t *testing.T) {
		p := good.in(t)
		p.setting("max_slot_wal_keep_size", "'-1'")
		for range 3 {
			p.exec("SELECT pg_switch_wal()", "CREATE TABLE w ()", "DROP TABLE w")
		}
		p.advises(pgKeepSize, "MB that a slot of the server retains now")
		const gb = 1 << 30
		for _, retained := range []int64{0, 20 * gb, 60 * gb, 60*gb + 1, 3000 * gb} {
			for _, size := range []int64{-1, smallKeepSize - 1} {
				e := &examination{findings: newFindings()}
				e.server.KeepSize, e.server.retained = size, retained
				e.checkKeepSize()
				for _, r := range e.found[pgKeepSize][0].Remedy {
					if r.Kind == SQL {
						p.exec(r.Text)
					}
				}
				p.await("the limit", fmt.Sprintf("SELECT pg_size_bytes(current_setting('max_slot_wal_keep_size')) >= %d", max(50*gb, 2*retained)))
				p.exec("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
				p.await("the former limit", "SELECT current_setting('max_slot_wal_keep_size') = '1GB'")
			}
		}
	})
	t.Run("encodings", func(t *testing.T) {
		p := good.in(t)
		rows, err := p.conn.Query(t.Context(), "SELECT pg_encoding_to_char(e) FROM generate_series(1, 34) e WHERE pg_encoding_max_length(e) = 1")
		must(t, err)
		singles, err := pgx.CollectRows(rows, pgx.RowTo[string])
		must(t, err)
		for _, enc := range singles {
			var n int
			err := p.conn.QueryRow(t.Context(), `SELECT count(convert(set_byte('\x00', 0, b), $1, 'UTF8')) FROM generate_series(128, 255) b`, enc).Scan(&n)
			if whole := slices.Contains(convertibleEncodings, enc); whole != (err == nil) {
				t.Errorf("%s is held for whole: %v; the server: %v", enc, whole, err)
			}
		}
		for enc, want := range map[string]string{"SQL_ASCII": "does not check text", "WIN1252": "22P05"} {
			e := &examination{findings: newFindings()}
			e.server.encoding = enc
			e.checkEncoding()
			if f := e.found[pgEncoding][0]; f.Level != "WARN" || len(f.Remedy) == 0 || !strings.Contains(f.Text, want) {
				t.Errorf("%s: %+v", enc, f)
			}
			w.seen[pgEncoding+" WARN"] = true
		}
	})
	t.Run("transactions", func(t *testing.T) {
		p := good.in(t)
		open, prepared := pgtest.Connect(p.t, p.s.URL(p.name, roleName, rolePassword)), pgtest.Connect(p.t, p.s.SuperURL(p.name))
		for _, c := range []struct {
			conn interface {
				Exec(context.Context, string) *pgconn.MultiResultReader
			}
			sql string
		}{
			{open.PgConn(), "BEGIN; SELECT pg_current_xact_id()"},
			{prepared.PgConn(), "BEGIN"},
			{prepared.PgConn(), "CREATE TABLE t ()"},
			{prepared.PgConn(), "PREPARE TRANSACTION 'it''s forgotten'"},
		} {
			if _, err := c.conn.Exec(t.Context(), c.sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		p.cfg.LongTransaction = 0
		p.wants(outcome{pgTransactions, "WARN", "no slot can be created"}, outcome{pgPrepared, "WARN", "'it''s forgotten'"})
		p.advises(pgPrepared, "let its transaction manager end it")
		p.exec("ROLLBACK PREPARED 'it''s forgotten'")
		_ = open.Close(context.Background())
	})
	t.Run("version", func(t *testing.T) {
		for number, want := range map[int]string{130020: "FAIL 78", 150012: "WARN", (sql.NewestTested + 1) * 10000: "WARN"} {
			e := &examination{findings: newFindings()}
			e.server.Version, e.server.VersionText = number, "of old"
			e.checkVersion()
			f := e.found[pgVersion][0]
			if is := string(f.Level); len(f.Remedy) == 0 || is != want && is+" 78" != want {
				t.Errorf("%d: %+v", number, f)
			}
			w.seen[pgVersion+" "+want] = true
		}
	})
	t.Run("wal_level", func(t *testing.T) {
		for _, c := range []struct {
			version                int
			level, effective, want string
		}{
			{180006, "logical", "logical", "OK"},
			{180006, "replica", "replica", "FAIL"},
			{190000, "minimal", "minimal", "FAIL"},
			{190000, "logical", "logical", "OK"},
			{190000, "replica", "logical", "WARN"},
			{190000, "replica", "replica", "WARN"},
			{200000, "replica", "replica", "WARN"},
		} {
			e := &examination{findings: newFindings()}
			e.server.Version, e.server.WALLevel, e.server.EffectiveWALLevel = c.version, c.level, c.effective
			e.checkWALLevel()
			f := e.found[pgWALLevel][0]
			if string(f.Level) != c.want || c.want != "OK" && len(f.Remedy) == 0 || c.want == "WARN" && !strings.Contains(f.Text, "effective_wal_level is "+c.effective) {
				t.Errorf("%+v: %+v", c, f)
			}
		}
		w.seen[pgWALLevel+" WARN"] = true
	})
}

// oldServerOutcomes are the cases whose settings need a restart, on the oldest supported server.
func oldServerOutcomes(t *testing.T, w *world) {
	s := pgtest.ForTest(t, pgtest.Options{Major: "14", Settings: map[string]string{"max_slot_wal_keep_size": "50GB", "max_wal_senders": "2", "max_replication_slots": "3", "fsync": "off"}})
	w.makeRole(s)
	p := w.newPlace(t, s).make()
	p.wants()
	p.exec("ALTER TABLE outbox RENAME TO kept", "CREATE UNLOGGED TABLE outbox "+outboxColumns+" PARTITION BY RANGE (id)")
	p.wants(outcome{tableExists, "FAIL 79", "unlogged"}, outcome{pubOthers, "WARN", "public.kept"})
	p.advises(tableExists, "create public.outbox again without UNLOGGED") // SET LOGGED would do nothing
	p.exec("DROP TABLE outbox", "ALTER TABLE kept RENAME TO outbox")

	// One more of each is in use: enough for the daemon, but not for recover or a standby.
	p.exec("SELECT pg_create_physical_replication_slot('another')")
	busy := p.replicate("another")
	p.wants(outcome{pgSenders, "WARN", "1 of 2"}, outcome{pgSlots, "WARN", "2 of 3"})
	more := p.replicate("another")
	p.wants(outcome{pgSenders, "FAIL 69", "all 2"}, outcome{pgSlots, "WARN", "2 of 3"})
	_, _ = busy.Close(context.Background()), more.Close(context.Background())
	p.await("free walsenders", "SELECT NOT EXISTS (SELECT FROM pg_stat_replication)")
	p.exec("SELECT pg_drop_replication_slot('"+p.name+"')", "SELECT pg_create_physical_replication_slot(name) FROM unnest('{further, last}'::name[]) name")
	p.wants(outcome{pgSlots, "FAIL 78", "all 3"}, outcome{slotExists, "FAIL 79", ""})

	_ = p.conn.Close(t.Context())
	must(t, s.AppendConf("wal_level = replica"))
	must(t, s.Restart(t.Context()))
	p.wants(outcome{pgWALLevel, "FAIL 78", "replica"}, outcome{pgSlots, "FAIL 78", "all 3"}, outcome{slotExists, "FAIL 79", ""})

	_, err := s.Stop(t.Context(), pgtest.Fast)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.DataDir, "standby.signal"), nil, 0o666))
	must(t, s.StartAgain(t.Context()))
	p.wants(outcome{pgPrimary, "FAIL 69", "in recovery"}, outcome{pgWALLevel, "FAIL 78", "replica"}, outcome{pgSlots, "FAIL 78", "all 3"}, outcome{slotExists, "FAIL 79", ""})
}

// replicate opens an idle replication connection as an administrator.
func (p *place) replicate(application string) *pgconn.PgConn {
	p.t.Helper()
	return p.replicateAs(p.s.SuperURL(p.name), application)
}

func (p *place) replicateAs(url, application string) *pgconn.PgConn {
	p.t.Helper()
	conn, err := pgconn.Connect(p.t.Context(), url+"&replication=database&application_name="+application)
	must(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refuseStartup answers the first message of a client as PgBouncer does if it does not know a parameter.
func refuseStartup(message string) func(net.Conn) {
	return func(c net.Conn) {
		go func() {
			defer c.Close()
			b := pgproto3.NewBackend(c, c)
			if _, err := b.ReceiveStartupMessage(); err != nil {
				return
			}
			b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: message})
			_ = b.Flush() // the client sees the end in any case
		}()
	}
}
