package integration

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Tests with a change log rely on this: each kind of broken promise, planted into a run without faults, is detected,
// and nothing is reported that a change allows.
func TestPlantedFaultsAreSeenInPlaces(t *testing.T) {
	key := keyWhere(0, 2, 2, 3)
	clean := func() *history {
		h := &history{Altered: &changeLog{
			Growth: map[string][2]int{"t": {2, 3}, "u": {1, 1}, "any": {1, 1}}, Sessions: map[int64]int{70: 0, 71: 1, 72: 2},
			Dead: "dead", Changes: []change{{What: rerouted, Sessions: 1, Acked: positionText(0), Topics: []string{"u"}}},
		}}
		for n, x := range []struct {
			producer  int64
			topic     string
			partition int32
			own       string
		}{{70, "t", 0, "t"}, {70, "t", 0, "t"}, {70, "u", 0, "u"}, {71, "any", 0, "t"}, {71, "any", 0, "u"}, {72, "t", 2, "t"}} {
			id, value := fmt.Sprint("id-", n), digest(fmt.Append(nil, n))
			h.Truth = append(h.Truth, row{Row: check.Row{ID: id, Topic: x.own, Key: []byte(key), Value: value}, EventType: "added", N: int64(n + 1)})
			rec := kafkatest.Record{Topic: x.topic, Partition: x.partition, Offset: int64(10 * n), Producer: x.producer, Key: []byte(key), Value: value}
			rec.Headers = []kafkatest.Header{{Key: "id", Value: []byte(id)}, {Key: "type", Value: []byte("added")}, {Key: "outboxcdc-position", Value: []byte(positionText(n))}}
			h.Records = append(h.Records, rec)
			h.Acks = append(h.Acks, id)
			end := pglogrepl.LSN(0x1001 + n)
			h.Commits = append(h.Commits, commit{[]string{id}, end})
			h.Looks = append(h.Looks, look{end, map[string]int64{placeOf(rec).partition: int64(10*n + 1)}})
		}
		return h
	}
	// again adds a copy of a record, sent by another session to another topic.
	again := func(h *history, i int, producer int64, topic string, offset int64) *history {
		rec := h.Records[i]
		rec.Producer, rec.Topic, rec.Partition, rec.Offset, rec.Headers = producer, topic, 0, offset, slices.Clone(rec.Headers)
		h.Records = slices.Insert(h.Records, 0, rec)
		slices.SortFunc(h.Records, func(a, b kafkatest.Record) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
		})
		return h
	}
	of := func(h *history, topic string, offset int64) *kafkatest.Record {
		return &h.Records[slices.IndexFunc(h.Records, func(r kafkatest.Record) bool { return r.Topic == topic && r.Offset == offset })]
	}
	for _, c := range []struct {
		want  string
		plant func(*history)
	}{
		{"ok: 6 rows, 6 records, 0 repeats, 0 late", func(*history) {}},
		{"ok: 6 rows, 7 records, 1 repeats, 0 late", func(h *history) { again(h, 1, 71, "any", 1) }},
		{"ok: 6 rows, 7 records, 1 repeats, 1 late", func(h *history) {
			h.Records[3].Producer = 70
			again(h, 1, 71, "any", 35)
		}},
		{"ok: 6 rows, 6 records, 0 repeats, 1 late", func(h *history) {
			h.Looks, h.Altered.Dropped = nil, map[string]bool{"id-1": true}
			h.Records[5].Producer, h.Records[5].Partition, h.Records[5].Offset = 70, 0, 20
			h.Records[1].Producer, h.Records[1].Partition = 72, 2
		}},
		{`out of order: id "id-1"`, func(h *history) {
			h.Looks = nil
			h.Records[5].Producer, h.Records[5].Partition, h.Records[5].Offset = 70, 0, 20
			h.Records[1].Producer, h.Records[1].Partition = 72, 2
		}},
		{"id-0 at {7 0  0 1 4096 0} was sent to {t/0 0} and again to {any/0 1}, and no change", func(h *history) { again(h, 0, 71, "any", 1) }}, // acked
		{"id-2 at {7 0  0 1 4098 0} was sent to {u/0 20} and again to {any/0 1}, and no change", func(h *history) { again(h, 2, 71, "any", 1) }},
		{"id-1 at {7 0  0 1 4097 0} was sent to {any/0 1} and again to {t/0 10}, and no change", func(h *history) { again(h, 1, 70, "any", 1) }},
		{"id-3 at {7 0  0 1 4099 0} was sent to {any/0 30} and again to {any/0 60}, and no change", func(h *history) { again(h, 3, 72, "any", 60) }},
		{"id-1 at {7 0  0 1 4097 0} was sent to {t/0 10} and again to {any/0 1}, and no change", func(h *history) {
			h.Altered.Changes[0].What = "limit"
			again(h, 1, 71, "any", 1)
		}},
		{"ok: 6 rows, 7 records, 1 repeats, 0 late", func(h *history) {
			h.Altered.Changes[0].What, h.Altered.Dead = "limit", "any"
			again(h, 1, 71, "any", 1)
		}},
		{"1 missing", func(h *history) { h.Records, h.Looks = h.Records[:5], nil }},
		{"1 phantom", func(h *history) { h.Truth, h.Acks = h.Truth[:5], h.Acks[:5] }},
		{"2 out of order", func(h *history) { h.Truth[0].N = 9 }},
		{"1 out of order", func(h *history) {
			h.Altered.Changes[0].Acked = positionText(9)
			h.Records[0].Producer, h.Looks = 71, nil
		}},
		{"1 wrong content", func(h *history) { h.Records[0].Value = []byte{} }},
		{"1 misplaced", func(h *history) {
			h.Records[5].Partition, h.Records[0].Partition, h.Looks = 0, 2, nil
			h.Records[1].Partition = 2
		}},
		{"1 misplaced", func(h *history) { h.Altered.Growth["t"] = [2]int{2, 2} }},
		{"id-2 is in topic t, for u", func(h *history) { h.Records[2].Topic, h.Records[2].Offset, h.Looks = "t", 15, nil }},
		{"has lost id id-9", func(h *history) { h.Acks = append(h.Acks, "id-9") }},
		{"has the position of id", func(h *history) { h.Records[3].Headers[2].Value = []byte(positionText(2)) }},
		{"has the positions", func(h *history) { of(again(h, 1, 71, "any", 1), "any", 1).Headers[2].Value = []byte(positionText(-1)) }},
		{"which no position record names", func(h *history) { h.Records[5].Producer = 99 }},
		{"was not in Kafka then", func(h *history) { h.Looks[2].Ends = nil }},
	} {
		h := clean()
		c.plant(h)
		v := h.judge()
		text := fmt.Sprintf("%s, %d late", v.String(), v.late)
		if err := v.err(); err != nil {
			text = err.Error()
		}
		says(t, text, c.want)
	}
}

func positionText(n int) string { return fmt.Sprintf("1:7:1:%016X:0", 0x1000+n) }

// keyWhere returns a key that is in partition first of a topic with so many partitions, and in partition second of one
// with more.
func keyWhere(first, of, second, more int) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("key", i)
		if javaPartition(key, of)(0) == first && javaPartition(key, more)(0) == second {
			return key
		}
	}
}
