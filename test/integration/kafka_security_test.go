package integration

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// kafkaPassword is part of all passwords, client secrets and tokens of these tests, and must not be in any output.
const kafkaPassword = "kafka-s3cr3t"

// reauthenticate is how long Kafka accepts a connection's authentication.
const reauthenticate = 2 * time.Second

// guardedOutbox is an outbox whose daemon has to authenticate to Kafka. Its user may write to the outbox's topic only.
type guardedOutbox struct {
	*outbox
	k    *kafkatest.Real
	user string
	dir  string // of certificates and secrets
}

// guardedKafka starts a broker with a certificate of that authority.
func guardedKafka(t *testing.T, a *testcert.Authority, plain ...string) *kafkatest.Real {
	t.Helper()
	needRealKafka(t)
	g := &kafkatest.Guarded{Authority: a, Plain: map[string]string{}, Reauthenticate: int(reauthenticate.Milliseconds())}
	for _, user := range plain {
		g.Plain[user] = kafkaPassword
	}
	return kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Guarded: g})
}

func newAuthority(t *testing.T) *testcert.Authority {
	t.Helper()
	a, err := testcert.New("authority of " + t.Name())
	must(t, err)
	return a
}

func newGuarded(t *testing.T, k *kafkatest.Real, a *testcert.Authority, user string) *guardedOutbox {
	t.Helper()
	g := &guardedOutbox{outbox: newOutbox(t, options{kafka: k}), k: k, user: user, dir: t.TempDir()}
	g.file("ca.pem", a.PEM)
	return g
}

// allow gives the user, by its name and by its certificate's name, the permissions of docs/security.md.
func (g *guardedOutbox) allow() {
	g.t.Helper()
	ctx, brokers := testContext(g.t), g.k.Brokers()
	for _, user := range []string{g.user, "CN=" + g.user} {
		must(g.t, kafkatest.Allow(ctx, brokers, user, g.topic("order")))
		for _, topic := range []string{"outboxcdc.positions", "outbox.dead_letter"} {
			must(g.t, kafkatest.Allow(ctx, brokers, user, topic, kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe))
		}
		must(g.t, kafkatest.AllowGroup(ctx, brokers, user, "outboxcdc-dlq-"+g.name))
	}
}

// file writes a file of the daemon atomically, as a rotation of secrets should.
func (g *guardedOutbox) file(name string, text []byte) {
	g.t.Helper()
	path := filepath.Join(g.dir, name)
	must(g.t, os.WriteFile(path+".new", text, 0o600))
	must(g.t, os.Rename(path+".new", path))
}

// certify gives the daemon a certificate.
func (g *guardedOutbox) certify(a *testcert.Authority) {
	g.t.Helper()
	certificate, key, err := a.Issue(g.user)
	must(g.t, err)
	g.file("own.pem", certificate)
	g.file("own.key", key)
}

func (g *guardedOutbox) tls(more ...string) []string {
	return append([]string{
		"OUTBOXCDC_TLS_ENABLED=true", "OUTBOXCDC_TLS_CA_FILE=" + filepath.Join(g.dir, "ca.pem"), "OUTBOXCDC_TUNING_PARK_AFTER=1s",
	}, more...)
}

// withCertificate returns the daemon's environment for the listener that requires a certificate.
func (g *guardedOutbox) withCertificate() []string {
	return g.tls("OUTBOXCDC_KAFKA_BROKERS="+g.k.TLSBrokers()[0],
		"OUTBOXCDC_TLS_CERT_FILE="+filepath.Join(g.dir, "own.pem"), "OUTBOXCDC_TLS_KEY_FILE="+filepath.Join(g.dir, "own.key"))
}

// withPassword returns the daemon's environment for a mechanism that reads a password from the file.
func (g *guardedOutbox) withPassword(mechanism string, more ...string) []string {
	return append(g.tls("OUTBOXCDC_KAFKA_BROKERS="+g.k.SASLBrokers()[0], "OUTBOXCDC_KAFKA_SASL_MECHANISM="+mechanism,
		"OUTBOXCDC_KAFKA_SASL_USER="+g.user, "OUTBOXCDC_KAFKA_SASL_PASSWORD_FILE="+filepath.Join(g.dir, "password")), more...)
}

