package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
)

// report is what `doctor -o json` prints, as far as tests read it.
type report struct {
	Findings []struct {
		Check, Level, Text string
		Remedy             []struct{ Kind, Text string }
		Exit               int
	}
	Exit int
}

// level returns the level of the first finding of a check.
func (r *report) level(check string) string {
	for _, f := range r.Findings {
		if f.Check == check {
			return strings.TrimSpace(fmt.Sprintf("%s %s", f.Level, strings.TrimPrefix(strconv.Itoa(f.Exit), "0")))
		}
	}
	return ""
}

// doctor runs `doctor` and compares its exit code with its report.
func (o *outbox) doctor(env ...string) *report {
	o.t.Helper()
	out, errs, exit := o.runBinary(env, "doctor", "-o", "json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		o.t.Fatalf("%v: %s%s", err, out, errs)
	}
	if r.Exit != exit || strings.Contains(out, password) {
		o.t.Fatalf("exit code %d, or a password:\n%s%s", exit, out, errs)
	}
	return &r
}

const firstPassword = "first-secret"

// newcomer is a user with an empty database, a Kafka and the binary, who follows doctor's suggestions only.
type newcomer struct {
	*outbox
	bin  string // where commands are found
	done []string
}

// A user who only follows doctor's suggestions gets from an empty database to a doctor without findings and to a first
// event.
func TestFromAnEmptyDatabaseByTheDoctor(t *testing.T) {
	t.Parallel()
	pg := ownPostgres(t, "18", nil)
	name := fmt.Sprintf("first_%06x", rand.IntN(1<<24)) // a new name in each run: Kafka may be older
	o := &outbox{t: t, pg: pg, kafka: sharedKafka(), name: name}
	must(t, pg.Exec(testContext(t), "postgres", "CREATE DATABASE "+name))
	o.admin.url = pg.SuperURL(name)
	t.Cleanup(o.admin.close)
	n := &newcomer{outbox: o, bin: t.TempDir()}
	must(t, os.Symlink(testSuite.binary, filepath.Join(n.bin, "outboxcdc")))
	o.follow = startFollower(o, []string{"order"})
	env := []string{
		"OUTBOXCDC_SETUP_URL=", "OUTBOXCDC_POSTGRES_URL=" + pg.URL(name, name, firstPassword),
		"OUTBOXCDC_DELIVERY_POSITION_TOPIC=" + o.positionTopic(), // another test may have created the default one
		"OUTBOXCDC_POISON_POLICY=hold_key", "OUTBOXCDC_POISON_TOPIC=" + name + ".dead",
	}

	n.followDoctor(env)
	for check, topic := range map[string]string{"dead_letters": name + ".dead", "position_topic": o.positionTopic()} {
		must(t, kafkatest.DeleteTopic(testContext(t), o.kafka.Brokers(), topic))
		n.followDoctor(env) // Postgres is ready by now; Kafka's own tool creates the topic
		if last := n.done[len(n.done)-1]; !strings.HasPrefix(last, check+": kafka-topics.sh ") {
			t.Errorf("topic %s that was deleted is created by %s", topic, last)
		}
	}
	// The README's first event. Its topic is known only now.
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '42', 'OrderPaid', '{"order": 42}')`)
	if r := o.doctor(env...); r.level("topic") != "FAIL 69" {
		t.Fatalf("a topic is missing, and doctor prints %q", r.level("topic"))
	}
	n.followDoctor(env)
	r := o.startStreaming(env...)
	o.awaitRecords(1)
	is(t, "active", o.doctor(env...).level("active"), "OK")
	must(t, r.checkStatus(0, env, `"state": "streaming"`, `"sink": "ok"`, `"ready": true`))
	r.term()
	t.Logf("what was done:\n%s", strings.Join(n.done, "\n"))
	if len(n.done) < 4 {
		t.Errorf("only %d suggestions were followed: this proved little", len(n.done))
	}
}

// followDoctor runs doctor and follows its suggestions until there are none. A test has only one broker.
func (n *newcomer) followDoctor(env []string) {
	n.t.Helper()
	for range 6 {
		r, well := n.doctor(env...), true
		for _, f := range r.Findings {
			if f.Level != "WARN" && f.Level != "FAIL" || f.Check == "cluster_size" && len(n.kafka.Brokers()) < 3 {
				continue
			}
			well = false
			for _, m := range f.Remedy {
				n.do(f.Check, m.Kind, strings.ReplaceAll(m.Text, "<the password that postgres.url or PGPASSFILE has>", firstPassword), env)
			}
		}
		if well {
			if r.Exit != 0 {
				n.t.Fatalf("no suggestions, and exit code %d", r.Exit)
			}
			return
		}
	}
	n.t.Fatalf("doctor still has findings after\n%s", strings.Join(n.done, "\n"))
}

// do follows one suggestion literally.
func (n *newcomer) do(check, kind, text string, env []string) {
	n.t.Helper()
	if kind != "advice" && strings.ContainsAny(text, "<>") {
		n.t.Fatalf("%s: the suggestion has a placeholder of unknown meaning: %s", check, text)
	}
	switch {
	case kind == "SQL":
		n.exec(text)
	case kind == "shell" && strings.HasPrefix(text, "kafka-topics.sh "):
		n.createTopic(text)
	case kind == "shell":
		cmd := exec.Command("sh", "-c", text)
		cmd.Env = append(append(n.env(), env...), "PATH="+n.bin+":"+os.Getenv("PATH"), "PGPASSWORD=postgres")
		if out, err := cmd.CombinedOutput(); err != nil {
			n.t.Fatalf("%s: %v\n%s", text, err, out)
		}
	case kind == "advice":
		return
	default:
		n.t.Fatalf("%s: unknown kind of suggestion %s: %s", check, kind, text)
	}
	n.done = append(n.done, check+": "+text)
}

// createTopic does what Kafka's own tool would do, and accepts only the options that doctor uses.
func (n *newcomer) createTopic(text string) {
	n.t.Helper()
	words := strings.Fields(text)[1:]
	var topic, brokers string
	partitions, replicas, create := 0, 0, false
	configs := map[string]string{}
	for len(words) > 0 {
		if words[0] == "--create" {
			create, words = true, words[1:]
			continue
		}
		if len(words) < 2 {
			n.t.Fatalf("%s: an option without a value", text)
		}
		var err error
		switch value := words[1]; words[0] {
		case "--bootstrap-server":
			brokers = value
		case "--topic":
			topic = value
		case "--partitions":
			partitions, err = strconv.Atoi(value)
		case "--replication-factor":
			replicas, err = strconv.Atoi(value)
		case "--config":
			k, v, _ := strings.Cut(value, "=")
			configs[k] = v
		default:
			n.t.Fatalf("kafka-topics.sh does not know %s", words[0])
		}
		must(n.t, err)
		words = words[2:]
	}
	if !create || replicas < 1 || replicas > len(n.kafka.Brokers()) || brokers != strings.Join(n.kafka.Brokers(), ",") {
		n.t.Fatalf("this creates no topic here: %s", text)
	}
	must(n.t, kafkatest.CreateTopic(testContext(n.t), strings.Split(brokers, ","), topic, partitions, configs))
}

// checkStatus returns an error unless `status` of the daemon ends with that code and prints those words.
func (r *relay) checkStatus(want int, env []string, words ...string) error {
	if _, _, err := r.get("/status"); err != nil && r.addr == "" {
		return err
	}
	out, errs, exit := r.o.runBinary(env, "status", "--url", "http://"+r.addr)
	if exit != want {
		return fmt.Errorf("status ends with %d, want %d:\n%s%s", exit, want, out, errs)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			return fmt.Errorf("status does not print %q:\n%s", w, out)
		}
	}
	return nil
}

// Every exit code of the documented interface (§7) is reached by its cause. `doctor` predicts the exit code of `run`.
func TestEveryExitCode(t *testing.T) {
	t.Parallel()
	const unused = "127.0.0.1:1" // an ephemeral port could be another test's by now
	pg := sharedPostgres(t, defaultMajor)
	reached := map[int]bool{}
	for _, c := range []struct {
		code  int
		name  string
		reach func(t *testing.T, o *outbox) (code int)
	}{
		{0, "told to stop", func(t *testing.T, o *outbox) int {
			r := o.startStreaming()
			must(t, r.checkStatus(0, nil, `"ready": true`))
			r.term()
			return 0
		}},
		{1, "drain incomplete", func(t *testing.T, o *outbox) int {
			k := o.kafka.(*kafkatest.Fake)
			r := o.startStreaming("OUTBOXCDC_SHUTDOWN_TIMEOUT=100ms", steady)
			must(t, k.Inject(testContext(t), kafkatest.Fault{Delay: patience}))
			o.insert("order", "k", 1, 1)
			await(t, patience, "an event in flight", func() error {
				st, err := r.status()
				if err == nil && st.InFlight != 1 {
					err = fmt.Errorf("%d are", st.InFlight)
				}
				return err
			})
			must(t, r.checkStatus(0, nil, `"in_flight_events": 1`))
			must(t, r.proc.Signal(os.Interrupt))
			return r.awaitExit(patience)
		}},
		{2, "a flag that there is not", func(t *testing.T, o *outbox) int {
			for _, command := range []string{"run", "doctor", "status", "setup", "peek", "dlq"} {
				if _, errs, exit := o.runBinary(nil, command, "--nope"); exit != 2 || !strings.Contains(errs, "--nope") {
					t.Errorf("%s --nope ends with %d: %s", command, exit, errs)
				}
			}
			_, _, exit := o.runBinary(nil, "nope")
			return exit
		}},
		{65, "poison", func(t *testing.T, o *outbox) int {
			o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, headers) VALUES ('order', 'k', 'made', '[]')`)
			return o.start(stopAtPoison).awaitExit(patience)
		}},
		{69, "Kafka is away", func(t *testing.T, o *outbox) int {
			env := []string{"OUTBOXCDC_KAFKA_BROKERS=" + unused, "OUTBOXCDC_HTTP_LISTEN=" + unused}
			if _, errs, exit := o.runBinary(env, "status"); exit != 69 || !strings.Contains(errs, "no daemon answers") {
				t.Errorf("status of a daemon that is down: %d\n%s", exit, errs)
			}
			is(t, "brokers", o.doctor(env...).level("brokers"), "FAIL 69")
			return o.doctor(env...).Exit
		}},
		{77, "no REPLICATION", func(t *testing.T, o *outbox) int {
			_, env := o.ownRole("LOGIN")
			if exit := o.doctor(env).Exit; exit != 77 {
				t.Errorf("doctor ends with %d", exit)
			}
			return o.start(env).awaitExit(patience)
		}},
		{78, "a table that is written otherwise", func(t *testing.T, o *outbox) int {
			if _, _, exit := o.runBinary([]string{"OUTBOXCDC_POSTGRES_SLOT=A"}, "doctor"); exit != 78 {
				t.Errorf("doctor ends with %d for invalid settings", exit)
			}
			o.exec(`ALTER TABLE outbox DROP COLUMN headers`)
			o.exec(`ALTER TABLE outbox ADD COLUMN headers bigint`)
			if exit := o.doctor().Exit; exit != 78 {
				t.Errorf("doctor ends with %d", exit)
			}
			return o.start().awaitExit(patience)
		}},
		{79, "the slot is gone", func(t *testing.T, o *outbox) int {
			o.exec(`SELECT pg_drop_replication_slot($1)`, o.name)
			if exit := o.doctor().Exit; exit != 79 {
				t.Errorf("doctor ends with %d", exit)
			}
			return o.start().awaitExit(patience)
		}},
	} {
		t.Run(fmt.Sprintf("%d %s", c.code, c.name), func(t *testing.T) {
			opt := options{pg: pg}
			if c.code == 1 { // its own timeout
				opt.kafka = kafkatest.FakeForTest(t, kafkatest.FakeOptions{})
			}
			o := newOutbox(t, opt)
			if got := c.reach(t, o); got != c.code {
				t.Errorf("exit code %d, want %d", got, c.code)
			}
		})
		reached[c.code] = true
	}
	for _, code := range []int{0, 1, 2, 65, 69, 77, 78, 79} {
		if !reached[code] {
			t.Errorf("no case reaches %d", code)
		}
	}
}
