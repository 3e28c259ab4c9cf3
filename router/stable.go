package router

import (
	"bytes"
	"time"
)

// Stable removes from a value what the row does not decide, for comparing records with rows: the time of the commit,
// which the formats envelope and cloudevents_structured write. Other values are returned as they are.
func (r *Router) Stable(value []byte) []byte {
	for _, m := range r.mappings {
		for _, member := range m.commitMembers {
			value = withoutTime(value, member)
		}
	}
	return value
}

// commitMembers returns the beginnings of the members of a value that hold the time of the commit: "name":".
func (c *Config) commitMembers() (all [][]byte) {
	if c.Format != FormatEnvelope && c.Format != FormatCloudEventsStructured {
		return nil
	}
	sources, err := c.sources()
	if err != nil {
		return nil // Validate returns the error
	}
	for i := range sources {
		if sources[i].singleName() == commitName {
			all = append(all, append(appendString(nil, []byte(sources[i].name)), ':', '"'))
		}
	}
	return all
}

// withoutTime removes the time of a member. The payload, which may have such a member, comes last.
func withoutTime(value, member []byte) []byte {
	at := bytes.Index(value, member)
	if at < 0 || value[0] != '{' {
		return value
	}
	from := at + len(member)
	n := bytes.IndexByte(value[from:], '"')
	if n < 0 {
		return value
	}
	if _, err := time.Parse(time.RFC3339Nano, string(value[from:from+n])); err != nil {
		return value
	}
	return append(bytes.Clone(value[:from]), value[from+n:]...)
}
