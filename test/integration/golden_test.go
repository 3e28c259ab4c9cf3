package integration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboxcdc/outboxcdc/test/golden"
	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/pgtest"
)

// For the cases of package golden our records are those of a real Debezium, with the configuration that `config
// from-debezium` prints for its connector: topic, partition, key, value, headers and time of each record, byte for
// byte. Every difference is intended: it is in meant, with a reason, and in docs/debezium.md; a listed difference
// that does not occur fails too, and so does another number of equal cases than README.md and docs/debezium.md give.
// The test needs Java only for the broker.
func TestGolden(t *testing.T) {
	t.Parallel()
	// A server of its own: 65 new databases are WAL that the slots of other tests would have to read. Nothing crashes
	// here.
	pg := ownPostgres(t, defaultMajor, map[string]string{"fsync": "off"})
	k := sharedKafka()
	if !isProving() { // what is compared are the daemon's bytes, and a topic costs a real broker more than a case
		k = kafkatest.FakeForTest(t, kafkatest.FakeOptions{})
	}
	used := map[string]bool{}
	var cases int
	var compared, equal atomic.Int32
	t.Run("sets", func(t *testing.T) {
		for _, set := range golden.Sets() {
			used[set.Name] = true
			cases += len(set.Cases)
			t.Run(set.Name, func(t *testing.T) {
				t.Parallel()
				equal.Add(int32(compareWithDebezium(t, pg, k, set)))
				compared.Add(int32(len(set.Cases)))
			})
		}
	})
	if int(compared.Load()) == cases { // -run may have chosen some
		checkCounts(t, fmt.Sprintf("%d of %d recorded cases", equal.Load(), cases))
	}
	for name := range intendedDifferences {
		if !used[name] {
			t.Errorf("differences are listed for %s, which is no set", name)
		}
	}
	for name := range stops {
		if !used[name] {
			t.Errorf("a stop is listed for %s, which is no set", name)
		}
	}
}

// compareWithDebezium returns the number of cases in which all records are equal.
func compareWithDebezium(t *testing.T, pg *pgtest.Server, k kafkatest.Cluster, set golden.Set) (equal int) {
	theirs, err := golden.Load(set.Name)
	must(t, err)
	if !reflect.DeepEqual(theirs.Set, set) {
		t.Fatal("the recorded cases are different: make golden")
	}
	o := goldenOutbox(t, pg, k, set)
	began := time.Now()
	must(t, o.admin.do(set.Play))
	r, notes := o.startConverted(set.Connector, moreSettings[set.Name]...)
	for _, option := range expectedNotes[set.Name] {
		says(t, "\n"+notes, "\n"+option)
	}
	if set.Broken {
		o.compareStop(r, theirs, began)
		return 0
	}
	o.awaitConfirmed(o.walFlushed(), patience)
	r.term()
	results, err := set.Sort(o.readTopics(set.Topics), began)
	must(t, err)
	return judgeGolden(t, theirs.Results, results, intendedDifferences[set.Name])
}

// checkCounts checks that the documents give this number of equal cases.
func checkCounts(t *testing.T, counts string) {
	t.Helper()
	for _, name := range []string{"README.md", filepath.Join("docs", "debezium.md")} {
		doc, err := os.ReadFile(filepath.Join("..", "..", name))
		must(t, err)
		says(t, string(doc), counts)
	}
}

// goldenOutbox has only the database, the slot and the topics of a set.
func goldenOutbox(t *testing.T, pg *pgtest.Server, k kafkatest.Cluster, set golden.Set) *outbox {
	t.Helper()
	o := &outbox{t: t, pg: pg, kafka: k, name: fmt.Sprintf("golden_%s_%06x", set.Name, rand.IntN(1<<24)), follow: &follower{}}
	must(t, o.pg.Exec(testContext(t), "postgres", "CREATE DATABASE "+o.name))
	o.admin.url = o.pg.SuperURL(o.name)
	t.Cleanup(o.tearDown)
	must(t, o.admin.do(set.Make))
	o.exec(`DO $$ DECLARE s text; BEGIN
		FOR s IN SELECT DISTINCT schemaname FROM pg_publication_tables WHERE schemaname <> 'pg_catalog' LOOP
			EXECUTE format('GRANT USAGE ON SCHEMA %I TO ` + role + `', s);
			EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO ` + role + `', s);
		END LOOP; END $$`)
	for topic, partitions := range set.Topics {
		if _, outside := kafkatest.FromEnv(); outside {
			_ = kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), topic) // left by an interrupted run
		}
		must(t, kafkatest.CreateTopic(testContext(t), o.kafka.Brokers(), topic, partitions, keepsOldRecords))
		o.follow.topics = append(o.follow.topics, topic) // for tearDown
	}
	recreateSlot(o)
	return o
}

