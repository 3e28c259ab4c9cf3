package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
)

// heldWAL is the slot, and how much WAL it may hold, at one moment.
type heldWAL struct {
	Slot        string `json:"slot"`
	Missing     bool   `json:"missing,omitempty"`
	Active      bool   `json:"active"`
	PID         int    `json:"active_pid,omitempty"`
	Application string `json:"application,omitempty"` // of who reads it, if our role may see that
	Address     string `json:"address,omitempty"`
	WALStatus   string `json:"wal_status,omitempty"`
	Invalid     string `json:"invalidation_reason,omitempty"`
	Retained    int64  `json:"retained_bytes"`
	Unconfirmed int64  `json:"unconfirmed_bytes"` // of it: written behind the confirmed position
	// Budget is max_slot_wal_keep_size and Left what may still be written before the slot is in danger; -1: no limit.
	Budget int64 `json:"budget_bytes"`
	Left   int64 `json:"budget_left_bytes"`
	// Longest is the slot that holds the most WAL, if that is another one.
	Longest *otherSlot `json:"longest_slot,omitempty"`
	// Oldest is the oldest transaction of the server that writes, if more than onTheWay of the WAL is confirmed and held all the same.
	Oldest *doctor.OpenTransaction `json:"oldest_transaction,omitempty"`
}

// otherSlot is a slot of the same server that is not ours.
type otherSlot struct {
	Slot     string `json:"slot"`
	Active   bool   `json:"active"`
	Retained int64  `json:"retained_bytes"`
}

// lost reports whether the slot is no more, or can be read no more.
func (h *heldWAL) lost() bool { return h.Missing || h.Invalid != "" || h.WALStatus == "lost" }

const heldSQL = `
SELECT s.active, coalesce(s.active_pid, 0), coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
       coalesce(s.wal_status, ''), coalesce(to_jsonb(s)->>'invalidation_reason', ''),
       coalesce(greatest(pg_wal_lsn_diff(now.lsn, s.restart_lsn), 0), 0)::bigint,
       coalesce(greatest(pg_wal_lsn_diff(now.lsn, s.confirmed_flush_lsn), 0), 0)::bigint,
       (SELECT CASE WHEN setting::bigint < 0 THEN -1 ELSE setting::bigint * 1048576 END FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       coalesce(s.safe_wal_size, -1)
  FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid,
       (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS lsn) now
 WHERE s.slot_name = $1 AND s.slot_type = 'logical'`

const longestSQL = `
SELECT s.slot_name, s.active, pg_wal_lsn_diff(now.lsn, s.restart_lsn)::bigint
  FROM pg_replication_slots s,
       (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS lsn) now
 WHERE s.restart_lsn IS NOT NULL
 ORDER BY s.restart_lsn, s.slot_name <> $1 LIMIT 1`

// lookTimeout bounds each of the two questions.
const lookTimeout = 5 * time.Second

// observer asks the daemon and the server, again and again.
type observer struct {
	slot   string
	url    string // of /status; "": there is none to ask
	client *http.Client
	source *replication.Source
	conn   *pgx.Conn // nil: to be opened
}

func (o *observer) close() {
	if o.conn != nil {
		closeConn(o.conn)
		o.conn = nil
	}
}

// look asks both; what could not be asked is said in the look.
func (o *observer) look(ctx context.Context, now time.Time) *look {
	l := &look{At: now, URL: redactURL(o.url)}
	var err error
	if o.url != "" {
		if l.Daemon, err = o.askDaemon(ctx); err != nil {
			l.DaemonError = err.Error()
		}
	}
	if l.Slot, err = o.askServer(ctx); err != nil {
		l.SlotError, _, _ = strings.Cut(err.Error(), "; remedy: ")
		o.close()
	}
	return l
}

// daemonStatus is the part of /status that status uses.
type daemonStatus struct {
	relay.Status
	Delivered float64 `json:"events_delivered"` // by this process
}

func (o *observer) askDaemon(ctx context.Context) (*daemonStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return nil, err
	}
	res, err := o.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which is said anyway
		}
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var st daemonStatus
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", res.Status)
	}
	if err := json.Unmarshal(body, &st); err != nil || st.State == "" {
		return nil, errors.New("what answers there is no outboxcdc")
	}
	return &st, nil
}

func (o *observer) askServer(ctx context.Context) (*heldWAL, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if o.conn == nil {
		var err error
		if o.conn, err = o.source.Connect(ctx, "outboxcdc-status-"+o.slot, true); err != nil {
			o.conn = nil
			return nil, err
		}
	}
	h := &heldWAL{Slot: o.slot}
	err := o.conn.QueryRow(ctx, heldSQL, o.slot).Scan(&h.Active, &h.PID, &h.Application, &h.Address, &h.WALStatus, &h.Invalid,
		&h.Retained, &h.Unconfirmed, &h.Budget, &h.Left)
	if errors.Is(err, pgx.ErrNoRows) {
		return &heldWAL{Slot: o.slot, Missing: true, Budget: -1, Left: -1}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at slot %s: %w", o.slot, err)
	}
	if err := o.findHolders(ctx, h); err != nil {
		return nil, fmt.Errorf("look for what holds the WAL: %w", err)
	}
	return h, nil
}

// findHolders finds what else the server keeps WAL for.
func (o *observer) findHolders(ctx context.Context, h *heldWAL) error {
	longest := &otherSlot{}
	err := o.conn.QueryRow(ctx, longestSQL, o.slot).Scan(&longest.Slot, &longest.Active, &longest.Retained)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // our slot has been invalidated, and there is no other
	case err != nil:
		return err
	case longest.Slot != o.slot:
		h.Longest = longest
	}
	if h.Retained-h.Unconfirmed > onTheWay {
		h.Oldest, err = doctor.OldestTransaction(ctx, o.conn)
		return err
	}
	return nil
}

// statusURL is where the daemon of this configuration says how it is: given, or its listener on this machine.
func statusURL(given string, cfg config.HTTP) (string, error) {
	if given == "" && cfg.Listen == "" {
		return "", nil
	}
	if given == "" {
		host, port, err := net.SplitHostPort(cfg.Listen)
		if err != nil {
			return "", fmt.Errorf("http.listen: %w", err)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "localhost"
		}
		given = "http://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", usageError(fmt.Errorf("--url %s: write where the daemon listens, such as http://localhost:9464", redactURL(given)))
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/status"
	}
	return u.String(), nil
}

// redactURL is a URL without the password that may be in it.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
