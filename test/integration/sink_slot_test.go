package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/internal/advice"
)

// TestLostSlotOfSink: with a sink that is not Kafka, the daemon, doctor and setup apply name docs/sinks.md when the
// slot is lost. What the page says, word for word except for the name of the slot, brings all rows to the receiver, and
// the rows of a key in their order, although the application goes on.
func TestLostSlotOfSink(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, options{pg: ownPostgres(t, "18", map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})})
	o.proves("F31", "slot invalidated by max_slot_wal_keep_size, with a receiver of HTTP")
	rcv := startReceiver(t)
	env := o.httpEnv(rcv.addr)
	stored := func(n int) {
		t.Helper()
		await(t, patience, fmt.Sprintf("%d rows at the receiver", n), func() error {
			ids := map[string]bool{}
			for _, e := range rcv.events() {
				ids[e.ID] = true
			}
			return waitFor(len(ids) >= n)
		})
	}
	r := o.startAs([]string{"run"}, env)
	o.insert("order", "k", 1, 20)
	stored(20)
	r.term()
	o.insert("order", "k", 21, 5)
	awaitLost(o)
	o.startAs([]string{"run"}, env).awaitStop(patience, 79, "slot "+o.name, "invalidated", "remedy: ", advice.Again)

	doctor, _ := runWith(t, env, "doctor")
	if !strings.Contains(doctor, "-> "+advice.Again) || strings.Contains(doctor, "outboxcdc recover") {
		t.Errorf("doctor says:\n%s", doctor)
	}
	setup := func() (string, int) {
		return runWith(t, append(slices.Clone(env), "OUTBOXCDC_SETUP_URL="+o.pg.SuperURL(o.name)), "setup", "apply")
	}
	if out, exit := setup(); exit == 0 || !strings.Contains(out, "slot "+o.name+" is lost") || !strings.Contains(out, advice.Again) {
		t.Errorf("setup apply does not refuse the slot: exit %d\n%s", exit, out)
	}
	page, err := os.ReadFile("../../docs/sinks.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## A lost slot\n")
	section, _, _ = strings.Cut(strings.ReplaceAll(section, "'outboxcdc'", "'"+o.name+"'"), "\n## ")
	drop := regexp.MustCompile("`(SELECT pg_drop_replication_slot.*?)`").FindStringSubmatch(section)
	again := regexp.MustCompile("(?s)```sql\n(.*?)```").FindStringSubmatch(section)
	if drop == nil || again == nil {
		t.Fatalf("the page has no statements:\n%s", section)
	}
	o.exec(drop[1])
	if out, exit := setup(); exit != 0 || !strings.Contains(out, "created slot") {
		t.Fatalf("setup apply: exit %d\n%s", exit, out)
	}
	o.insert("order", "k", 26, 3) // the new slot has them before the lost ones
	o.script(again[1])
	o.insert("order", "k", 29, 3)
	r = o.startAs([]string{"run"}, env)
	stored(31)
	r.term()
	seen, last, repeats := map[string]bool{}, int64(0), 0
	for _, e := range rcv.events() {
		if seen[e.ID] {
			repeats++
			continue
		}
		if e.Data.N != last+1 {
			t.Errorf("row %d is stored after row %d", e.Data.N, last)
		}
		seen[e.ID], last = true, e.Data.N
	}
	o.outcome("exit 79; after the steps of docs/sinks.md no row is missing, none is out of order, %d repeats", repeats)
}
