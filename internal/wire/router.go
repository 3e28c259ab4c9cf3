package wire

import (
	"errors"
	"strings"

	"github.com/outboxcdc/outboxcdc/internal/config"
	"github.com/outboxcdc/outboxcdc/relay"
	"github.com/outboxcdc/outboxcdc/router"
)

// RouterConfigs returns a configuration of the router for each table and, if logical messages are a source, one more
// for them.
func RouterConfigs(cfg *config.Config) []router.Config {
	var out []router.Config
	for _, s := range cfg.Sources() {
		out = append(out, RouterConfig(&s.Columns, &s.Route))
	}
	if cfg.Messages.Prefix != "" {
		c := RouterConfig(&config.Columns{}, &cfg.Route)
		c.Messages, c.Columns = true, router.MessageColumns()
		out = append(out, c)
	}
	p := PoisonPolicies(&cfg.Poison)
	letters := p.SendsDeadLetters()
	updates, set := p.Causes[router.Update]
	for i := range out {
		out[i].UpdateIsPoison = set && updates != relay.SkipPoison
		out[i].PositionTopic = cfg.Delivery.PositionTopic
		if letters {
			out[i].DeadLetterTopic = cfg.Poison.Topic
		}
	}
	return out
}

func RouterConfig(cols *config.Columns, r *config.Route) router.Config {
	return router.Config{
		Topic: r.Topic, Topics: r.Topics, Replace: router.Replace{Regex: r.Replace.Regex, With: r.Replace.With}, Unmatched: r.Unmatched,
		Columns: router.Columns{
			ID: cols.ID, AggregateType: cols.AggregateType, AggregateID: cols.AggregateID,
			EventType: cols.EventType, Payload: cols.Payload, Headers: cols.Headers,
		},
		Key: r.Key, ID: r.ID, Headers: r.Headers, TraceContext: r.TraceContext, Partition: r.Partition, Timestamp: r.Timestamp,
		Format: router.Format(r.Format), Fields: r.Fields,
		NullKey:        router.NullKeyPolicy(r.NullKey),
		NullPayload:    router.NullPayloadPolicy(r.NullPayload),
		BlankIsNull:    r.BlankPayload == "null",
		IgnoreMissing:  r.MissingColumns == "ignore",
		PositionHeader: r.PositionHeader,
	}
}

// Router builds the router, or returns errors about settings that contradict each other.
func Router(cfg *config.Config) (*router.Router, error) {
	all := RouterConfigs(cfg)
	var errs []error
	for i, c := range all {
		for _, p := range c.Problems() {
			setting := p.Setting
			if !strings.HasPrefix(setting, "columns.") {
				setting = "route." + setting
			}
			if c.Messages {
				errs = append(errs, cfg.Problem(setting, p.Text+" (of logical messages, messages.prefix)"))
			} else {
				errs = append(errs, cfg.SourceProblem(i, setting, p.Text))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return router.New(all...)
}

// PoisonPolicies converts the settings of poison events.
func PoisonPolicies(p *config.Poison) relay.PoisonPolicies {
	out := relay.PoisonPolicies{
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
