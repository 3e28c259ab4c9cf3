package redissink

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outboxcdc/outboxcdc/sink/lane"
	"github.com/outboxcdc/outboxcdc/sink/sinktest"
	"github.com/outboxcdc/outboxcdc/test/redistest"
)

// TestServerRefuses: a server that takes nothing now is tried again, nothing is acknowledged meanwhile, not even what
// it has already, and it takes the events afterwards.
func TestServerRefuses(t *testing.T) {
	server := redistest.Start(t)
	s := newSender(t, server)
	awaits := newSender(t, server, func(c *Config) { c.WaitReplicas = 1 })
	for name, test := range map[string]struct {
		begin, end func()
		want       string
	}{
		"read-only": { // a primary that another one has replaced: what it has may be thrown away
			func() { server.Do("REPLICAOF", "127.0.0.1", "1") }, func() { server.Do("REPLICAOF", "NO", "ONE") }, "READONLY",
		},
		"memory":   {func() { server.Do("CONFIG", "SET", "maxmemory", "1") }, func() { server.Do("CONFIG", "SET", "maxmemory", "0") }, "OOM"},
		"replicas": {func() { server.Do("CONFIG", "SET", "min-replicas-to-write", "1") }, func() { server.Do("CONFIG", "SET", "min-replicas-to-write", "0") }, "NOREPLICAS"},
	} {
		t.Run(name, func(t *testing.T) {
			server.Do("DEL", topic)
			s.stores("a@10-0")
			test.begin()
			for _, events := range [][]string{{"a@10-0"}, {"a@10-0", "b@20-0"}, {"b@20-0"}} {
				for _, s := range []*sender{s, awaits} {
					if s == awaits && test.want != "READONLY" {
						continue // WAIT is not refused
					}
					n, why := s.deliver(events...)
					if n != 0 || why == nil || why.Meaning != lane.Again || why.Code != lane.CodeUnavailable || !strings.Contains(why.Error(), test.want) {
						t.Errorf("%v: %d, %v", events, n, why)
					}
					if s.client.take() != nil {
						t.Errorf("%v: the connection is used again, although the name may lead to another server now", events)
					}
				}
			}
			test.end()
			s.stores("a@10-0", "b@20-0")
			s.has("a@10-0", "b@20-0")
		})
	}
}

