package replication

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A server without TLS says so first: what it says then is the cause.
func TestConnectErrorNamesTheCause(t *testing.T) {
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listen.Close() })
	go func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 8)
			_, _ = io.ReadFull(conn, request)
			if request[4] == 4 { // SSLRequest
				_, _ = conn.Write([]byte("N"))
			} else {
				_, _ = io.ReadFull(conn, make([]byte, int(request[3])-len(request))) // the startup message is short
				_, _ = conn.Write([]byte("E\x00\x00\x00\x1cSFATAL\x00C3D000\x00Mno such\x00\x00"))
			}
			_ = conn.Close()
		}
	}()
	for mode, want := range map[string]string{"prefer": "no such", "disable": "no such", "require": "server refused TLS connection"} {
		_, err := pgconn.Connect(context.Background(), "postgres://u@"+listen.Addr().String()+"/d?sslmode="+mode)
		text := classify("connect to Postgres", connecting, err).Error()
		if !strings.Contains(text, want) || strings.Count(text, "127.0.0.1") > 2 || strings.Contains(text, "\n") {
			t.Errorf("sslmode=%s: %q, want %q", mode, text, want)
		}
		if strings.Contains(text, "refused TLS") != (mode == "require") {
			t.Errorf("sslmode=%s: %q", mode, text)
		}
		if pg, ok := errors.AsType[*pgconn.PgError](classify("connect", connecting, err)); mode != "require" && (!ok || pg.Code != "3D000") {
			t.Errorf("sslmode=%s: the server's error is lost: %v", mode, pg)
		}
	}
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_ = dead.Close()
	_, err = pgconn.Connect(context.Background(), "postgres://u@"+dead.Addr().String()+"/d?sslmode=prefer")
	if text := classify("connect", connecting, err).Error(); strings.Count(text, "connection refused") != 1 {
		t.Errorf("both attempts are shown: %q", text)
	}
}
