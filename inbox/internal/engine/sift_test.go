package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/inbox"
)

// fake is a record: its offset, and its headers as "key=value".
type fake struct {
	offset  int64
	headers string
}

func readFake(f fake) Record {
	return Record{Offset: f.offset, Epoch: 3, Header: func(key string) (string, bool) {
		for _, h := range strings.Fields(f.headers) {
			if k, v, _ := strings.Cut(h, "="); k == key {
				return v, true
			}
		}
		return "", false
	}}
}

func at(lsn int) string { return fmt.Sprintf("id=e%d outboxcdc-position=1:7:1:%016x:0", lsn, lsn) }

// Each case is a batch at a mark with position 10 and offset 5, in a topic of 3 partitions. want has the ids that are
// handled.
func TestSift(t *testing.T) {
	const recovered, replayed, retried = "id=a outboxcdc-recovered=1 outboxcdc-position=1:7:1:0000000000000001:0", "id=b outboxcdc-replayed=1", "id=c outboxcdc-retried=1"
	for name, c := range map[string]struct {
		records    []fake
		partitions int32
		byID, skip bool
		want       string // "!" after an id: handled by id
		position   uint64 // of the mark after the batch
		next       int64
		err        string
	}{
		"new records":                {[]fake{{5, at(11)}, {6, at(12)}}, 3, false, false, "e11 e12", 12, 7, ""},
		"handled offsets":            {[]fake{{3, at(11)}, {4, "id=x"}, {5, at(11)}}, 3, false, false, "e11", 11, 6, ""},
		"a duplicate":                {[]fake{{5, at(9)}, {6, at(10)}, {7, at(11)}, {8, at(11)}}, 3, false, false, "e11", 11, 9, ""},
		"a gap in the offsets":       {[]fake{{50, at(11)}}, 3, false, false, "e11", 11, 51, ""},
		"commands":                   {[]fake{{5, recovered}, {6, replayed}, {7, retried}, {8, at(11)}}, 3, false, false, "a! b! c! e11", 11, 9, ""},
		"commands alone":             {[]fake{{5, recovered}, {6, replayed}}, 3, false, false, "a! b!", 10, 7, ""},
		"replayed records skipped":   {[]fake{{5, recovered}, {6, replayed}}, 3, false, true, "a!", 10, 7, ""},
		"everything by id":           {[]fake{{4, "id=w"}, {5, "id=x"}, {6, at(9)}, {7, at(11)}}, 3, true, false, "x! e9! e11!", 10, 8, ""},
		"no position":                {[]fake{{5, at(11)}, {6, "id=x"}, {7, at(12)}}, 3, false, false, "e11", 11, 6, "ByID"},
		"no id":                      {[]fake{{5, "outboxcdc-retried=1"}}, 3, false, false, "", 10, 5, "no header id"},
		"another system":             {[]fake{{5, "outboxcdc-position=1:8:1:0000000000000001:0"}}, 3, false, false, "", 10, 5, "system 8"},
		"another version":            {[]fake{{5, "outboxcdc-position=3:8"}}, 3, false, false, "", 10, 5, "version 3"},
		"added partitions, new":      {[]fake{{5, at(11)}}, 4, false, false, "e11", 11, 6, ""},
		"added partitions, repeated": {[]fake{{5, at(11)}, {6, at(9)}}, 4, false, false, "e11", 11, 6, "4 partitions now and had 3"},
		"added partitions, offsets":  {[]fake{{4, at(9)}, {5, at(11)}}, 4, false, false, "e11", 11, 6, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Partition[fake]{Engine: &Engine[fake]{Store: &inbox.Store{}, ByID: c.byID, SkipReplayed: c.skip, Read: readFake}}
			mark := inbox.Mark{Position: inbox.Position{System: 7, Timeline: 1, CommitLSN: 10}, Next: 5, Epoch: 2, Partitions: 3}
			tasks, after, n, err := p.sift(c.records, mark, Topic{ID: "t", Partitions: c.partitions})
			var got []string
			for _, task := range tasks {
				id := task.id
				if task.byID {
					id += "!"
				}
				got = append(got, id)
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("handled: %s; want %s", text, c.want)
			}
			if after.Position.CommitLSN != c.position || after.Next != c.next || after.Partitions != 3 || after.TopicID != "t" {
				t.Errorf("the mark is %+v; want position %d and offset %d", after, c.position, c.next)
			}
			switch {
			case c.err == "" && (err != nil || n != len(c.records)):
				t.Errorf("%d records, %v", n, err)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || n == len(c.records)):
				t.Errorf("%d records, %v; want an error with %q", n, err, c.err)
			}
		})
	}
}