// TestBusy: a script of another program holds the server up.
func TestBusy(t *testing.T) {
	server := redistest.Start(t, "busy-reply-threshold 10")
	s := newSender(t, server)
	ended := make(chan error)
	go func() {
		ended <- server.Admin.Eval(context.Background(), "while true do end", nil).Err()
	}()
	for end := time.Now().Add(time.Minute); ; {
		err := server.Admin.Ping(context.Background()).Err()
		if redis.HasErrorPrefix(err, "BUSY") {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if n, why := s.deliver("a@10-0"); n != 0 || why == nil || why.Meaning != lane.Again || !strings.Contains(why.Error(), "BUSY") {
		t.Errorf("%d, %v", n, why)
	}
	server.Do("SCRIPT", "KILL")
	if err := <-ended; err == nil {
		t.Error("the script was not killed")
	}
	s.stores("a@10-0")
	s.has("a@10-0")
}

// TestPermissions: without one of the documented permissions the daemon is refused, and nothing is stored or
// acknowledged by a guess.
func TestPermissions(t *testing.T) {
	server := redistest.Start(t, "user daemon on >"+password+" ~* "+permissions)
	s := newSender(t, server)
	for _, missing := range []string{"evalsha", "xadd", "xrange", "xinfo"} {
		t.Run(missing, func(t *testing.T) {
			server.Do("DEL", topic)
			s.stores("a@10-0", "b@20-0")
			server.Do("ACL", "SETUSER", "daemon", "-"+missing)
			own := newSenderAt(t, server, "redis://daemon:"+password+"@"+server.Addr)
			n, why := own.deliver("x@10-0") // needs them all
			if n != 0 || why == nil || why.Meaning != lane.Denied || !why.PermissionDenied() {
				t.Errorf("%d, %v", n, why)
			}
			s.has("a@10-0", "b@20-0")
			server.Do("ACL", "SETUSER", "daemon", "reset", "on", ">"+password, "~*", "resetchannels", "-@all", "+ping", "+eval", "+evalsha", "+xadd", "+xrange", "+xinfo|stream")
			own.stores("x@10-0")
			s.has("a@10-0", "b@20-0", "x@20-1")
		})
	}
	server.Do("ACL", "SETUSER", "daemon", "+wait")
	awaits := newSenderAt(t, server, "redis://daemon:"+password+"@"+server.Addr, func(c *Config) { c.WaitReplicas, c.Timeout = 1, 2*time.Second })
	if n, why := awaits.deliver("b@20-0"); n != 0 || why == nil || why.Meaning != lane.Denied { // a repeat needs xsetid
		t.Errorf("%d, %v", n, why)
	}
	server.Do("ACL", "SETUSER", "daemon", "+xsetid")
	if n, why := awaits.deliver("b@20-0"); n != 0 || why == nil || why.Code != codeReplicas { // the server has none
		t.Errorf("%d, %v", n, why)
	}
}

func newSenderAt(t *testing.T, server *redistest.Server, url string, change ...func(*Config)) *sender {
	t.Helper()
	tr, err := testReceiver(t, url, change...).Reach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return &sender{t, tr, server}
}

// TestLogin: what a login that fails says, without the password.
func TestLogin(t *testing.T) {
	server := redistest.Start(t, "user daemon on >"+password+" ~* "+permissions, "databases 2")
	server.Do("CONFIG", "SET", "requirepass", "other")
	for url, want := range map[string]string{
		"redis://daemon:Geh3imWrong@":      "DENIED",
		"redis://:Geh3imWrong@":            "DENIED",
		"redis://unknown:Geh3im@":          "DENIED",
		"redis://":                         "DENIED",
		"redis://daemon:" + password + "@": "",
		"redis://:other@":                  "",
	} {
		err := testReceiver(t, url+server.Addr).Probe(t.Context())
		var f *lane.Failure
		switch {
		case want == "" && err == nil:
		case !errors.As(err, &f) || f.Code != want || f.PermissionDenied() != (want == "DENIED") || strings.Contains(f.Error(), "Geh3im"):
			t.Errorf("%s: %v", url, err)
		}
	}
	err := testReceiver(t, "redis://:other@"+server.Addr+"/7").Probe(t.Context())
	if err == nil || !strings.Contains(err.Error(), "let receiver.url name a database that the server has") {
		t.Error(err)
	}
	for _, url := range []string{"Geh3im://h", "redis://h/Geh3im", "redis:Geh3im", "redis://h:Geh3im/0"} {
		var f *lane.Failure
		if err := testReceiver(t, url).Probe(t.Context()); !errors.As(err, &f) || f.Code != lane.CodeSecret || strings.Contains(err.Error(), "Geh3im") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestCluster: a server of a cluster is not supported, and the error says so.
func TestCluster(t *testing.T) {
	s := newSender(t, redistest.Start(t, "cluster-enabled yes"))
	if n, why := s.deliver("a@10-0"); n != 0 || why == nil || why.Meaning != lane.Again || !strings.Contains(why.Error(), "CLUSTERDOWN") || !strings.Contains(why.Remedy, "without Redis Cluster") {
		t.Errorf("%d, %v", n, why)
	}
}

// TestMeanings has the errors that no server of these tests gives.
func TestMeanings(t *testing.T) {
	for text, want := range map[string]lane.Meaning{
		"LOADING Redis is loading the dataset in memory":                                                   lane.Again,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": lane.Again,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                 lane.Again,
		"ERR max number of clients reached":                                                                lane.Again,
		"ERR Error running script (call to f_0): Script killed by user with SCRIPT KILL...":                lane.Again,
		"UNKILLABLE Sorry the script already executed write commands against the dataset.":                 lane.Again,
		"MOVED 3999 127.0.0.1:6381":                                                                        lane.Again,
		"ERR ACL failure in script: User daemon has no permissions to run the 'xadd' command":              lane.Denied, // Redis 7.2
		"ERR something new": lane.Again,
		"DENIED Redis is running in protected mode because protected mode is enabled":                    lane.Denied,
		"ERR AUTH <password> called without any password configured for the default user. Are you sure?": lane.Denied,
		"ERR Elements are too large to be stored":                                                        lane.Refused,
	} {
		hidden := &transport{client: &client{password: password}}
		if f := hidden.failure("log in", serverError(text+" "+password)); strings.Contains(f.Error(), password) {
			t.Error(f)
		}
		long := &transport{client: &client{password: strings.Repeat(password, 30)}} // which a server cuts off
		if f := long.failure("log in", serverError("ERR unknown command 'AUTH', with args beginning with: 'shop' '"+strings.Repeat(password, 15))); strings.Contains(f.Error(), password) {
			t.Error(f)
		}
		if got, code, _ := meaningOf(text); got != want || code == "" {
			t.Errorf("%s: %d %s", text, got, code)
		}
	}
}

// TestTLS: the server's certificate is verified, and the client's is sent.
func TestTLS(t *testing.T) {
	sinktest.TLS(t, redistest.Start(t).Addr, lane.CodeTLS, func(addr string, conf *tls.Config) error {
		return testReceiver(t, "", func(c *Config) {
			c.Timeout = time.Minute
			c.Target = func() (Target, error) { return Target{URL: "rediss://" + addr, TLS: conf}, nil }
		}).Probe(t.Context())
	})
}