// checkNoSecret checks that no output of the daemon contains a secret.
func (g *guardedOutbox) checkNoSecret(r *relay) {
	g.t.Helper()
	log, err := os.ReadFile(r.log)
	must(g.t, err)
	_, status, err := r.get("/status")
	must(g.t, err)
	if bytes.Contains(log, []byte(kafkaPassword)) || bytes.Contains(status, []byte(kafkaPassword)) {
		g.t.Error("a secret for Kafka is in the log or in /status")
	}
}

// awaitReason waits until the daemon reports what is wrong with Kafka.
func (r *relay) awaitReason(words ...string) {
	r.t.Helper()
	await(r.t, patience, "the reason "+strings.Join(words, ", "), func() error {
		st, err := r.status()
		if err != nil {
			return err
		}
		said := st.State + ": " + st.Reason
		for _, w := range words {
			if !strings.Contains(said, w) {
				return fmt.Errorf("it reports %s", said)
			}
		}
		return r.o.checkRelays()
	})
}

// The daemon's authentication to Kafka: each mechanism, its permissions, and what happens when they change.
func TestKafkaSecurity(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	k := guardedKafka(t, a, "plain", "writer", "carer", "maker")
	t.Run("shown", func(t *testing.T) {
		for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "command", "certificate"} {
			t.Run(mechanism, func(t *testing.T) {
				t.Parallel()
				newGuarded(t, k, a, strings.ToLower(mechanism)).testMechanism(mechanism, a)
			})
		}
		t.Run("permissions", func(t *testing.T) {
			t.Parallel()
			newGuarded(t, k, a, "writer").testPermissionChanges()
		})
		t.Run("dlq", func(t *testing.T) {
			t.Parallel()
			newGuarded(t, k, a, "carer").testDLQCommands(a)
		})
		t.Run("makes topics", func(t *testing.T) {
			t.Parallel()
			g := &guardedOutbox{outbox: newOutbox(t, options{kafka: k, types: []string{"order", "late"}, missing: []string{"late"}}), k: k, user: "maker", dir: t.TempDir()}
			g.file("ca.pem", a.PEM)
			g.testTopicCreation()
		})
		t.Run("password rotates", func(t *testing.T) {
			t.Parallel()
			newGuarded(t, k, a, "rotating").testPasswordRotation()
		})
		t.Run("doctor", func(t *testing.T) {
			t.Parallel()
			newGuarded(t, k, a, "examined").testDoctor(a)
		})
	})
	t.Run("certificates rotate", func(t *testing.T) { newGuarded(t, k, a, "certified").testCertificateRotation(a) })
}

// testMechanism runs for longer than Kafka accepts an authentication before it asks again.
func (g *guardedOutbox) testMechanism(mechanism string, a *testcert.Authority) {
	g.t.Helper()
	g.sample()
	g.file("password", []byte(kafkaPassword+"\n"))
	env := g.withPassword(mechanism)
	switch mechanism {
	case "certificate":
		g.certify(a)
		env = g.withCertificate()
	case "OAUTHBEARER":
		env = append(env, "OUTBOXCDC_KAFKA_SASL_TOKEN_URL="+tokenServer(g.t, g.user), "OUTBOXCDC_KAFKA_SASL_SCOPES=kafka,write")
	case "command":
		script := `part() { printf %s "$1" | base64 -w0 | tr +/ -_ | tr -d =; }; now=$(date +%s); echo run >> ` + filepath.Join(g.dir, "runs") + `
			echo "$(part '{"alg":"none"}').$(part '{"sub":"` + g.user + `","iat":'"$now"',"exp":'"$((now+60))"'}')."`
		must(g.t, os.WriteFile(filepath.Join(g.dir, "token.sh"), []byte(script), 0o600))
		env = g.tls("OUTBOXCDC_KAFKA_BROKERS="+g.k.SASLBrokers()[0], "OUTBOXCDC_KAFKA_SASL_MECHANISM=OAUTHBEARER",
			"OUTBOXCDC_KAFKA_SASL_TOKEN_COMMAND=sh,"+filepath.Join(g.dir, "token.sh"))
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		must(g.t, kafkatest.SetPassword(testContext(g.t), g.k.Brokers(), mechanism, g.user, kafkaPassword))
	}
	g.allow()
	r := g.startStreaming(append(env, "OUTBOXCDC_TUNING_PARK_AFTER=1m", steady)...) // a busy machine must not end the session
	w := g.write(load{rand: newRand(g.t), connections: 1, pause: 40 * time.Millisecond})
	began := time.Now()
	for time.Since(began) < reauthenticate+time.Second {
		w.awaitDelivered(10)
	}
	w.stop()
	g.repeatsAtMost(g.verify(patience), 0, "no fault")
	is(g.t, "reconnects", r.reconnects(""), 0)
	g.checkNoSecret(r)
	if runs, err := os.ReadFile(filepath.Join(g.dir, "runs")); mechanism == "command" && bytes.Count(runs, []byte("run")) < 2 {
		g.t.Errorf("the command ran %d times: %v", bytes.Count(runs, []byte("run")), err)
	}
}

