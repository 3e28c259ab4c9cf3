package integration

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxcdc/outboxcdc/test/kafkatest"
	"github.com/outboxcdc/outboxcdc/test/testcert"
)

// tokenEnv makes this executable a program that prints a token, as those of clouds do: it is the program's folder.
const tokenEnv = "OUTBOXCDC_TEST_TOKEN"

// tokenOrder is what the program does, in its folder's file "order". A token is signed with the key in it.
type tokenOrder struct {
	User    string
	Key     []byte // PKCS #1
	Seconds int64  // until the token expires
}

// maybePrintToken is the program. It notes each token with the time at which it expires.
func maybePrintToken() {
	dir := os.Getenv(tokenEnv)
	if dir == "" {
		return
	}
	token, expires, err := printedToken(dir)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, "tokens"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, err = fmt.Fprintln(f, expires)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(token)
	os.Exit(0)
}

func printedToken(dir string) (token string, expires int64, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return "", 0, err
	}
	var o tokenOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return "", 0, err
	}
	key, err := x509.ParsePKCS1PrivateKey(o.Key)
	if err != nil {
		return "", 0, err
	}
	now := time.Now().Unix()
	expires = now + o.Seconds
	part := base64.RawURLEncoding.EncodeToString
	token = part([]byte(`{"alg":"RS256","kid":"first"}`)) + "." + part(fmt.Appendf(nil, `{"iss":%q,"aud":%q,"sub":%q,"iat":%d,"exp":%d}`,
		kafkatest.TokenIssuer, kafkatest.TokenAudience, o.User, now-60, expires))
	sum := sha256.Sum256([]byte(token))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
	return token + "." + part(signature), expires, err
}

// newKey returns a key for tokens.
func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return key
}

// keyServer serves the public key as a JSON Web Key Set (RFC 7517).
func keyServer(t *testing.T, key *rsa.PrivateKey) string {
	t.Helper()
	part := base64.RawURLEncoding.EncodeToString
	set := fmt.Sprintf(`{"keys":[{"kty":"RSA","kid":"first","use":"sig","alg":"RS256","n":%q,"e":%q}]}`,
		part(key.N.Bytes()), part(big.NewInt(int64(key.E)).Bytes()))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, set)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/keys"
}

// tokenLife is how long a token of [TestTokensExpire] lives. Sarama authenticates a connection again when at most 95 %
// of it have passed.
const tokenLife = 8 * time.Second