// startConverted starts a daemon with the configuration that `config from-debezium` prints for a connector of this
// database, and returns the command's notes.
func (o *outbox) startConverted(connector map[string]string, env ...string) (r *relay, notes string) {
	o.t.Helper()
	yaml, notes := o.converted(connector)
	file := filepath.Join(o.t.TempDir(), "outboxcdc.yaml")
	must(o.t, os.WriteFile(file, yaml, 0o600))
	return o.startAs([]string{"run", "-c", file}, slices.Concat(cleanEnv(), []string{
		"PGPASSWORD=" + password, "OUTBOXCDC_HTTP_LISTEN=127.0.0.1:0", "OUTBOXCDC_LOG_LEVEL=debug", "OUTBOXCDC_TUNING_STATUS_INTERVAL=100ms",
	}, env)), notes
}

func (o *outbox) converted(connector map[string]string) (yaml []byte, notes string) {
	o.t.Helper()
	u, err := url.Parse(o.pg.URL(o.name, role, password))
	must(o.t, err)
	all := maps.Clone(connector)
	maps.Copy(all, map[string]string{
		"connector.class":   "io.debezium.connector.postgresql.PostgresConnector",
		"database.hostname": u.Hostname(), "database.port": u.Port(), "database.user": role, "database.password": password, "database.dbname": o.name,
		"database.sslmode": cmp.Or(u.Query().Get("sslmode"), "prefer"), "slot.name": o.name,
		"producer.override.bootstrap.servers": strings.Join(o.kafka.Brokers(), ","),
	})
	in, err := json.Marshal(all)
	must(o.t, err)
	cmd := exec.Command(testSuite.binary, "config", "from-debezium", "-")
	cmd.Env, cmd.Stdin = cleanEnv(), bytes.NewReader(in)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		o.t.Fatalf("config from-debezium: %v\n%s", err, &said)
	}
	o.t.Logf("%s\n%s", out, &said)
	if bytes.Contains(out, []byte(password)) || bytes.Contains(said.Bytes(), []byte(password)) {
		o.t.Error("config from-debezium prints the password")
	}
	return out, said.String()
}

func (o *outbox) readTopics(topics map[string]int) []kafkatest.Record {
	o.t.Helper()
	records, err := kafkatest.ReadAll(testContext(o.t), o.kafka.Brokers(), slices.Sorted(maps.Keys(topics))...)
	must(o.t, err)
	return records
}

// compareStop is for sets that stop Debezium: our behaviour is in stops.
func (o *outbox) compareStop(r *relay, theirs *golden.Recording, began time.Time) {
	o.t.Helper()
	set := &theirs.Set
	want, ok := stops[set.Name]
	if !ok || len(theirs.Stops) == 0 != theirs.Hangs {
		o.t.Fatalf("our behaviour is not listed (%v), or theirs stopped %q and hung %v", ok, theirs.Stops, theirs.Hangs)
	}
	checkInDocs(o.t, want.doc)
	switch {
	case want.waits != "":
		r.awaitState(want.waits, patience)
	case want.exit != 0:
		r.awaitStop(patience, want.exit, want.words...)
	default:
		o.awaitConfirmed(o.walFlushed(), patience)
		r.term()
	}
	results, err := set.Sort(o.readTopics(set.Topics), began)
	must(o.t, err)
	var records []golden.Record
	for _, r := range results {
		records = append(records, r.Records...)
	}
	if len(want.value) == 0 {
		if len(records) > 0 {
			o.t.Errorf("records %+v, want none", records)
		}
		return
	}
	if len(records) != 1 || formatValue(records[0].Value) != want.value || want.time != "" && records[0].Time != want.time {
		o.t.Errorf("records %s\nwant one with value %s, time %s", jsonOf(records), want.value, want.time)
	}
}