// tokenServer issues tokens that Kafka accepts when it is not told whom to trust. It requires the client's secret.
func tokenServer(t *testing.T, user string) string {
	t.Helper()
	part := func(json string) string { return base64.RawURLEncoding.EncodeToString([]byte(json)) }
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id, secret, _ := req.BasicAuth()
		if id != user || secret != kafkaPassword || req.FormValue("grant_type") != "client_credentials" || req.FormValue("scope") != "kafka write" {
			http.Error(w, "who are you, "+secret+"?", http.StatusUnauthorized)
			return
		}
		now := time.Now().Unix()
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":60}`,
			part(`{"alg":"none"}`)+"."+part(fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, user, now, now+60))+".")
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/token"
}

// A password is changed on Kafka's side first: the daemon waits, logs why, and continues as soon as it has the new one.
func (g *guardedOutbox) testPasswordRotation() {
	g.t.Helper()
	const mechanism = "SCRAM-SHA-512"
	set := func(password string) {
		must(g.t, kafkatest.SetPassword(testContext(g.t), g.k.Brokers(), mechanism, g.user, password))
	}
	g.sample()
	set(kafkaPassword)
	g.allow() // and the broker has applied the earlier changes
	g.file("password", []byte(kafkaPassword))
	r := g.startStreaming(g.withPassword(mechanism)...)
	w := g.write(load{rand: newRand(g.t)})
	w.awaitDelivered(20)
	set("new " + kafkaPassword)
	r.awaitReason("SASL") // Kafka asks for authentication again
	w.awaitCommits(20)
	g.file("password", []byte("new "+kafkaPassword))
	r.awaitState("streaming", patience)
	w.awaitDelivered(20)
	w.stop()
	g.verify(patience)
	g.checkNoSecret(r)
}

// A change of authority: first Kafka's certificate is of an authority unknown to the daemon, then the daemon's of one
// unknown to Kafka. Replacing files fixes both.
func (g *guardedOutbox) testCertificateRotation(a *testcert.Authority) {
	g.t.Helper()
	g.allow()
	g.sample()
	g.certify(a)
	r := g.startStreaming(g.withCertificate()...)
	w := g.write(load{rand: newRand(g.t)})
	w.awaitDelivered(20)
	b := newAuthority(g.t)
	must(g.t, g.k.Certify(b))
	must(g.t, g.k.Stop(testContext(g.t)))
	must(g.t, g.k.StartAgain(testContext(g.t)))
	r.awaitReason("certificate")
	g.file("ca.pem", append(b.PEM, a.PEM...))
	r.awaitReason("tls:")
	w.awaitCommits(20)
	g.certify(b)
	r.awaitState("streaming", patience)
	w.awaitDelivered(20)
	w.stop()
	g.verify(patience)
}

