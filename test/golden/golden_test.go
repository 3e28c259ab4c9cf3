package golden

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// Every set has a recording and vice versa; names, which are those of databases and files, are unique; and no two cases
// share an id.
func TestSets(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, f := range files {
		left[strings.TrimSuffix(f.Name(), ".json")] = true
	}
	for _, s := range Sets() {
		if !left[s.Name] {
			t.Errorf("%s: no recording, or the name twice", s.Name)
			continue
		}
		delete(left, s.Name)
		r, err := Load(s.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		if len(r.Results) != len(s.Cases) || r.Debezium == "" || r.Kafka == "" || r.Postgres == "" || r.Recorded == "" {
			t.Errorf("%s: incomplete recording: %d results of %d cases", s.Name, len(r.Results), len(s.Cases))
		}
		ids := map[string]bool{}
		for _, c := range s.Cases {
			for _, id := range c.IDs {
				if ids[id] {
					t.Errorf("%s: id %s occurs twice", s.Name, id)
				}
				ids[id] = true
			}
		}
	}
	for name := range left {
		t.Errorf("testdata/%s.json belongs to no set", name)
	}
}

// Different bytes have different texts.
func TestText(t *testing.T) {
	for _, c := range []struct {
		bytes []byte
		want  string
	}{
		{[]byte{}, ""},
		{[]byte("a\x00ü"), "a\x00ü"},
		{[]byte{0xff}, "hex:ff"},
		{[]byte("hex:ff"), "hex:6865783a6666"},
		{[]byte("sha256:"), "hex:7368613235363a"},
		{make([]byte, 4097), "sha256:b587fa297299ce9c602e58292b51379402bf7b1074f6b18679c2fb871c917ca8 of 4097 bytes"},
	} {
		got := Text(c.bytes)
		if got == nil || *got != c.want {
			t.Errorf("%.20q: got %q", c.bytes, c.want)
		}
	}
	if Text(nil) != nil {
		t.Error("null is a text")
	}
}

func TestSort(t *testing.T) {
	began := time.Now()
	s := Set{Cases: []Case{{Name: "a", IDs: []string{"1", "2"}}, {Name: "b", IDs: []string{""}}}}
	id := func(v []byte) []kafkatest.Header { return []kafkatest.Header{{Key: "id", Value: v}} }
	records := []kafkatest.Record{
		{Key: []byte("k"), Partition: 2, Headers: id([]byte("2")), Timestamp: began.Add(time.Second)},
		{Headers: id(nil), Partition: 2, Timestamp: time.UnixMilli(1001)},
		{Headers: id([]byte("1")), Timestamp: began},
	}
	results, err := s.Sort(records, began)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := results[0].Records, results[1].Records; len(a) != 2 || len(b) != 1 || a[0].Time != Now || a[0].Partition != 2 ||
		b[0].Partition != AnyPartition || b[0].Time != "1970-01-01T00:00:01.001Z" || *a[1].Headers[0].Value != "1" {
		t.Errorf("%+v", results)
	}
	if _, err := s.Sort([]kafkatest.Record{{Headers: id([]byte("3"))}}, began); err == nil {
		t.Error("a record of no case is accepted")
	}
}
