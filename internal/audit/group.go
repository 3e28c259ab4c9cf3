package audit

import (
	"bytes"
	"slices"
)

// group is everything about one id.
type group struct {
	rows    []Row
	records []Record
	dead    []Record
	waiting []string // topics of events that wait in the slot
	outside bool     // a row outside the range has the id
}

// split makes a group of each row if the rows go to different topics: events of tables that do not share a topic may have the same ids
// (route.id). Otherwise it returns g.
func (g *group) split() []*group {
	if len(g.rows) < 2 {
		return []*group{g}
	}
	byTopic := map[string]*group{}
	all := make([]*group, len(g.rows))
	for i, row := range g.rows {
		if byTopic[row.Topic] != nil {
			return []*group{g}
		}
		all[i] = &group{rows: g.rows[i : i+1]}
		byTopic[row.Topic] = all[i]
	}
	for _, r := range g.records {
		of := byTopic[r.Topic]
		if of == nil { // which row it is of cannot be known
			return []*group{g}
		}
		of.records = append(of.records, r)
	}
	for _, topic := range g.waiting {
		of := byTopic[topic]
		if of == nil {
			return []*group{g}
		}
		of.waiting = append(of.waiting, topic)
	}
	for _, r := range g.dead {
		for _, of := range all {
			if bytes.Equal(r.Key, of.rows[0].Key) {
				of.dead = append(of.dead, r)
			}
		}
	}
	return all
}

// withoutForeign removes records of other servers whose key is not that of the row: ids can be unique on one server only. The key of an
// event is the same after an upgrade that changes the server's system identifier. It reports whether there were such records.
func (g *group) withoutForeign(j *Judge) (found bool) {
	key, n := g.rows[0].Key, len(g.records)
	g.records = slices.DeleteFunc(g.records, func(r Record) bool {
		return !r.Position.IsZero() && !j.Ours(r.Position) && !bytes.Equal(r.Key, key)
	})
	g.dead = slices.DeleteFunc(g.dead, func(r Record) bool {
		return !r.Position.IsZero() && !j.Ours(r.Position) && !bytes.Equal(r.Key, key)
	})
	return len(g.records) < n
}

// withoutOtherTables removes what is in another topic and has another key than the row, if there are several tables: their events may have
// the same ids, and the row with this id of the other table may be deleted or outside the range. It reports whether there were such records.
func (g *group) withoutOtherTables(j *Judge) (found bool) {
	if len(j.Tables) < 2 || len(g.rows) > 1 {
		return false
	}
	row, n := &g.rows[0], len(g.records)
	g.records = slices.DeleteFunc(g.records, func(r Record) bool { return r.Topic != row.Topic && !bytes.Equal(r.Key, row.Key) })
	g.dead = slices.DeleteFunc(g.dead, func(r Record) bool { return !bytes.Equal(r.Key, row.Key) })
	g.waiting = slices.DeleteFunc(g.waiting, func(topic string) bool { return topic != row.Topic })
	return len(g.records) < n
}

// eachPair calls fn with each row and each record that have the same id, except for dead letters.
func (c *Comparison) eachPair(fn func(*Row, *Record)) error {
	for b := range buckets {
		groups, _, err := c.groups(b)
		if err != nil {
			return err
		}
		for _, g := range groups {
			for i := range g.rows {
				for k := range g.records {
					fn(&g.rows[i], &g.records[k])
				}
			}
		}
	}
	return nil
}

// groups reads one part of the comparison: its groups by id, and the ids in the order in which they were added.
func (c *Comparison) groups(b int) (groups map[string]*group, order []string, err error) {
	entries, err := c.byID.read(b, c.limit)
	if err != nil {
		return nil, nil, err
	}
	groups = map[string]*group{}
	for _, e := range entries {
		r := &reader{b: e[1:]}
		id := r.bytes()
		g := groups[string(id)]
		if g == nil {
			g = &group{}
			groups[string(id)] = g
			order = append(order, string(id))
		}
		switch e[0] {
		case entryRow:
			if row := c.decodeRow(r, id); row.Outside {
				g.outside = true
			} else {
				g.rows = append(g.rows, row)
			}
		case entryRecord:
			rec := c.decodeRecord(r, id)
			if rec.Dead != "" {
				g.dead = append(g.dead, rec)
			} else {
				g.records = append(g.records, rec)
			}
		case entryWaiting:
			g.waiting = append(g.waiting, c.topicName(r))
		}
		if r.bad {
			return nil, nil, errDamaged
		}
	}
	return groups, order, nil
}

func (c *Comparison) joinIDs(b int, j *Judge) error {
	groups, order, err := c.groups(b)
	if err != nil {
		return err
	}
	var orphans []*group
	for _, id := range order {
		g := groups[id]
		if len(g.rows) == 0 {
			if len(g.records) == 0 {
				continue
			}
			r := &g.records[0]
			if err := c.noteLater(laterDelivered, r.Topic, r.Key, r.Time); err != nil {
				return err
			}
			if g.outside {
				c.counts.Outside++
			} else {
				orphans = append(orphans, g)
			}
			continue
		}
		for _, one := range g.split() {
			if err := c.judge(one, j); err != nil {
				return err
			}
		}
	}
	return c.judgeOrphans(orphans, j)
}
