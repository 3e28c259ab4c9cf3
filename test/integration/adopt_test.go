package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// adopted is what `slot adopt -o json` prints, as far as tests read it.
type adopted struct {
	Contradiction string
	Unreadable    string
	Written       bool
	Old, New      *struct {
		Confirm    string
		Generation int
		Adopted    bool
		Clean      bool
		Producers  []int64

		UpgradedFrom string `json:"upgraded_from"`
	}
}

// adopt runs `slot adopt`, which must end with this exit code.
func (o *outbox) adopt(env []string, exit int, args ...string) (a adopted, text string) {
	o.t.Helper()
	out, notes, got := o.runBinary(env, append([]string{"slot", "adopt"}, args...)...)
	if got != exit {
		o.t.Fatalf("slot adopt %v: exit code %d, want %d\n%s%s", args, got, exit, out, notes)
	}
	if slices.Contains(args, "json") {
		must(o.t, json.Unmarshal([]byte(out), &a))
	}
	return a, out + notes
}

// A slot recreated or advanced while the daemon was down contradicts the position record. The daemon refuses to
// continue before an operator adopts the slot; then it delivers everything the slot has, repeats included, and
// deduplicates again later.
func TestSlotAdopt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, fault, done, sql string }{
		{"remade", "F30", "slot dropped and recreated by hand while a deduplicating daemon is down, past an event", `pg_drop_replication_slot`},
		{"advanced", "F33", "pg_replication_slot_advance while a deduplicating daemon is down, past an event", `pg_replication_slot_advance`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pg := sharedPostgres(t, defaultMajor)
			t.Parallel()
			o := newOutbox(t, options{pg: pg})
			o.proves(c.fault, "%s", c.done)
			o.sample()
			env := o.deduplicating(20 * time.Second)
			r := o.startStreaming(env...)
			o.insert("order", "k", 1, 50)
			o.awaitArrived(patience)
			if _, text := o.adopt(env, 1); !strings.Contains(text, "is active for PID ") || !strings.Contains(text, "nothing was changed") {
				t.Errorf("beside a running daemon: %s", text)
			}
			r.term()
			o.exec(insertInto + `(gen_random_uuid(), 'order', 'gap', 'added', '{}', '{}', 1)`) // not in the ledger: it will not be delivered
			o.exec(`DELETE FROM outbox WHERE aggregate_id = 'gap'`)
			if c.name == "remade" {
				o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
				if _, text := o.adopt(env, 79); !strings.Contains(text, "slot "+o.name+" is missing: run outboxcdc recover") {
					t.Errorf("without a slot: %s", text)
				}
				o.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, o.name)
			} else {
				o.exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, o.name)
			}
			stands := o.confirmed().String() // PostgreSQL 19 prints it with leading zeros
			o.insert("order", "k", 51, 50)
			refused := func() {
				t.Helper()
				r = o.start(env...)
				r.awaitStop(patience, 79, "the slot is at "+stands, "recreated, advanced", "remedy: ", "outboxcdc slot adopt")
				is(t, "records", o.follow.records(), 50)
			}
			refused()
			a, _ := o.adopt(env, 0, "--dry-run", "-o", "json")
			if a.Written || !strings.Contains(a.Contradiction, "the slot is at "+stands) || a.New.Confirm != stands {
				t.Errorf("a dry run prints %+v", a)
			}
			_, text := o.adopt(env, 0, "--dry-run")
			says(t, text, "slot "+o.name+" is at "+stands, "outboxcdc confirmed "+a.Old.Confirm+" at most", "would write", "nothing was changed")
			refused() // a dry run has written nothing

			a, _ = o.adopt(env, 0, "-o", "json")
			if n := a.New; !a.Written || !n.Adopted || !n.Clean || n.Confirm != stands || n.Generation != a.Old.Generation+1 || len(n.Producers) > 0 {
				t.Errorf("adopted: %+v", n)
			}
			if now := o.confirmed().String(); now != stands {
				t.Errorf("the slot was moved from %s to %s", stands, now)
			}
			r = o.startStreaming(env...)
			o.awaitHealed()
			o.repeatsAtMost(o.verify(patience), 0, "the slot begins after the delivered events")
			o.outcome("exit 79 at each start, with the remedy; after `slot adopt` it continues from the slot's position")
			if _, text := o.adopt(env, 1, "--dry-run"); !strings.Contains(text, "active") {
				t.Errorf("beside a running daemon: %s", text)
			}
		})
	}
}

// After an adoption the next start skips nothing that Kafka had before, and the start after it skips everything. An
// adoption of a slot that fits its record only costs repeats.
func TestSlotAdoptRepeats(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{})
	env := o.deduplicating(fence)
	slow := append(slices.Clone(env), "OUTBOXCDC_TUNING_STATUS_INTERVAL=1h") // the slot does not move
	if _, text := o.adopt(env, 0, "--dry-run"); !strings.Contains(text, "it has no position record") {
		t.Errorf("without a record: %s", text)
	}
	skips := func(r *relay) {
		t.Helper()
		await(t, patience, "the events in Kafka to be skipped", func() error {
			m, err := r.metrics()
			if n := m[`outboxcdc_events_skipped_total{reason="in_kafka"}`]; err == nil && n != 30 {
				err = fmt.Errorf("%v are", n)
			}
			return err
		})
	}
	r := o.startStreaming(slow...)
	o.insert("order", "k", 1, 30)
	o.awaitArrived(patience)
	r.kill9()
	r = o.startStreaming(slow...)
	skips(r)
	r.kill9()
	if a, _ := o.adopt(env, 0, "-o", "json"); a.Contradiction != "" || a.Old == nil || a.Old.Clean || len(a.Old.Producers) != 2 {
		t.Errorf("adopted: %+v", a)
	}
	r = o.startStreaming(slow...)
	await(t, patience, "the repeats", func() error {
		if n := o.follow.records(); n != 60 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	r.kill9()
	r = o.startStreaming(env...)
	skips(r)
	if v := o.verify(patience); v.Repeats != 30 {
		t.Errorf("%d repeats, want 30", v.Repeats)
	}
	r.term()

	// A slot can be adopted although its record cannot be read.
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.kafka.Brokers()...))
	must(t, err)
	defer cl.Close()
	newer := &kgo.Record{Topic: o.name + ".positions", Key: []byte(o.name), Value: []byte(`{"version": 99}`)}
	must(t, cl.ProduceSync(testContext(t), newer).FirstErr())
	if a, _ := o.adopt(env, 0, "-o", "json"); !a.Written || a.Unreadable == "" || a.New == nil {
		t.Errorf("beside a record that cannot be read: %+v", a)
	}
	if a, _ := o.adopt(env, 0, "--dry-run", "-o", "json"); a.Written || a.Unreadable != "" || a.Old == nil || !a.Old.Adopted {
		t.Errorf("after it: %+v", a)
	}
}
