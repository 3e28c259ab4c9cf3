// Package status reports the health of the daemon and its slot, for people and for scripts.
package status

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

	"github.com/outboxcdc/outboxcdc/internal/doctor"
	"github.com/outboxcdc/outboxcdc/internal/exit"
	"github.com/outboxcdc/outboxcdc/internal/standby"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/replication"
)

// Slot is the slot at one moment, with the WAL that it retains and may retain.
type Slot struct {
	Slot        string `json:"slot"`
	Missing     bool   `json:"missing,omitempty"`
	Unfinished  string `json:"unfinished_recovery,omitempty"` // the slot of a recovery that has not finished
	Active      bool   `json:"active"`
	PID         int    `json:"active_pid,omitempty"`
	Application string `json:"application,omitempty"` // of the client that reads the slot, if our role may see it
	Address     string `json:"address,omitempty"`
	WALStatus   string `json:"wal_status,omitempty"`
	Invalid     string `json:"invalidation_reason,omitempty"`
	Retained    int64  `json:"retained_bytes"`
	Unconfirmed int64  `json:"unconfirmed_bytes"` // part of retained_bytes: WAL after the confirmed position
	// Budget is max_slot_wal_keep_size, and Left the WAL that may still be written before the slot can be lost; -1: no
	// limit.
	Budget int64 `json:"budget_bytes"`
	Left   int64 `json:"budget_left_bytes"`
	// Longest is the slot that retains the most WAL, if that is another slot.
	Longest *OtherSlot `json:"longest_slot,omitempty"`
	// Oldest is the oldest open transaction of the server, if the slot retains more than smallWAL of confirmed WAL.
	Oldest *doctor.OpenTransaction `json:"oldest_transaction,omitempty"`
}

// OtherSlot is another slot of the same server.
type OtherSlot struct {
	Slot     string `json:"slot"`
	Active   bool   `json:"active"`
	Retained int64  `json:"retained_bytes"`
}

// Lost reports whether the slot does not exist, or no daemon may read it.
func (h *Slot) Lost() bool {
	return h.Missing || h.Unfinished != "" || h.Invalid != "" || h.WALStatus == "lost"
}

// longestSQL finds the slot for which the server keeps the most WAL.
const longestSQL = `
SELECT coalesce(s.slot_name, ''), coalesce(s.active, false), coalesce(pg_wal_lsn_diff(now.lsn, s.restart_lsn), 0)::bigint
  FROM (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS lsn) now
  LEFT JOIN pg_replication_slots s ON s.restart_lsn IS NOT NULL
 ORDER BY s.restart_lsn, s.slot_name <> $1 LIMIT 1`

// queryTimeout is the timeout of a request to the daemon, and of the queries to the server.
const queryTimeout = 5 * time.Second

// Observer queries the daemon and the server.
type Observer struct {
	SlotName string
	URL      string // of /status; "": the daemon is not queried
	Client   *http.Client
	Source   *replication.Source
	conn     *pgx.Conn // nil: not open
}

// Close ends the connection to the server.
func (o *Observer) Close() {
	if o.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = o.conn.Close(ctx)
		o.conn = nil
	}
}

// Observe queries both. An error of either is in the report.
func (o *Observer) Observe(ctx context.Context, now time.Time) *Report {
	r := &Report{At: now, URL: redactURL(o.URL)}
	var err error
	if o.URL != "" {
		if r.Daemon, err = o.queryDaemon(ctx); err != nil {
			r.DaemonError = err.Error()
		}
	}
	if r.Slot, err = o.queryServer(ctx); err != nil {
		r.SlotError, _, _ = strings.Cut(err.Error(), "; remedy: ")
		o.Close()
	}
	return r
}

// DaemonStatus is the part of /status that status uses.
type DaemonStatus struct {
	relay.Status
	Delivered float64          `json:"events_delivered"` // by this process
	Standbys  []standby.Report `json:"standbys"`
}

func (o *Observer) queryDaemon(ctx context.Context) (*DaemonStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, nil)
	if err != nil {
		return nil, err
	}
	res, err := o.Client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which the report has
		}
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var st DaemonStatus
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the response is %s", res.Status)
	}
	if err := json.Unmarshal(body, &st); err != nil || st.State == "" {
		return nil, errors.New("the response is not that of outboxcdc")
	}
	return &st, nil
}

func (o *Observer) queryServer(ctx context.Context) (*Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if o.conn == nil {
		var err error
		if o.conn, err = o.Source.Connect(ctx, "outboxcdc-status-"+o.SlotName, true); err != nil {
			o.conn = nil
			return nil, err
		}
	}
	s, recovery, err := replication.ReadSlots(ctx, o.conn, o.SlotName)
	if err != nil {
		return nil, err
	}
	unfinished := ""
	if recovery != nil {
		unfinished = recovery.Name
	}
	if s == nil || s.Kind != "logical" {
		return &Slot{Slot: o.SlotName, Missing: true, Unfinished: unfinished, Budget: -1, Left: -1}, nil
	}
	h := &Slot{
		Slot: o.SlotName, Unfinished: unfinished, Active: s.Active, PID: int(s.ActivePID), Application: s.ActiveName, Address: s.ActiveAddress,
		WALStatus: s.WALStatus, Invalid: s.Invalidation, Retained: int64(s.RetainedBytes()), Unconfirmed: int64(s.UnconfirmedBytes()), Left: -1,
	}
	if s.SafeWALBytes != nil {
		h.Left = *s.SafeWALBytes
	}
	if err := o.findHolders(ctx, h); err != nil {
		return nil, fmt.Errorf("find what retains WAL: %w", err)
	}
	return h, nil
}

// findHolders finds the slot that retains the most WAL, and the oldest transaction.
func (o *Observer) findHolders(ctx context.Context, h *Slot) error {
	longest := &OtherSlot{}
	server, err := replication.ReadServer(ctx, o.conn)
	if err != nil {
		return err
	}
	h.Budget = server.KeepSize
	err = o.conn.QueryRow(ctx, longestSQL, o.SlotName).Scan(&longest.Slot, &longest.Active, &longest.Retained)
	if err != nil {
		return err
	}
	if longest.Slot != "" && longest.Slot != o.SlotName { // empty: no slot retains WAL
		h.Longest = longest
	}
	if h.Retained-h.Unconfirmed > smallWAL {
		h.Oldest, err = doctor.OldestTransaction(ctx, o.conn)
	}
	return err
}

// URL is the URL of the daemon's /status: given, or that of the listener on this machine.
func URL(given, listen string) (string, error) {
	if given == "" && listen == "" {
		return "", nil
	}
	if given == "" {
		host, port, err := net.SplitHostPort(listen)
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
		return "", exit.With(exit.Usage, fmt.Errorf("--url %s: write the address of the daemon's HTTP listener, such as http://localhost:9464", redactURL(given)))
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/status"
	}
	return u.String(), nil
}

// redactURL masks the password of a URL.
func redactURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