// Tokens of kafka.sasl.token_command, which Kafka verifies with the keys of their issuer, expire under load.
// Kafka closes a connection that does not authenticate itself again in time, and closes none of the daemon's: no
// session is lost, and nothing is missing or repeated. With tokens that Kafka refuses the daemon waits, and continues
// with the first good one.
func TestTokensExpire(t *testing.T) {
	t.Parallel()
	needRealKafka(t)
	a, key := newAuthority(t), newKey(t)
	k := kafkatest.RealForTest(t, kafkatest.RealOptions{QuickStart: true, Guarded: &kafkatest.Guarded{
		Authority: a, JWKS: keyServer(t, key), Reauthenticate: int(time.Hour.Milliseconds()), // the token ends before
	}})
	g := newGuarded(t, k, a, "expiring")
	order := func(key *rsa.PrivateKey, life time.Duration) {
		text, err := json.Marshal(tokenOrder{User: g.user, Key: x509.MarshalPKCS1PrivateKey(key), Seconds: int64(life.Seconds())})
		must(t, err)
		g.file("order", text)
	}
	order(key, tokenLife)
	self, err := os.Executable()
	must(t, err)
	g.file("token.sh", fmt.Appendf(nil, "%s='%s' exec '%s'\n", tokenEnv, g.dir, self))
	g.allow()
	g.sample()
	env := g.tls("OUTBOXCDC_KAFKA_BROKERS="+k.SASLBrokers()[0], "OUTBOXCDC_KAFKA_SASL_MECHANISM=OAUTHBEARER",
		"OUTBOXCDC_KAFKA_SASL_TOKEN_COMMAND=sh,"+filepath.Join(g.dir, "token.sh"))
	env = append(env, g.deduplicating(steadyFence)...)
	must(t, kafkatest.Allow(testContext(t), k.Brokers(), g.user, g.name+".positions", kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe))
	r := g.startStreaming(append(env, "OUTBOXCDC_TUNING_PARK_AFTER=1m")...) // a busy machine must not end the session
	w := g.write(load{rand: newRand(t), connections: 2, pause: 10 * time.Millisecond})
	expired, began := 0, time.Now()
	for time.Since(began) < fullOrShort(10*time.Minute, 3*tokenLife+time.Second) {
		w.awaitDelivered(10)
	}
	text, err := os.ReadFile(filepath.Join(g.dir, "tokens"))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		var expires int64
		if _, err := fmt.Sscan(line, &expires); err != nil {
			t.Fatal(err)
		}
		if time.Now().Unix() > expires {
			expired++
		}
	}
	if lives := int(time.Since(began) / tokenLife); expired < lives {
		t.Errorf("%d tokens have expired in %d of their lives", expired, lives)
	}
	is(t, "reconnects", r.reconnects(""), 0)
	if n := countInFile(t, k.LogFile(), kafkatest.Expired); n != 0 {
		t.Errorf("Kafka has closed %d connections because of their tokens", n)
	}
	t.Logf("%d tokens have expired, and no session", expired)

	order(newKey(t), tokenLife)
	r.awaitReason("SASL")
	w.awaitCommits(20)
	order(key, -time.Second)
	r.awaitReason("SASL")
	w.awaitCommits(20)
	order(key, tokenLife)
	r.awaitState("streaming", patience)
	w.awaitDelivered(20)
	w.stop()
	g.repeatsAtMost(g.verify(patience), 0, "no connection was lost while a request was open")
	g.checkNoSecret(r)
	g.checkNeglected(a)
}

// checkNeglected checks that Kafka closes a connection that does not authenticate itself again, and that its log says
// so: otherwise the test above would show nothing.
func (g *guardedOutbox) checkNeglected(a *testcert.Authority) {
	g.t.Helper()
	before := countInFile(g.t, g.k.LogFile(), kafkatest.Expired)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.PEM)
	conn, err := tls.Dial("tcp", g.k.SASLBrokers()[0], &tls.Config{RootCAs: pool, ServerName: "localhost"})
	must(g.t, err)
	defer conn.Close()
	must(g.t, conn.SetDeadline(time.Now().Add(patience)))
	token, expires, err := printedToken(g.dir)
	must(g.t, err)
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.Version, hello.Mechanism = 1, "OAUTHBEARER"
	must(g.t, ask(conn, hello))
	auth := kmsg.NewPtrSASLAuthenticateRequest()
	auth.Version, auth.SASLAuthBytes = 1, []byte("n,,\x01auth=Bearer "+token+"\x01\x01")
	must(g.t, ask(conn, auth))
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version, metadata.Topics = 1, []kmsg.MetadataRequestTopic{}
	must(g.t, ask(conn, metadata))
	await(g.t, patience, "the token to expire", func() error {
		if left := time.Until(time.Unix(expires, 0)); left > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
	if err := ask(conn, metadata); !errors.Is(err, io.EOF) {
		g.t.Errorf("a request after the token has expired: %v", err)
	}
	await(g.t, patience, "Kafka's log to say so", func() error {
		if n := countInFile(g.t, g.k.LogFile(), kafkatest.Expired); n <= before {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
}

// ask sends a request and reads the answer, of which it checks only that SASL accepts it.
func ask(conn net.Conn, req kmsg.Request) error {
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 7)); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	resp := req.ResponseKind()
	if err := resp.ReadFrom(body[4:]); err != nil {
		return err
	}
	if auth, ok := resp.(*kmsg.SASLAuthenticateResponse); ok && (auth.ErrorCode != 0 || auth.SessionLifetimeMillis <= 0) {
		return fmt.Errorf("Kafka answers %+v", auth)
	}
	return nil
}

func countInFile(t *testing.T, name, text string) int {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return bytes.Count(b, []byte(text))
}
