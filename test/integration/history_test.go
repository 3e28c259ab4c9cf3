package integration

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/outboxcdc/outboxcdc/test/check"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// history is all evidence of a run. It is kept in a file and can be judged again from there: values are digests.
type history struct {
	Test    string
	Truth   []row              // the table
	Records []kafkatest.Record // the topics, from their beginning
	Acks    []string           // ids whose commit a writer saw succeed
	Never   []string           // ids that were rolled back, or whose transaction failed before its commit
	Unsure  [][]string         // ids of each transaction with unknown outcome
	Commits []commit           // with their positions, as far as known
	Looks   []look             // of the sampler

	Altered *changeLog // nil: an event has one topic, and a key one partition
}

// history collects the evidence. Writers must have stopped.
func (o *outbox) history() *history {
	o.t.Helper()
	for _, w := range o.writers {
		must(o.t, w.settle(patience, false))
	}
	h := &history{Test: o.t.Name(), Truth: o.truth(), Records: o.readAll(), Commits: o.ledger.all()}
	for i := range h.Truth {
		h.Truth[i].Value = digest(h.Truth[i].Value)
	}
	for i := range h.Records {
		h.Records[i].Value = digest(h.Records[i].Value)
	}
	for _, w := range o.writers {
		w.mu.Lock()
		h.Acks = append(h.Acks, w.committed...)
		h.Never = append(h.Never, w.never...)
		h.Unsure = append(h.Unsure, w.unsure...)
		w.mu.Unlock()
	}
	if o.sampler != nil {
		h.Looks, _ = o.sampler.results()
	}
	return h
}

// digest returns nil for null.
func digest(value []byte) []byte {
	if value == nil {
		return nil
	}
	d := sha256.Sum256(value)
	return d[:]
}

// judge compares everything with the promise.
func (h *history) judge() *verdict {
	if h.Altered != nil {
		return h.judgePlaces()
	}
	v := judge(h.Truth, h.Records)
	v.problems = append(v.problems, h.truthProblems()...)
	if what := unsafeConfirm(h.Looks, h.Commits, v.first); what != "" {
		v.problems = append(v.problems, what)
	}
	return v
}

// truthProblems lists where the table, the basis of every judgement, differs from what the writers saw.
func (h *history) truthProblems() (problems []string) {
	there := map[string]bool{}
	for _, r := range h.Truth {
		there[r.ID] = true
	}
	for _, id := range h.Acks {
		if !there[id] {
			problems = append(problems, fmt.Sprintf("the table has lost id %s, whose commit succeeded", id))
		}
	}
	for _, id := range h.Never {
		if there[id] {
			problems = append(problems, fmt.Sprintf("the table has id %s, which never committed", id))
		}
	}
	for _, ids := range h.Unsure {
		n := 0
		for _, id := range ids {
			if there[id] {
				n++
			}
		}
		if n != 0 && n != len(ids) {
			problems = append(problems, fmt.Sprintf("the table has %d of the %d rows of one transaction, e.g. id %s", n, len(ids), ids[0]))
		}
	}
	return problems
}

// historyLine is one line of a history's file: one of its fields is set.
type historyLine struct {
	Test    string            `json:"test,omitempty"`
	Altered *changeLog        `json:"altered,omitempty"` // with Test
	Row     *row              `json:"row,omitempty"`
	Record  *kafkatest.Record `json:"record,omitempty"`
	Ack     string            `json:"ack,omitempty"`
	Never   string            `json:"never,omitempty"`
	Unsure  []string          `json:"unsure,omitempty"`
	Commit  *commit           `json:"commit,omitempty"`
	Look    *look             `json:"look,omitempty"`
}

// keep writes the history and returns its file.
func (h *history) keep(o *outbox) (file string) {
	o.t.Helper()
	o.checks++
	file = filepath.Join(testSuite.dir, "history", fmt.Sprintf("%s-%d.jsonl.gz", o.name, o.checks))
	must(o.t, os.MkdirAll(filepath.Dir(file), 0o755))
	f, err := os.Create(file)
	must(o.t, err)
	must(o.t, errors.Join(h.write(f), f.Close()))
	return file
}

func (h *history) write(w io.Writer) error {
	packed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	out := json.NewEncoder(packed)
	errs := []error{out.Encode(historyLine{Test: h.Test, Altered: h.Altered})}
	for i := range h.Truth {
		errs = append(errs, out.Encode(historyLine{Row: &h.Truth[i]}))
	}
	for i := range h.Records {
		errs = append(errs, out.Encode(historyLine{Record: &h.Records[i]}))
	}
	for _, id := range h.Acks {
		errs = append(errs, out.Encode(historyLine{Ack: id}))
	}
	for _, id := range h.Never {
		errs = append(errs, out.Encode(historyLine{Never: id}))
	}
	for _, ids := range h.Unsure {
		errs = append(errs, out.Encode(historyLine{Unsure: ids}))
	}
	for i := range h.Commits {
		errs = append(errs, out.Encode(historyLine{Commit: &h.Commits[i]}))
	}
	for i := range h.Looks {
		errs = append(errs, out.Encode(historyLine{Look: &h.Looks[i]}))
	}
	return errors.Join(append(errs, packed.Close())...)
}

