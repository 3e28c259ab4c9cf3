package router

import (
	"github.com/outboxcdc/outboxcdc/decoder"
)

// maxReplaced is the maximum number of cached replacements.
const maxReplaced = 4096

// routeTopic finds the topic: in Topics, by the template, or by the policy Unmatched.
func (r *Router) routeTopic(p *plan, ev *decoder.Event, rec *Record) *Poison {
	var typ decoder.Value // aggregate type
	if p.aggregateType >= 0 {
		typ = ev.Values[p.aggregateType]
	}
	if len(r.config.Topics) > 0 && !typ.Null {
		if topic, ok := r.config.Topics[string(typ.Data)]; ok {
			rec.Topic = topic
			return nil
		}
	}
	switch {
	case r.replace != nil && typ.Null, r.topic == nil && typ.Null:
		return &Poison{Cause: NoRoute, Message: "the column " + quoteColumn(p.relation, p.aggregateType) + ", by which events are routed, is NULL"}
	case r.topic == nil && r.replace == nil:
		return r.applyUnmatched(p, typ.Data, "is in no entry of topics", rec)
	case r.replace == nil:
		return r.fillTopic(p, ev, nil, rec)
	}
	value, ok := r.replaceType(typ.Data)
	switch {
	case !ok:
		return r.applyUnmatched(p, typ.Data, "is not matched by replace.regex", rec)
	case r.topic == nil:
		return r.applyUnmatched(p, typ.Data, "is in no entry of topics", rec)
	}
	return r.fillTopic(p, ev, &value, rec)
}

// applyUnmatched applies the policy Unmatched to an aggregate type.
func (r *Router) applyUnmatched(p *plan, typ []byte, why string, rec *Record) *Poison {
	switch r.config.Unmatched {
	case "", UnmatchedPoison:
		return &Poison{Cause: NoRoute, Message: "the column " + quoteColumn(p.relation, p.aggregateType) + " holds " + printable(typ) + ", which " + why}
	case UnmatchedKeep:
		return r.setTopic(typ, rec)
	}
	rec.Topic = r.config.Unmatched
	return nil
}

// fillTopic sets the topic from the template. value, if not nil, replaces the aggregate type.
func (r *Router) fillTopic(p *plan, ev *decoder.Event, value *string, rec *Record) *Poison {
	start := len(r.scratch)
	defer func() { r.scratch = r.scratch[:start] }()
	for i := range p.topic {
		t := &p.topic[i]
		switch {
		case t.column < 0:
			r.scratch = append(r.scratch, t.literal...)
			continue
		case value != nil && t.column == p.aggregateType:
			r.scratch = append(r.scratch, *value...)
			continue
		}
		v := ev.Values[t.column]
		if v.Null {
			return &Poison{Cause: NoRoute, Message: "the column " + quoteColumn(p.relation, t.column) + ", which the topic contains, is NULL"}
		}
		// The value may be large, so only as much is copied as shows that it is too long.
		r.scratch = append(r.scratch, v.Data[:min(len(v.Data), maxTopic+1)]...)
	}
	return r.setTopic(r.scratch[start:], rec)
}

// setTopic sets the record's topic if the name is legal and the topic may take events. Names are cached, because
// there are few.
func (r *Router) setTopic(name []byte, rec *Record) *Poison {
	if r.lastTopic != "" && string(name) == r.lastTopic {
		rec.Topic = r.lastTopic
		return nil
	}
	topic, ok := r.topics[string(name)]
	if !ok {
		if why := checkTopic(name); why != "" {
			return &Poison{Cause: IllegalTopic, Message: why}
		}
		if why := r.config.targetProblem(string(name)); why != "" {
			return &Poison{Cause: IllegalTopic, Message: why}
		}
		if len(r.topics) >= maxTopics {
			clear(r.topics)
		}
		topic = string(name)
		r.topics[topic] = topic
	}
	rec.Topic, r.lastTopic = topic, topic
	return nil
}

// replaceType applies the regular expression to an aggregate type. Results are cached.
func (r *Router) replaceType(typ []byte) (string, bool) {
	known, ok := r.replacements[string(typ)]
	if ok {
		return known.value, known.matched
	}
	if m := r.replace.FindSubmatchIndex(typ); m != nil {
		known = replacement{string(r.replace.Expand(nil, []byte(r.config.Replace.With), typ, m)), true}
	}
	if len(typ) <= maxTopic {
		if len(r.replacements) >= maxReplaced {
			clear(r.replacements)
		}
		r.replacements[string(typ)] = known
	}
	return known.value, known.matched
}
