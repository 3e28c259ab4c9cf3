package main

import (
	"errors"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// routerConfig says to the router what the settings say.
func routerConfig(cfg *config.Config) router.Config {
	cols, r := &cfg.Outbox.Columns, &cfg.Route
	return router.Config{
		Topic: r.Topic, Topics: r.Topics, Replace: router.Replace{Regex: r.Replace.Regex, With: r.Replace.With}, Unmatched: r.Unmatched,
		Columns: router.Columns{
			ID: cols.ID, AggregateType: cols.AggregateType, AggregateID: cols.AggregateID,
			EventType: cols.EventType, Payload: cols.Payload, Headers: cols.Headers,
		},
		Key: r.Key, ID: r.ID, Headers: r.Headers, TraceContext: r.TraceContext, Partition: r.Partition, Timestamp: r.Timestamp,
		Format: router.Format(r.Format), Envelope: r.Envelope, CloudEvents: r.CloudEvents,
		UpdateIsPoison: r.OnUpdate == "poison",
		NullKey:        router.NullKeyPolicy(r.NullKey),
		NullPayload:    router.NullPayloadPolicy(r.NullPayload),
		BlankIsNull:    r.BlankPayload == "null",
		PositionHeader: r.PositionHeader,
	}
}

// newRouter makes the router, or says which settings do not go together.
func newRouter(cfg *config.Config) (*router.Router, error) {
	c := routerConfig(cfg)
	var errs []error
	for _, p := range c.Problems() {
		path := "route." + p.Setting
		if strings.HasPrefix(p.Setting, "columns.") {
			path = "outbox." + p.Setting
		}
		errs = append(errs, cfg.Problem(path, p.Text))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return router.New(c)
}

// poisons says to the relay what the settings say.
func poisons(p *config.Poison) relay.Poisons {
	out := relay.Poisons{
		Policy: relay.PoisonPolicy(p.Policy), Causes: map[router.Cause]relay.PoisonPolicy{}, Decisions: map[string]relay.PoisonPolicy{},
		Topic: p.Topic, Cut: p.Oversize == "cut", Hold: p.OnStop == "hold",
	}
	for cause, policy := range p.Causes {
		out.Causes[router.Cause(cause)] = relay.PoisonPolicy(policy)
	}
	for id, policy := range p.Decisions {
		out.Decisions[id] = relay.PoisonPolicy(policy)
	}
	return out
}