// testDoctor checks that doctor reports each error of authentication to a real Kafka, and nothing when all is right.
func (g *guardedOutbox) testDoctor(a *testcert.Authority) {
	g.t.Helper()
	const mechanism = "SCRAM-SHA-512"
	g.insert("order", "k", 1, 3)
	must(g.t, kafkatest.SetPassword(testContext(g.t), g.k.Brokers(), mechanism, g.user, kafkaPassword))
	env := g.withPassword(mechanism)
	check := func(check, level, words, remedy string) {
		g.t.Helper()
		r := g.doctor(env...)
		for _, f := range r.Findings {
			if f.Check != check || !strings.Contains(f.Text, words) || r.level(check) != level {
				continue
			}
			if remedy != "" && (len(f.Remedy) == 0 || !strings.Contains(f.Remedy[0].Text, remedy)) {
				g.t.Errorf("%s: want a remedy with %q: %+v", check, remedy, f)
			}
			return
		}
		g.t.Errorf("%s is %q, want %s with %q: %+v", check, r.level(check), level, words, r.Findings)
	}
	g.file("password", []byte("wrong "+kafkaPassword))
	check("authentication", "FAIL 69", "SASL", "kafka.sasl: mechanism, user and password")
	g.file("ca.pem", newAuthority(g.t).PEM)
	check("authentication", "FAIL 69", "certificate", "")
	g.file("ca.pem", a.PEM)
	g.file("password", []byte(kafkaPassword))
	check("producer_id", "FAIL 77", "authoriz", "")
	check("topic", "FAIL 77", "not authorized", "")
	g.allow()
	check("authentication", "OK", "", "")
	check("producer_id", "OK", "", "")
	check("topic", "OK", g.topic("order"), "")
	if exit := g.doctor(env...).Exit; exit != 0 {
		g.t.Errorf("everything is correct, and doctor ends with %d", exit)
	}
	const brokers = "OUTBOXCDC_KAFKA_BROKERS="
	right := env
	env = append(slices.Clone(right), brokers+g.k.Brokers()[0])
	check("authentication", "FAIL 69", "speak to", "does not use TLS")
	env = append(slices.Clone(right), brokers+g.k.TLSBrokers()[0])
	check("authentication", "FAIL 69", "certificate", "cert_file and key_file")
	env = append(slices.Clone(right), brokers+g.k.Brokers()[0], "OUTBOXCDC_TLS_ENABLED=false", "OUTBOXCDC_TLS_CA_FILE=")
	check("authentication", "FAIL 69", "speak to", "does not use SASL")
	env = append(g.tls(), brokers+g.k.SASLBrokers()[0])
	check("authentication", "FAIL 69", "speak to", "may require SASL")
	env = []string{brokers + g.k.SASLBrokers()[0]}
	check("authentication", "FAIL 69", "speak to", "uses TLS")
}

// Permissions on topics: missing at the start, they are an error of the setup; revoked later, they may be granted
// again.
func (g *guardedOutbox) testPermissionChanges() {
	g.t.Helper()
	g.sample()
	g.file("password", []byte(kafkaPassword))
	env := g.withPassword("PLAIN")
	g.insert("order", "k", 1, 3)
	r := g.start(env...)
	r.awaitStop(patience, 77, "remedy: grant the daemon's user Write")

	g.allow()
	r = g.startStreaming(env...)
	w := g.write(load{rand: newRand(g.t)})
	w.awaitDelivered(20)
	must(g.t, kafkatest.Forbid(testContext(g.t), g.k.Brokers(), g.user, g.topic("order")))
	r.awaitReason("parked", "not authorized", "remedy: grant the daemon's user Write and Describe on topic "+g.topic("order"))
	w.awaitCommits(20)
	g.allow()
	r.awaitState("streaming", patience)
	w.awaitDelivered(20)
	w.stop()
	g.verify(patience)
	g.checkNoSecret(r)
}

