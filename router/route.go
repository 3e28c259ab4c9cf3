package router

import (
	"github.com/outboxcdc/outboxcdc/decoder"
)

// maxReplaced bounds the aggregate types whose replacement is remembered.
const maxReplaced = 4096

// routeTopic finds the topic: in the map, by the template, or by the policy for what neither knows.
func (r *Router) routeTopic(p *plan, ev *decoder.Event, rec *Record) *Poison {
	var typ decoder.Value // aggregate type
	if p.typ >= 0 {
		typ = ev.Values[p.typ]
	}
	if len(r.config.Topics) > 0 && !typ.Null {
		if topic, ok := r.config.Topics[string(typ.Data)]; ok {
			rec.Topic = topic
			return nil
		}
	}
	switch {
	case r.replace != nil && typ.Null, r.topic == nil && typ.Null:
		return &Poison{Cause: NoRoute, Message: "the column " + quoted(p.relation, p.typ) + ", by which events are routed, is NULL"}
	case r.topic == nil && r.replace == nil:
		return r.unmatched(p, typ.Data, "is in no entry of topics", rec)
	case r.replace == nil:
		return r.fill(p, ev, nil, rec)
	}
	value, ok := r.replaceType(typ.Data)
	switch {
	case !ok:
		return r.unmatched(p, typ.Data, "is not matched by replace.regex", rec)
	case r.topic == nil:
		return r.unmatched(p, typ.Data, "is in no entry of topics", rec)
	}
	return r.fill(p, ev, &value, rec)
}

// unmatched applies the policy for an aggregate type that no rule knows.
func (r *Router) unmatched(p *plan, typ []byte, why string, rec *Record) *Poison {
	switch r.config.Unmatched {
	case "", UnmatchedPoison:
		return &Poison{Cause: NoRoute, Message: "the column " + quoted(p.relation, p.typ) + " holds " + printable(typ) + ", which " + why}
	case UnmatchedKeep:
		return r.legal(typ, rec)
	}
	rec.Topic = r.config.Unmatched
	return nil
}

// fill fills the template in; value, if given, stands for the aggregate type.
func (r *Router) fill(p *plan, ev *decoder.Event, value *string, rec *Record) *Poison {
	start := len(r.scratch)
	defer func() { r.scratch = r.scratch[:start] }()
	for i := range p.topic {
		t := &p.topic[i]
		switch {
		case t.column < 0:
			r.scratch = append(r.scratch, t.literal...)
			continue
		case value != nil && t.column == p.typ:
			r.scratch = append(r.scratch, *value...)
			continue
		}
		v := ev.Values[t.column]
		if v.Null {
			return &Poison{Cause: NoRoute, Message: "the column " + quoted(p.relation, t.column) + ", which the topic is made of, is NULL"}
		}
		// Any role that may insert chooses the value: no more of it is copied than shows that it is too long.
		r.scratch = append(r.scratch, v.Data[:min(len(v.Data), maxTopic+1)]...)
	}
	return r.legal(r.scratch[start:], rec)
}

// legal makes name the topic if Kafka allows it and events may go there. The same few names come again and again, so they are remembered.
func (r *Router) legal(name []byte, rec *Record) *Poison {
	topic, ok := r.topics[string(name)]
	if !ok {
		if why := checkTopic(name); why != "" {
			return &Poison{Cause: IllegalTopic, Message: why}
		}
		if why := r.config.noTarget(string(name)); why != "" {
			return &Poison{Cause: IllegalTopic, Message: why}
		}
		if len(r.topics) >= maxTopics {
			clear(r.topics)
		}
		topic = string(name)
		r.topics[topic] = topic
	}
	rec.Topic = topic
	return nil
}

// replaceType applies the regular expression to an aggregate type, once for each that comes.
func (r *Router) replaceType(typ []byte) (string, bool) {
	known, ok := r.replaced[string(typ)]
	if ok {
		return known.value, known.matched
	}
	if m := r.replace.FindSubmatchIndex(typ); m != nil {
		known = routed{string(r.replace.Expand(nil, []byte(r.config.Replace.With), typ, m)), true}
	}
	if len(typ) <= maxTopic {
		if len(r.replaced) >= maxReplaced {
			clear(r.replaced)
		}
		r.replaced[string(typ)] = known
	}
	return known.value, known.matched
}
