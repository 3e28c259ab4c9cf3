package audit

import (
	"fmt"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// Rows can have one id, one key and one value. Then a record is that of any of them, so the events are counted by
// their positions. If there are fewer than rows, one of the rows is missing, and which one cannot be known.

// content is what tells records with one id apart.
type content struct {
	key    string
	value  uint64
	resent bool // a person has sent the records: such a record is a second one of its event, or the only one
}

// noteEvent counts an event that may be that of several rows: by its record, by its dead letter, or because it waits.
// A failover or an adoption sends an event again with another timeline or epoch.
func (g *group) noteEvent(r *Record) {
	if len(g.rows) < 2 || r.Position.IsZero() {
		return
	}
	of, p := content{string(r.Key), r.Value, r.Resent}, r.Position
	p.Timeline = 0
	if g.events == nil {
		g.events = map[content]map[checkpoint.Position]bool{}
	}
	if g.events[of] == nil {
		g.events[of] = map[checkpoint.Position]bool{}
	}
	if len(g.events[of]) < maxRows { // there are no more rows
		g.events[of][p] = true
	}
}

// judgeTwins leaves rows with one id, key and value unjudged if there are more of them than events.
func (g *group) judgeTwins() {
	rows := map[content][]*candidate{}
	for i := range g.rows {
		if x := &g.rows[i]; x.is == same || x.waits || x.dead {
			of := content{key: string(x.row.Key), value: x.row.Value}
			rows[of] = append(rows[of], x)
		}
	}
	for of, twins := range rows {
		events := len(g.events[of])
		of.resent = true
		events = max(events, len(g.events[of]), 1)
		if len(twins) < 2 || len(twins) <= events && !g.more {
			continue
		}
		for _, x := range twins {
			x.is, x.waits, x.dead = unsure, false, false
			x.why = fmt.Sprintf("%d rows have this id, key and value, and Kafka and the slot have fewer events with them, as far as that can be told", len(twins))
		}
	}
}
