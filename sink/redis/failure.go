package redissink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outboxcdc/outboxcdc/sink/lane"
)

// codeReplicas is the code of events that too few replicas have.
const codeReplicas = "REPLICAS"

// errReplicas means that the events are stored, and are not acknowledged.
var errReplicas = errors.New("too few replicas have the events (receiver.wait_replicas)")

// failure describes why a request is not acknowledged.
func (t *transport) failure(op string, err error) *lane.Failure {
	f := &lane.Failure{Op: op, Err: err, Code: lane.CodeUnavailable}
	switch {
	case errors.Is(err, errReplicas):
		f.Code = codeReplicas
	case errors.Is(err, errAnswer), errors.Is(err, errProtocol):
	case errors.As(err, new(serverError)):
		text, _, _ := strings.Cut(err.Error(), ", with args beginning with") // which may end in a part of the password
		if t.client.password != "" {
			text = strings.ReplaceAll(text, t.client.password, "xxxxx")
		}
		f.Err = errors.New("Redis answers " + text)
		f.Meaning, f.Code, f.Remedy = meaningOf(text)
	default:
		if f.Code = lane.CodeOf(err); f.Code == lane.CodeTimeout {
			f.Err = fmt.Errorf("no answer within %s (receiver.timeout)", t.receiver.cfg.Timeout)
		}
	}
	return f
}

// meaningOf returns the meaning of an error of the server. One that is not known to be anything else is an outage:
// LOADING, BUSY, READONLY, OOM, MISCONF, NOREPLICAS, MASTERDOWN, and the number of clients.
func meaningOf(text string) (m lane.Meaning, code, remedy string) {
	word, _, _ := strings.Cut(text, " ")
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch {
	case word == "NOAUTH", word == "WRONGPASS", word == "NOPERM", word == "DENIED", has("user executing the script can't", "ACL failure in script", "invalid password", "AUTH <password> called without"):
		return lane.Denied, lane.CodeDenied, "give the user in receiver.url its password and the permissions in docs/sinks.md"
	case word == "WRONGTYPE":
		return lane.Missing, lane.CodeMissing, "rename or delete the key with the name of the topic, which is no stream"
	case has("Elements are too large to be stored"):
		return lane.Refused, lane.CodeRefused, ""
	case word == "MOVED", word == "ASK", word == "CLUSTERDOWN", word == "CROSSSLOT":
		return lane.Again, lane.CodeUnavailable, "let receiver.url name a server without Redis Cluster, which is not supported"
	case has("DB index is out of range"):
		return lane.Again, lane.CodeUnavailable, "let receiver.url name a database that the server has"
	}
	return lane.Again, lane.CodeUnavailable, ""
}