// The dlq commands authenticate as the daemon does, and name a missing permission and its resource.
func (g *guardedOutbox) testDLQCommands(a *testcert.Authority) {
	g.t.Helper()
	ctx, group, dead := testContext(g.t), "outboxcdc-dlq-"+g.name, g.topic("dead")
	must(g.t, kafkatest.CreateTopic(ctx, g.k.Brokers(), dead, 1, nil))
	g.t.Cleanup(func() { _ = kafkatest.DeleteTopic(testContext(g.t), g.k.Brokers(), dead) })
	parks := []string{"OUTBOXCDC_POISON_POLICY=dead_letter", "OUTBOXCDC_POISON_TOPIC=" + dead, "OUTBOXCDC_ROUTE_REPLACE_REGEX=nothing"}
	end := g.insert("order", "k", 1, 3)
	r := g.start(parks...) // by the listener that allows everything
	g.awaitConfirmed(end, patience)
	r.term()

	g.file("password", []byte(kafkaPassword))
	g.certify(a)
	password, certificate := append(g.withPassword("PLAIN"), parks...), append(g.withCertificate(), parks...)
	dlq := func(exit int, env []string, words string, args ...string) {
		g.t.Helper()
		out, notes, got := g.runBinary(env, append([]string{"dlq"}, args...)...)
		if got != exit || !strings.Contains(out+notes, words) {
			g.t.Errorf("dlq %v: exit code %d, want %d and %q: %s%s", args, got, exit, words, out, notes)
		}
		if strings.Contains(out+notes, kafkaPassword) {
			g.t.Errorf("a secret for Kafka is in the output of dlq %v", args)
		}
	}
	remedy := "remedy: grant the user Read and Describe on topic " + dead + " and on group " + group
	dlq(77, password, remedy, "list")
	dlq(77, certificate, remedy, "list")
	for user, env := range map[string][]string{g.user: password, "CN=" + g.user: certificate} {
		must(g.t, kafkatest.Allow(ctx, g.k.Brokers(), user, dead, kmsg.ACLOperationRead))
		dlq(77, env, remedy, "list")
		must(g.t, kafkatest.AllowGroup(ctx, g.k.Brokers(), user, group))
		dlq(0, env, "3 open dead letters", "list")
	}
	dlq(77, password, "remedy: grant the daemon's user Write and Describe on its topics", "retry", "--all", "--topic", g.topic("order"))
	must(g.t, kafkatest.Allow(ctx, g.k.Brokers(), g.user, dead))
	dlq(1, password, "grant the daemon's user Write and Describe on topic "+g.topic("order"), "retry", "--all", "--topic", g.topic("order"))
	dlq(0, password, "3 open dead letters", "list")
	g.allow()
	dlq(0, password, "1 dead letter retried; 2 are open", "retry", "--at", "0:0", "--topic", g.topic("order"))
	dlq(0, certificate, "1 dead letter retried; 1 is open", "retry", "--at", "0:1", "--topic", g.topic("order"))
	dlq(0, certificate, "1 dead letter dropped; 0 are open", "drop", "--all")
	g.file("password", []byte("another"))
	dlq(69, password, "SASL", "list")
	g.file("ca.pem", newAuthority(g.t).PEM)
	dlq(69, certificate, "certificate", "list")
}

// testTopicCreation: when Kafka denies the daemon the creation of a topic, the daemon waits, with the reason, until
// it is allowed.
func (g *guardedOutbox) testTopicCreation() {
	g.t.Helper()
	g.sample()
	g.file("password", []byte(kafkaPassword))
	g.allow()
	must(g.t, kafkatest.Allow(testContext(g.t), g.k.Brokers(), g.user, g.topic("late")))
	r := g.startStreaming(g.withPassword("PLAIN", createTopics...)...)
	g.insert("late", "k", 1, 3)
	g.insert("order", "k", 4, 3)
	r.awaitReason("parked", "could not be created", "remedy: grant the daemon's user Create")
	if said := r.logged("waiting for topic"); len(said) != 1 || !strings.Contains(fmt.Sprint(said[0]["because"]), "TOPIC_AUTHORIZATION") && !strings.Contains(fmt.Sprint(said[0]["because"]), "not authorized") {
		g.t.Errorf("the log: %v", said)
	}
	must(g.t, kafkatest.Allow(testContext(g.t), g.k.Brokers(), g.user, g.topic("late"), kmsg.ACLOperationCreate))
	g.verify(patience)
	if made := r.logged("topic created"); len(made) != 1 || made[0]["topic"] != g.topic("late") {
		g.t.Errorf("made: %v", made)
	}
	g.checkNoSecret(r)
}
