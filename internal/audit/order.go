package audit

import (
	"cmp"
	"slices"

	"github.com/outboxcdc/outboxcdc/checkpoint"
)

// line is what has an order: the records of one key in one partition, from one server.
type line struct {
	topic     string
	partition int32
	key       string
	system    uint64
}

// checkOrder looks for records whose first delivery comes after that of a later event of the same key.
func (c *Comparison) checkOrder(b int, j *Judge) error {
	entries, err := c.byKey.read(b, c.limit)
	if err != nil {
		return err
	}
	lines := map[line][]Record{}
	for _, e := range entries {
		r := &reader{b: e[1:]}
		rec := c.decodeRecord(r, r.bytes())
		if r.bad {
			return errDamaged
		}
		l := line{rec.Topic, rec.Partition, string(rec.Key), rec.Position.SystemID}
		lines[l] = append(lines[l], rec)
	}
	for _, records := range lines {
		slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(a.Offset, b.Offset) })
		seen := map[string]bool{}
		newest := &records[0]
		for i := range records {
			r := &records[i]
			if seen[string(r.ID)] {
				continue // a duplicate: consumers know it by its position
			}
			seen[string(r.ID)] = true
			if comparePositions(r.Position, newest.Position) >= 0 {
				newest = r
				continue
			}
			row := &Row{ID: r.ID, Topic: r.Topic, Key: r.Key, Table: -1}
			if err := c.report(j, c.finding(Inversion, row, []Record{*newest, *r}, j,
				"its position %s is before %s, that of an earlier record of the key", r.Position, newest.Position)); err != nil {
				return err
			}
		}
	}
	return nil
}

// comparePositions orders positions as consumers do: a failover goes back in LSNs, so the timeline comes first (docs/delivery.md).
func comparePositions(a, b checkpoint.Position) int {
	return cmp.Or(cmp.Compare(a.Timeline, b.Timeline), cmp.Compare(a.CommitLSN, b.CommitLSN), cmp.Compare(a.Ordinal, b.Ordinal))
}
