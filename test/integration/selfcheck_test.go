package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// All tests rely on this: each kind of broken promise, planted into a delivery without faults, is detected.
func TestPlantedFaultsAreSeen(t *testing.T) {
	const topic = "t"
	var truth []row
	var records []kafkatest.Record
	for i := range 6 {
		id, key := fmt.Sprintf("id-%d", i), fmt.Sprintf("key-%d", i%2)
		value := fmt.Appendf(nil, `{"n": %d}`, i)
		truth = append(truth, row{Row: check.Row{ID: id, Topic: topic, Key: []byte(key), Value: value, Seq: 1 + i/2}, EventType: "added"})
		records = append(records, kafkatest.Record{Topic: topic, Offset: int64(i), Key: []byte(key), Value: value, Headers: []kafkatest.Header{
			{Key: "id", Value: []byte(id)},
			{Key: "type", Value: []byte("added")},
			{Key: "outboxcdc-position", Value: fmt.Appendf(nil, "1:7:1:%016X:%d", 0x1000+i/2, i%2)},
		}})
	}
	// again appends a repeat of a record.
	again := func(rs []kafkatest.Record, i int) []kafkatest.Record {
		r := rs[i]
		r.Headers = slices.Clone(r.Headers)
		r.Offset = int64(len(rs))
		return append(rs, r)
	}
	header := func(rs []kafkatest.Record, i int, name, value string) []kafkatest.Record {
		rs[i].Headers = slices.Clone(rs[i].Headers)
		for j, h := range rs[i].Headers {
			if h.Key == name {
				rs[i].Headers[j].Value = []byte(value)
			}
		}
		return rs
	}
	position := func(i, commit, ordinal int) func([]kafkatest.Record) []kafkatest.Record {
		return func(rs []kafkatest.Record) []kafkatest.Record {
			return header(rs, i, "outboxcdc-position", fmt.Sprintf("1:7:1:%016X:%d", commit, ordinal))
		}
	}
	for _, c := range []struct {
		name, want string
		plant      func([]kafkatest.Record) []kafkatest.Record
	}{
		{"nothing", "", func(rs []kafkatest.Record) []kafkatest.Record { return rs }},
		{"identical repeat", "", func(rs []kafkatest.Record) []kafkatest.Record { return again(rs, 5) }},
		{"missing", "missing: id \"id-5\"", func(rs []kafkatest.Record) []kafkatest.Record { return rs[:5] }},
		{"phantom", "phantom: id \"ghost\"", func(rs []kafkatest.Record) []kafkatest.Record { return header(rs, 5, "id", "ghost") }},
		{"order", "out of order", func(rs []kafkatest.Record) []kafkatest.Record {
			rs[1], rs[3] = rs[3], rs[1]
			rs[1].Offset, rs[3].Offset = 1, 3
			return rs
		}},
		{"value", "wrong value", func(rs []kafkatest.Record) []kafkatest.Record { rs[2].Value = []byte(`{"n":2}`); return rs }},
		{"null for empty", "wrong value", func(rs []kafkatest.Record) []kafkatest.Record { rs[2].Value = nil; return rs }},
		{"other partition", "misplaced", func(rs []kafkatest.Record) []kafkatest.Record { rs[5].Partition = 1; return rs }},
		{"other repeat", "bad repeats", func(rs []kafkatest.Record) []kafkatest.Record {
			return header(again(rs, 5), 6, "outboxcdc-position", "1:7:1:0000000000001009:0")
		}},
		{"type", `header type is "x"`, func(rs []kafkatest.Record) []kafkatest.Record { return header(rs, 0, "type", "x") }},
		{"no position", "0 headers outboxcdc-position", func(rs []kafkatest.Record) []kafkatest.Record { rs[0].Headers = rs[0].Headers[:2]; return rs }},
		{"ill-formed position", "parse position", func(rs []kafkatest.Record) []kafkatest.Record {
			return header(rs, 0, "outboxcdc-position", "1:7:1:1000:0")
		}},
		{"position of another", "has the position of id id-0", position(1, 0x1000, 0)},
		{"position going back", "does not follow", position(4, 0x0FFF, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := judge(truth, c.plant(slices.Clone(records))).err()
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v; want it to contain %q", err, c.want)
			}
		})
	}
}

// The sampler detects a slot that confirms what is not in Kafka: here one that was moved by hand.
func TestSamplerSeesALoss(t *testing.T) {
	o := newOutbox(t, options{})
	r := o.startStreaming(atLeastOnce)
	o.insert("order", "a", 1, 3)
	o.awaitArrived(patience)
	r.term()
	o.insert("order", "a", 4, 3)
	s := o.sample()
	s.testJudges = true
	o.exec("SELECT pg_replication_slot_advance('" + o.name + "', pg_current_wal_flush_lsn())")
	await(t, patience, "the sampler to detect it", func() error {
		if s.violation() == "" {
			return fmt.Errorf("it has detected nothing")
		}
		return nil
	})
	t.Log(s.violation())
	s.stop()
	// And so does the checker: a daemon that delivers at least once cannot know of the lost rows.
	o.startStreaming(atLeastOnce)
	o.insert("order", "a", 7, 1)
	o.awaitRecords(4) // the row after the lost ones
	v := judge(o.truth(), o.readAll())
	if len(v.Missing) != 3 {
		t.Errorf("the checker found %d missing, want 3: %s", len(v.Missing), v.String())
	}
}

// The unexpected end of a daemon is detected at once, and not after a time-out.
func TestEndOfTheDaemonIsSeen(t *testing.T) {
	o := newOutbox(t, options{})
	r := o.startStreaming()
	must(t, o.checkRelays())
	must(t, r.proc.Kill())
	if err := o.checkRelays(); err == nil || !strings.Contains(err.Error(), "exit code 137") {
		t.Errorf("a killed daemon: %v", err)
	}
	r.endExpected = true
}
