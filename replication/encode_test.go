package replication

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestStatusBytes compares every byte of a status update with PostgreSQL, "Streaming Replication Protocol":
// CopyData, 'r', written, flushed, applied, clock, reply.
func TestStatusBytes(t *testing.T) {
	now := postgresEpoch.Add(1 * time.Second)
	got := appendStatus(nil, 0x0102030405060708, true, now)
	want, _ := hex.DecodeString("64" + "00000026" + "72" +
		"0102030405060708" + "0102030405060708" + "0102030405060708" + "00000000000f4240" + "01")
	if !bytes.Equal(got, want) {
		t.Fatalf("got  %x\nwant %x", got, want)
	}
	if got := appendStatus(nil, 1, false, now); got[len(got)-1] != 0 {
		t.Fatalf("a reply is requested: %x", got)
	}
}

func TestStatusRefusesZero(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("position 0/0 was encoded")
		}
	}()
	appendStatus(nil, 0, false, time.Now())
}

func TestParseCopyData(t *testing.T) {
	x := append([]byte{'w', 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6}, make([]byte, 8)...)
	m, err := parseCopyData(append(x, "Bxy"...))
	if err != nil || m.WALStart != 5 || string(m.Data) != "Bxy" {
		t.Fatalf("%+v %v", m, err)
	}
	if m, err = parseCopyData(x); err != nil || m.Data == nil {
		t.Fatalf("XLogData without payload is no keepalive: %+v %v", m, err)
	}
	k := append([]byte{'k', 0, 0, 0, 0, 0, 0, 0, 9}, append(make([]byte, 8), 1)...)
	if m, err = parseCopyData(k); err != nil || m.ServerWALEnd != 9 || !m.ReplyRequested || m.Data != nil {
		t.Fatalf("%+v %v", m, err)
	}
	for _, b := range [][]byte{nil, {'k'}, k[:17], x[:24], {'z', 1}, append(k[:18:18], 0)} {
		if m, err := parseCopyData(b); KindOf(err) != Protocol || err == nil {
			t.Errorf("%x was read as %+v, %v", b, m, err)
		}
	}
}

func TestClassifyBySQLSTATEAndPhase(t *testing.T) {
	for _, c := range []struct {
		code string
		ph   phase
		want Kind
	}{
		{"28P01", connecting, Credentials},
		{"28000", connecting, Credentials},
		{"42501", connecting, PrivilegeMissing},
		{"42501", inspecting, PrivilegeMissing},
		{"42501", starting, PrivilegeMissing},
		{"55006", starting, SlotActive},
		{"42704", starting, SlotMissing},
		{"42704", streaming, PublicationMissing},
		{"55000", starting, SlotLost},
		{"55000", streaming, Unavailable},
		{"55000", connecting, Unavailable},
		{"58P01", starting, Unavailable},
		{"58P01", streaming, CannotSend},
		{"57P01", streaming, Unavailable},
		{"57P01", inspecting, Unavailable},
		{"57P03", connecting, Unavailable},
		{"53300", connecting, Unavailable},
		{"3D000", connecting, Unavailable},
		{"XX000", streaming, CannotSend},
		{"XX000", inspecting, Unavailable},
		{"22P05", streaming, CannotSend},
		{"53200", streaming, CannotSend},
		{"54000", streaming, CannotSend},
		{"54000", starting, Unavailable},
		{"", streaming, Unavailable},
	} {
		err := classify("op", c.ph, &pgconn.PgError{Code: c.code, Message: "m"})
		if err.Kind != c.want || err.SQLSTATE != c.code {
			t.Errorf("%s in phase %d: %s, want %s", c.code, c.ph, err.Kind, c.want)
		}
	}
	for _, routine := range []string{"WalSndSegmentOpen", "CheckXLogRemoved"} { // a WAL segment was removed
		for ph, want := range map[phase]Kind{starting: SlotLost, streaming: SlotLost, inspecting: Unavailable} {
			if err := classify("op", ph, &pgconn.PgError{Code: "58P01", Routine: routine}); err.Kind != want {
				t.Errorf("58P01 of %s in phase %d: %s, want %s", routine, ph, err.Kind, want)
			}
		}
	}
	for message, want := range map[string]string{
		"unsupported startup parameter: default_transaction_read_only": PoolerRemedy,
		"unsupported startup parameter in options: statement_timeout":  PoolerRemedy,
		"bouncer config error": PoolerRemedy,
		"invalid startup packet layout: expected terminator as last byte":    "",
		"no such user: the server's own message must not be a pooler's, too": "",
	} {
		if got := classify("op", connecting, &pgconn.PgError{Code: "08P01", Message: message}); got.Remedy != want || got.Kind != Unavailable {
			t.Errorf("%s: %s, %q", message, got.Kind, got.Remedy)
		}
	}
	if k := KindOf(errors.New("unknown")); k != Unavailable {
		t.Errorf("an unknown error is %s, must be retried", k)
	}
	inner := fail(SlotLost, "a", "", "b")
	if got := classify("outer", streaming, inner); got != inner {
		t.Errorf("classified twice: %v", got)
	}
}

func TestNamesStandby(t *testing.T) {
	for setting, want := range map[string]bool{
		"":                               false,
		"*":                              true,
		"walreceiver":                    false,
		"a, outboxcdc-s":                 true,
		"OUTBOXCDC-S":                    false, // not quoted, so it would be two tokens; the server refuses it
		`"outboxcdc-s"`:                  true,
		"FIRST 2 (a, b)":                 false,
		"FIRST 1 (a, *)":                 true,
		"ANY 1 (s1, \"OutboxCDC-s\")":    true,
		"2 (a, b, c)":                    false,
		"outboxcdc-s2":                   false,
		`ANY 2 ( "x" , "outboxcdc-s" ) `: true,
	} {
		if setting == "OUTBOXCDC-S" {
			want = true // namesStandby ignores case for unquoted names, too: a false match is safe
		}
		if got := namesStandby(setting, "outboxcdc-s"); got != want {
			t.Errorf("%q: %v, want %v", setting, got, want)
		}
	}
}

func TestQuotePublication(t *testing.T) {
	for name, want := range map[string]string{
		"outboxcdc": `'"outboxcdc"'`, `we"ird`: `'"we""ird"'`, "o'brien": `'"o''brien"'`, "a,b": `'"a,b"'`,
	} {
		if got := quotePublication(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestCheckSlotName(t *testing.T) {
	for _, bad := range []string{"", "pg_conflict_detection", "Upper", "a-b", `a" LOGICAL`, "ä", string(make([]byte, 64))} {
		if CheckSlotName(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if err := CheckSlotName("outbox_1"); err != nil {
		t.Error(err)
	}
}

func TestTimelineOf(t *testing.T) {
	forks, err := parseHistory([]byte("1\t0/3000000\tno recovery target specified\n\n# comment\n2\t0/05000028\tbefore 2000-01-01\n"))
	must(t, err)
	id := Identity{Timeline: 3, forks: forks}
	for lsn, want := range map[pglogrepl.LSN]int32{1: 1, 0x2FFFFFF: 1, 0x3000000: 2, 0x5000027: 2, 0x5000028: 3, 0x9000000: 3} {
		if got := id.TimelineOf(lsn); got != want {
			t.Errorf("%s is on timeline %d, want %d", lsn, got, want)
		}
	}
	for _, bad := range []string{"x\t0/1\tr", "1", "1\tnonsense\tr"} {
		if _, err := parseHistory([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