func readHistory(r io.Reader) (*history, error) {
	unpacked, err := gzip.NewReader(bufio.NewReader(r))
	if err != nil {
		return nil, err
	}
	h := &history{}
	in := json.NewDecoder(unpacked)
	in.DisallowUnknownFields()
	for {
		var line historyLine
		if err := in.Decode(&line); errors.Is(err, io.EOF) {
			return h, nil
		} else if err != nil {
			return nil, err
		}
		switch {
		case line.Row != nil:
			h.Truth = append(h.Truth, *line.Row)
		case line.Record != nil:
			h.Records = append(h.Records, *line.Record)
		case line.Ack != "":
			h.Acks = append(h.Acks, line.Ack)
		case line.Never != "":
			h.Never = append(h.Never, line.Never)
		case line.Unsure != nil:
			h.Unsure = append(h.Unsure, line.Unsure)
		case line.Commit != nil:
			h.Commits = append(h.Commits, *line.Commit)
		case line.Look != nil:
			h.Looks = append(h.Looks, *line.Look)
		default:
			h.Test, h.Altered = line.Test, line.Altered
		}
	}
}

// TestStoredHistory judges the history in the file OUTBOXCDC_TEST_HISTORY again, or all those in that folder. Without
// the variable it judges a history of its own, from which a row was removed after it was written: that must be found.
func TestStoredHistory(t *testing.T) {
	path := os.Getenv("OUTBOXCDC_TEST_HISTORY")
	if path == "" {
		path = plantedHistory(t)
	}
	judged := 0
	must(t, filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".jsonl.gz") {
			return err
		}
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		h, err := readHistory(f)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		judged++
		v := h.judge()
		t.Logf("%s (%s): %s", file, h.Test, v.String())
		if err := v.err(); err != nil {
			t.Errorf("%s (%s): %v", file, h.Test, err)
		}
		return nil
	}))
	if judged == 0 {
		t.Errorf("no history in %s", path)
	}
}

// plantedHistory writes a history without faults, and checks that each planted fault survives the file.
func plantedHistory(t *testing.T) (file string) {
	good := func() *history {
		h := &history{Test: "planted"}
		for i := range 4 {
			id := fmt.Sprintf("id-%d", i)
			var value []byte
			if i > 0 {
				value = digest(fmt.Append(nil, i))
			}
			h.Truth = append(h.Truth, row{Row: check.Row{ID: id, Topic: "t", Key: []byte("k"), Value: value, Seq: i + 1}, EventType: "added"})
			h.Records = append(h.Records, kafkatest.Record{Topic: "t", Offset: int64(i), Key: []byte("k"), Value: value, Headers: []kafkatest.Header{
				{Key: "id", Value: []byte(id)},
				{Key: "type", Value: []byte("added")},
				{Key: "outboxcdc-position", Value: fmt.Appendf(nil, "1:7:1:%016X:0", 0x1000+i)},
			}})
			h.Acks = append(h.Acks, id)
			end := pglogrepl.LSN(0x1001 + i)
			h.Commits = append(h.Commits, commit{[]string{id}, end})
			h.Looks = append(h.Looks, look{end, map[string]int64{"t/0": int64(i + 1)}})
		}
		h.Never = []string{"never"}
		h.Unsure = [][]string{{"id-0", "id-1"}, {"nowhere", "nor here"}}
		return h
	}
	stored := func(h *history) (*history, string) {
		name := filepath.Join(t.TempDir(), "h.jsonl.gz")
		f, err := os.Create(name)
		must(t, err)
		must(t, errors.Join(h.write(f), f.Close()))
		f, err = os.Open(name)
		must(t, err)
		defer f.Close()
		again, err := readHistory(f)
		must(t, err)
		return again, name
	}
	for want, plant := range map[string]func(*history){
		"missing":               func(h *history) { h.Records = h.Records[:3]; h.Commits, h.Looks = h.Commits[:3], h.Looks[:3] },
		"wrong value":           func(h *history) { h.Records[0].Value = []byte{} },
		"has lost id id-9":      func(h *history) { h.Acks = append(h.Acks, "id-9") },
		"which never committed": func(h *history) { h.Never = append(h.Never, "id-1") },
		"2 of the 3 rows":       func(h *history) { h.Unsure[0] = append(h.Unsure[0], "half") },
		"was not in Kafka then": func(h *history) { h.Looks[2].Ends["t/0"] = 2 },
		"id-3, committed": func(h *history) {
			h.Looks = slices.Insert(h.Looks, 0, look{h.Commits[3].End, map[string]int64{"t/0": 3}})
		},
	} {
		h := good()
		plant(h)
		again, _ := stored(h)
		if err := again.judge().err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want it to contain %q", err, want)
		}
	}
	_, file = stored(good())
	return file
}