// judgeGolden compares the records of all cases, and returns the number of cases without a difference.
func judgeGolden(t *testing.T, theirs, ours []golden.Result, expected []difference) (equal int) {
	t.Helper()
	seen := make([]bool, len(expected))
	for i := range theirs {
		name := theirs[i].Case
		differs := false
		for n := range max(len(theirs[i].Records), len(ours[i].Records)) {
			var a, b *golden.Record
			if n < len(theirs[i].Records) {
				a = &theirs[i].Records[n]
			}
			if n < len(ours[i].Records) {
				b = &ours[i].Records[n]
			}
			for _, part := range differingParts(a, b) {
				differs = true
				k := slices.IndexFunc(expected, func(d difference) bool { return d.matches(name, part) })
				if k < 0 {
					t.Errorf("%s: different %s:\ntheirs %s\nours   %s", name, part, jsonOf(a), jsonOf(b))
					continue
				}
				seen[k] = true
				if d := &expected[k]; d.ours != "" && d.ours != partOf(b, part) {
					t.Errorf("%s: the %s is %s, and %s is listed", name, part, partOf(b, part), d.ours)
				} else if d.check != nil {
					if err := d.check(*a, *b); err != nil {
						t.Errorf("%s: another %s than listed: %v:\ntheirs %s\nours   %s", name, part, err, jsonOf(a), jsonOf(b))
					}
				}
			}
		}
		if !differs {
			equal++
		}
	}
	for k, d := range expected {
		checkInDocs(t, d.doc)
		if !seen[k] {
			t.Errorf("there is no longer a difference in %s of %q: remove it here and in docs/debezium.md (%s)", d.part, d.only, d.doc)
		}
	}
	return equal
}

// differingParts returns the parts in which two records differ; the order of headers counts for those that both have.
func differingParts(a, b *golden.Record) (parts []string) {
	if a == nil || b == nil {
		return []string{"number of records"}
	}
	for _, p := range []struct {
		name string
		same bool
	}{
		{"topic", a.Topic == b.Topic},
		{"partition", a.Partition == b.Partition},
		{"key", formatValue(a.Key) == formatValue(b.Key)},
		{"value", formatValue(a.Value) == formatValue(b.Value)},
		{"time", a.Time == b.Time},
	} {
		if !p.same {
			parts = append(parts, p.name)
		}
	}
	names := func(r, other *golden.Record) (list []string) {
		for _, h := range r.Headers {
			if slices.ContainsFunc(other.Headers, func(o golden.Header) bool { return o.Name == h.Name }) {
				list = append(list, h.Name)
			}
		}
		return list
	}
	if !slices.Equal(names(a, b), names(b, a)) {
		parts = append(parts, "order of headers")
	}
	all := map[string]bool{}
	for _, h := range slices.Concat(a.Headers, b.Headers) {
		all[h.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if part := "header " + name; partOf(a, part) != partOf(b, part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// partOf returns the text of the value or of a header, all of them if several have the name.
func partOf(r *golden.Record, part string) string {
	if part == "value" {
		return formatValue(r.Value)
	}
	var all []string
	for _, h := range r.Headers {
		if "header "+h.Name == part {
			all = append(all, formatValue(h.Value))
		}
	}
	return strings.Join(all, "\n")
}

// formatValue prints null unlike any text.
func formatValue(s *string) string {
	if s == nil {
		return "null"
	}
	return "=" + *s
}

func jsonOf(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// checkInDocs checks that an intended difference is the beginning of an item of the list in docs/debezium.md.
func checkInDocs(t *testing.T, row string) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "debezium.md"))
	must(t, err)
	says(t, string(doc), "\n- "+row+": ")
}
