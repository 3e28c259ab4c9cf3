package standby

import (
	"fmt"
	"time"
)

// primary is a host that was a primary when it was asked.
type primary struct {
	address string
	server  *Server
}

// TwoPrimaries is the error of a cluster of which two servers are primaries at the same time (a split brain). Both
// accept writes, and after a failover both have the slot, so that two instances deliver the events of both.
type TwoPrimaries struct {
	Hosts   [2]string    // host:port
	Started [2]time.Time // when each server was started
	System  string       // the system identifier of both
}

func (e *TwoPrimaries) Error() string {
	at := func(i int) string {
		return fmt.Sprintf("%s (started %s)", e.Hosts[i], e.Started[i].UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("the cluster %s has two primaries: %s and %s; both accept writes, and events of either may be in Kafka; "+
		"remedy: find out which one is right and stop the other, or make it a standby, and then start the daemon; "+
		"if the other does not belong to this cluster any more, remove it from postgres.url and postgres.standbys", e.System, at(0), at(1))
}

// distinctPrimaries returns the primaries among the hosts, each server once under its first name. Names, addresses,
// proxies and poolers do not tell servers apart: the start of the postmaster does. A server whose system identifier
// is not known, or not the given one, is not among them; "": any.
func distinctPrimaries(hosts []primary, system string) (all []primary) {
	for _, h := range hosts {
		s := h.server
		if s == nil || s.InRecovery || s.System == "" || system != "" && s.System != system || indexOf(all, s) >= 0 {
			continue
		}
		all = append(all, h)
	}
	return all
}

// indexOf returns where the server is in the list, or -1.
func indexOf(all []primary, s *Server) int {
	for i := range all {
		if SameServer(all[i].server, s) {
			return i
		}
	}
	return -1
}

// twoPrimaries returns two servers of one cluster that were primaries in two rounds, one after the other, or nil.
//
// A round alone proves nothing: it asks the servers at different moments, and a switchover may lie between them. But
// a server returns to recovery only by a restart. So a server that was a primary in both rounds, with the same start
// of the postmaster, was one from its first answer to its second, and two of them were primaries at the same time: at
// least from the end of the first round to the start of the second. A server that is being shut down refuses the
// connection of the second round.
func twoPrimaries(before, now []primary) *TwoPrimaries {
	var found []primary
	for _, p := range now {
		if indexOf(before, p.server) >= 0 {
			found = append(found, p)
		}
	}
	for i := range found {
		for _, q := range found[i+1:] {
			if p := found[i]; p.server.System == q.server.System {
				return &TwoPrimaries{
					Hosts: [2]string{p.address, q.address}, Started: [2]time.Time{p.server.Started, q.server.Started}, System: p.server.System,
				}
			}
		}
	}
	return nil
}

// suspicious reports whether two of the primaries belong to one cluster.
func suspicious(all []primary) bool { return twoPrimaries(all, all) != nil }

func addresses(all []primary) []string {
	out := make([]string, len(all))
	for i := range all {
		out[i] = all[i].address
	}
	return out
}
