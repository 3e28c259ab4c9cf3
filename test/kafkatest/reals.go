package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/outboxcdc/outboxcdc/test/child"
)

// Reals is a cluster of several processes, each broker and controller, that tolerates the loss of less than half of
// them. All replicate, and all but one must be in sync.
type Reals struct {
	Nodes []*Real
}

// member is what a process knows of its cluster.
type member struct {
	id         int    // 1 and up
	controller string // address
	voters     string // id@address of all
	cluster    string // id
}

func singleMember() (member, error) {
	all, err := members(1)
	if err != nil {
		return member{}, err
	}
	return all[0], nil
}

func members(n int) ([]member, error) {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	raw[0] &= 0x7f           // base64 must not begin with '-', an option
	cluster := base64.RawURLEncoding.EncodeToString(raw[:])
	all := make([]member, n)
	voters := make([]string, n)
	for i := range all {
		port, err := child.FreePort()
		if err != nil {
			return nil, err
		}
		all[i] = member{id: i + 1, controller: "127.0.0.1:" + strconv.Itoa(port), cluster: cluster}
		voters[i] = strconv.Itoa(i+1) + "@" + all[i].controller
	}
	for i := range all {
		all[i].voters = strings.Join(voters, ",")
	}
	return all, nil
}

// StartReals starts a cluster of n and returns when each of its brokers answers.
func StartReals(ctx context.Context, n int, o RealOptions) (*Reals, error) {
	all, err := members(n)
	if err != nil {
		return nil, err
	}
	copies := strconv.Itoa(n)
	most := strconv.Itoa(max(1, n-1))
	settings := map[string]string{
		"default.replication.factor":                       copies,
		"min.insync.replicas":                              most,
		"offsets.topic.replication.factor":                 copies,
		"transaction.state.log.replication.factor":         copies,
		"transaction.state.log.min.isr":                    most,
		"share.coordinator.state.topic.replication.factor": copies,
	}
	maps.Copy(settings, o.Settings)
	c := &Reals{Nodes: make([]*Real, n)}
	failures := make([]error, n)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { // none is ready before a majority is
			o := o
			o.Settings, o.member = settings, all[i]
			c.Nodes[i], failures[i] = StartReal(ctx, o)
		})
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Brokers returns the addresses of all brokers.
func (c *Reals) Brokers() []string {
	var out []string
	for _, n := range c.Nodes {
		out = append(out, n.Brokers()...)
	}
	return out
}

// Close closes all of them.
func (c *Reals) Close() error {
	var all []error
	for _, n := range c.Nodes {
		if n != nil {
			all = append(all, n.Close())
		}
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("close the cluster: %w", err)
	}
	return nil
}
