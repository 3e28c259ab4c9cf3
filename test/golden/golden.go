// Package golden has the records that a real Debezium produced for a table of cases: configurations, rows, and Kafka
// records byte for byte. `make golden` (the command in record/) records them again; the comparison with outboxcdc is in
// test/integration and needs no Java.
package golden

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

//go:embed testdata/*.json
var recordings embed.FS

// Recording is what Debezium produced for a set, and with which versions.
type Recording struct {
	Debezium string `json:"debezium"`
	Connect  string `json:"connect"`
	Kafka    string `json:"kafka"`
	Postgres string `json:"postgres"`
	Recorded string `json:"recorded"` // the day

	Set     Set      `json:"set"`
	Results []Result `json:"results"` // one for each case
	// Stops are the messages with which the task failed, the outermost first; Hangs is true if it reported nothing.
	Stops []string `json:"stops,omitempty"`
	Hangs bool     `json:"hangs,omitempty"`
}

// Set is one configuration and its rows. The name is the database's, and the default aggregate type of rows.
type Set struct {
	Name string `json:"name"`
	// Setup creates the table and its dependencies.
	Setup []string `json:"setup"`
	// Connector is the connector's configuration except for properties that depend on the servers.
	Connector map[string]string `json:"connector"`
	// Topics that exist, with their numbers of partitions.
	Topics map[string]int `json:"topics"`
	Cases  []Case         `json:"cases"`
	// Broken means that nothing can be delivered. Debezium has to stop or to hang.
	Broken bool `json:"broken,omitempty"`
}

// Case is one transaction.
type Case struct {
	Name string   `json:"name"`
	SQL  []string `json:"sql"`
	// IDs are the headers id of the case's records; "" is a header without a value.
	IDs []string `json:"ids"`
}

// Result has the records of a case, by topic, partition and offset.
type Result struct {
	Case    string   `json:"case"`
	Records []Record `json:"records"`
}

// Record is one record as a consumer sees it. Keys and values are in the format of [Text].
type Record struct {
	Topic string `json:"topic"`
	// Partition is AnyPartition for a record without key: Java's partitioner chooses any.
	Partition int32    `json:"partition"`
	Key       *string  `json:"key"`
	Value     *string  `json:"value"`
	Headers   []Header `json:"headers"`
	// Time is RFC 3339, or Now: about when it was sent.
	Time string `json:"time"`
}

// Header is one record header.
type Header struct {
	Name  string  `json:"name"`
	Value *string `json:"value"`
}

// Placeholders for values that differ at each recording.
const (
	AnyPartition = -1
	Now          = "now"
	runHeader    = "__debezium.context.runId"
)

// Text formats bytes so that people can read them and different bytes differ: nil for null, the text if they are text,
// else "hex:…", and for long ones "sha256:… of n bytes".
func Text(b []byte) *string {
	const many = 4096
	if b == nil {
		return nil
	}
	text := string(b)
	switch {
	case len(b) > many:
		text = fmt.Sprintf("sha256:%x of %d bytes", sha256.Sum256(b), len(b))
	case !utf8.Valid(b) || strings.HasPrefix(text, "hex:") || strings.HasPrefix(text, "sha256:"):
		text = "hex:" + hex.EncodeToString(b)
	}
	return &text
}

// From returns a record in recorded form; began is when the recording began.
func From(r kafkatest.Record, began time.Time) Record {
	out := Record{Topic: r.Topic, Partition: r.Partition, Key: Text(r.Key), Value: Text(r.Value), Headers: []Header{}, Time: Now}
	if r.Key == nil {
		out.Partition = AnyPartition
	}
	for _, h := range r.Headers {
		if h.Key == runHeader {
			h.Value = []byte("different at each start")
		}
		out.Headers = append(out.Headers, Header{h.Key, Text(h.Value)})
	}
	if r.Timestamp.Before(began) || r.Timestamp.After(time.Now().Add(time.Minute)) {
		out.Time = r.Timestamp.UTC().Format(time.RFC3339Nano)
	}
	return out
}

// Sort assigns records, in the order in which they were read, to their cases. A record of no case is an error.
func (s *Set) Sort(records []kafkatest.Record, began time.Time) ([]Result, error) {
	owner := map[string]int{}
	results := make([]Result, len(s.Cases))
	for i, c := range s.Cases {
		results[i] = Result{Case: c.Name, Records: []Record{}}
		for _, id := range c.IDs {
			owner[id] = i
		}
	}
	for _, r := range records {
		id := ""
		for _, h := range r.Headers {
			if h.Key == "id" {
				id = string(h.Value)
			}
		}
		i, ok := owner[id]
		if !ok {
			return nil, fmt.Errorf("a record of no case: %+v", From(r, began))
		}
		results[i].Records = append(results[i].Records, From(r, began))
	}
	return results, nil
}

// Load reads the recording of a set.
func Load(name string) (*Recording, error) {
	b, err := recordings.ReadFile("testdata/" + name + ".json")
	if err != nil {
		return nil, fmt.Errorf("there is no recording (run make golden): %w", err)
	}
	r := &Recording{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("read the recording of %s: %w", name, err)
	}
	return r, nil
}

// Write writes the recording into a folder.
func (r *Recording) Write(dir string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, r.Set.Name+".json"), b.Bytes(), 0o644)
}
