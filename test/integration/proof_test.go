package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A test that provokes a fault of the catalogue is a row of `make prove`. It calls [outbox.proves]; at its end the
// requirements of every row are checked: no daemon used more than 128 MiB, and the time measured by
// [outbox.awaitHealed] was within bounds. `make prove` sets OUTBOXCDC_PROVE=1, so that tests take their full length
// ([fullOrShort]), and OUTBOXCDC_TEST_DIR, where rows (proof.jsonl), histories and the daemons' logs are kept.

// isProving reports whether this is `make prove`.
func isProving() bool { return os.Getenv("OUTBOXCDC_PROVE") != "" }

// fullOrShort returns full in `make prove`, short in `make test`: rounds, seconds, rows.
func fullOrShort[T any](full, short T) T {
	if isProving() {
		return full
	}
	return short
}

// skipUnlessProving is for tests that are too long for `make test` in any form. A skip is no gap: `make prove` runs
// them.
func skipUnlessProving(t *testing.T) {
	t.Helper()
	if !isProving() {
		t.Skip("only `make prove` runs this test (OUTBOXCDC_PROVE=1): it takes minutes")
	}
}

// proof is one row under construction. The methods of a nil one do nothing.
type proof struct {
	o        *outbox
	begun    time.Time
	memory   int64 // bound, bytes
	peak     int64 // of all daemons so far
	seed     uint64
	verdict  *verdict
	postgres string // version

	Faults   string   // ids of test/faults.md
	Done     string   // what was done
	Outcome  []string // further results
	Recovery time.Duration
}

// proofRow is a line of proof.jsonl; test/testrun reads it.
type proofRow struct {
	Faults       string  `json:"faults"`
	Test         string  `json:"test"`
	Done         string  `json:"done"`
	Outcome      string  `json:"outcome,omitempty"`
	Postgres     string  `json:"postgres"`
	Kafka        string  `json:"kafka"`
	Seed         uint64  `json:"seed,omitempty"`
	Checked      bool    `json:"checked"` // the four counts were taken
	Events       int     `json:"events"`
	Missing      int     `json:"missing"`
	Phantom      int     `json:"phantom"`
	OutOfOrder   int     `json:"out_of_order"`
	Repeats      int     `json:"repeats"`
	Deduplicated bool    `json:"deduplicated"` // a daemon of the test delivers deduplicated
	Recovery     float64 `json:"recovery_seconds,omitempty"`
	PeakRSS      int64   `json:"peak_rss_bytes,omitempty"`
	WALHeld      int64   `json:"wal_held_bytes,omitempty"`
	Seconds      float64 `json:"seconds"`
	Passed       bool    `json:"passed"`

	Began time.Time `json:"began"` // the process that ran it
}

// peakLimit is how much memory a daemon may use in every fault.
const peakLimit = 128 << 20

// recoverIn is how soon after the last fault everything must be delivered. `make prove` needs a quiet machine.
var recoverIn = fullOrShort(30*time.Second, 30*time.Second+busyAllowance)

// proves makes the test a row. faults are ids such as "F21 F27"; done says in a few words what the test does, with
// figures.
func (o *outbox) proves(faults, done string, args ...any) {
	o.t.Helper()
	p := &proof{o: o, begun: time.Now(), memory: peakLimit, Faults: faults, Done: fmt.Sprintf(done, args...), seed: testSuite.seedOf(o.t)}
	must(o.t, o.admin.scan("SELECT split_part(current_setting('server_version'), ' ', 1)", &p.postgres))
	o.proof = p
	o.t.Cleanup(p.end)
}

// outcome adds a result to the row, such as the exit code.
func (o *outbox) outcome(format string, args ...any) {
	o.proof.Outcome = append(o.proof.Outcome, fmt.Sprintf(format, args...))
}

// memoryUpTo raises the memory bound of this test; the row has the reason.
func (o *outbox) memoryUpTo(bytes int64, why string) {
	o.proof.memory = bytes
	o.outcome("memory limit %d MiB: %s", bytes>>20, why)
}

// awaitHealed marks the end of the last fault. It waits until everything committed by now is confirmed, which must
// take no longer than recoverIn, and puts the time into the row.
func (o *outbox) awaitHealed() {
	o.t.Helper()
	took := o.awaitConfirmed(o.walFlushed(), recoverIn)
	if o.proof != nil {
		o.proof.Recovery = max(o.proof.Recovery, took)
	}
}

// repeatsAtMost bounds the repeats; why explains the bound.
func (o *outbox) repeatsAtMost(v *verdict, most int, why string, args ...any) {
	o.t.Helper()
	why = fmt.Sprintf(why, args...)
	if v.Repeats > most {
		o.t.Errorf("%d repeats, more than %d (%s): of transactions %s", v.Repeats, most, why, v.repeatList())
	}
	if o.proof != nil {
		o.outcome("repeats allowed: %d (%s)", most, why)
	}
}

func (p *proof) setVerdict(v *verdict) {
	if p != nil {
		p.verdict = v
	}
}

// notePeak notes the memory of a daemon.
func (p *proof) notePeak(bytes int64) {
	if p != nil {
		p.peak = max(p.peak, bytes)
	}
}

func (p *proof) end() {
	o := p.o
	for _, r := range o.relays {
		p.notePeak(r.peak.Load())
	}
	if p.peak > p.memory {
		o.t.Errorf("a daemon used %d MiB, more than %d MiB", p.peak>>20, p.memory>>20)
	}
	row := proofRow{
		Faults: p.Faults, Test: o.t.Name(), Done: p.Done, Outcome: strings.Join(p.Outcome, "; "), Postgres: p.postgres, Kafka: kafkaName(o.kafka),
		Deduplicated: o.deduplicated, Seed: p.seed, Recovery: p.Recovery.Seconds(), PeakRSS: p.peak, Seconds: time.Since(p.begun).Seconds(), Passed: !o.t.Failed(), Began: testSuite.began,
	}
	if v := p.verdict; v != nil {
		row.Checked, row.Events, row.Repeats = true, v.Rows, v.Repeats
		row.Missing, row.Phantom, row.OutOfOrder = len(v.Missing), len(v.Phantom), len(v.OutOfOrder)
	}
	if o.sampler != nil {
		_, row.WALHeld = o.sampler.results()
	}
	if err := testSuite.rows.add(row); err != nil {
		o.t.Errorf("keep the row: %v", err)
	}
}

// rows is the file of all rows.
type rows struct{ mu sync.Mutex }

func (r *rows) add(row proofRow) error {
	line, err := json.Marshal(row)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(testSuite.dir, "proof.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
