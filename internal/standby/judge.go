package standby

import "fmt"

// State is how the copy of the slot on a host is.
type State string

// The states.
const (
	Ready        State = "ready"         // the slot survives a failover to the host
	IsPrimary    State = "primary"       // the host is the server of the slot
	OtherPrimary State = "other_primary" // the host is a second primary of the same cluster
	OtherCluster State = "other_cluster" // the host belongs to another cluster
	Unreachable  State = "unreachable"   // the host did not answer
	Missing      State = "missing"       // the host has no copy
	Incomplete   State = "incomplete"    // the host has begun to copy the slot
	Invalidated  State = "invalidated"   // the copy was lost
	Blocked      State = "blocked"       // another slot of that name keeps the host from copying the slot
)

// Verdict is the state of the copy on one host.
type Verdict struct {
	State State  `json:"state"`
	Text  string `json:"text"` // what was seen
	// Leftover is whether the host still has the slot from before its demotion, which [Clean] removes.
	Leftover bool `json:"leftover,omitempty"`
	// LagBytes is how much the confirmed position of the copy is behind that of the primary's slot; nil: not known.
	LagBytes *int64 `json:"lag_bytes,omitempty"`
}

// Judge says how the copy of the slot on a host is. host is its answer, err why there is none. primary is the answer of
// the slot's server, nil if that is not known: the host is then judged alone. Of a primary that does not answer, only
// System may be known.
func Judge(primary, host *Server, err error) Verdict {
	if host == nil {
		return Verdict{State: Unreachable, Text: unreachable(err)}
	}
	if primary != nil && primary.System != "" && host.System != "" && primary.System != host.System {
		return Verdict{State: OtherCluster, Text: fmt.Sprintf("it belongs to another cluster: its system identifier is %s, the primary's %s", host.System, primary.System)}
	}
	if !host.InRecovery {
		if primary != nil && !primary.Started.IsZero() && !SameServer(primary, host) {
			return Verdict{State: OtherPrimary, Text: "it is not in recovery, and neither is the server that postgres.url leads to: the cluster has two primaries"}
		}
		return Verdict{State: IsPrimary, Text: "it is the primary"}
	}
	v := judgeCopy(primary, host)
	if v.State == Ready && primary != nil && primary.Slot != nil {
		lag := max(0, int64(primary.Slot.ConfirmedFlush)-int64(host.Slot.ConfirmedFlush))
		v.LagBytes = &lag
	}
	return v
}

// judgeCopy judges the slot of a standby.
func judgeCopy(primary, host *Server) Verdict {
	s := host.Slot
	syncs := host.Major() >= syncMajor
	switch {
	case s == nil:
		return Verdict{State: Missing, Text: "it has no copy of the slot"}
	case s.Kind != "logical":
		return Verdict{State: Blocked, Text: "it has a physical slot of that name"}
	case syncs && !s.Synced && s.Failover:
		return Verdict{State: Blocked, Leftover: true, Text: "its slot is a leftover from the time when it was the primary (failover, not synced), which blocks the copy"}
	case syncs && !s.Synced && primary != nil && primary.Slot != nil && primary.Slot.Failover:
		return Verdict{State: Blocked, Text: "its slot of that name is not a copy (not synced), and blocks the copy"}
	case s.Invalidation != "":
		return Verdict{State: Invalidated, Text: "its copy is invalidated: " + s.Invalidation}
	case s.Lost():
		return Verdict{State: Invalidated, Text: "its copy is lost: WAL that it needs was removed"}
	case s.Temporary:
		if why := skipWords(host.SyncSkip); why != "" {
			return Verdict{State: Incomplete, Text: "its copy is not complete yet: " + why}
		}
		return Verdict{State: Incomplete, Text: "its copy is not complete yet: it has not reached the position of the primary's slot"}
	case s.ConfirmedFlush == 0:
		return Verdict{State: Incomplete, Text: "its copy has no confirmed position yet"}
	case !s.Synced:
		return Verdict{State: Ready, Text: "it has a slot of that name, as Patroni's permanent slots or pg_failover_slots create it"}
	}
	text := "its copy is synchronized"
	if why := skipWords(host.SyncSkip); why != "" {
		text += ", but the last synchronization was skipped: " + why
	}
	return Verdict{State: Ready, Text: text}
}

// The values of slotsync_skip_reason (PostgreSQL 19, "pg_replication_slots") that have a remedy of their own.
const (
	SkipRemoved    = "wal_or_rows_removed"
	SkipNotFlushed = "wal_not_flushed"
	SkipSnapshot   = "no_consistent_snapshot"
)

// skipWords says why the synchronization of a slot was skipped; "" if it was not.
func skipWords(reason string) string {
	switch reason {
	case SkipRemoved:
		return reason + ", the standby has removed WAL or catalog rows that the slot needs, or may remove them"
	case SkipNotFlushed:
		return reason + ", the standby has not flushed the WAL up to the position of the primary's slot"
	case SkipSnapshot:
		return reason + ", the standby cannot build a consistent snapshot from the WAL that the slot retains"
	}
	return reason
}
